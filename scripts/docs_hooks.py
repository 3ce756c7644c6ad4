"""Pages of the site that are generated at build time, and links to files outside docs/."""

from __future__ import annotations

import contextlib
import io
import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.structure.files import File, Files
from typer.main import get_command

from handshake.cli.app import app, run
from handshake.options import options_table

ROOT = Path(__file__).resolve().parent.parent
# Files outside docs/ and the pages they become; links between all pages are rewritten accordingly.
MOVED = {
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "bench/README.md": "benchmarks.md",
}
OPTIONS_HEAD = """# Options by engine

`handshake.run`, `join` and `explain` take these options by name, and commands take the flags. An option that
the engine does not support is an error. The table comes from `handshake/options.py`.
"""
# The last line before a list or a table without a blank line, which Markdown in Python needs.
LIST = re.compile(r"^((?![-|#>\s]|\d+\. |```).+\n)(?=(?:- |1\. |\| ))", re.MULTILINE)
LINK = re.compile(r"\[([^\]]*)\]\(([^)#\s]+)([^)\s]*)\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages, the moved ones and the benchmark tables."""
    for source, page in MOVED.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text()))
    for path in sorted((ROOT / "bench/results").iterdir()):
        if path.suffix in (".txt", ".svg"):
            uri = f"benchmarks/results/{path.name}"
            files.append(File.generated(config, uri, abs_src_path=str(path)))
    for page, content in _reference_pages():
        files.append(File.generated(config, page, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Point links at the pages of the site instead of the files of the repository."""
    here = page.file.src_uri
    if here in ("index.md", "tutorial.md", "concepts.md"):
        page.meta["hide"] = ["navigation"]  # tabs with one page need no list of pages
    sources = {target: source for source, target in MOVED.items()}
    origin = PurePosixPath(sources.get(here, f"docs/{here}")).parent

    def rewrite(match: re.Match[str]) -> str:
        text, target, anchor = match.groups()
        if "://" in target:
            return match[0]
        path = os.path.normpath(origin / target)
        if (site_path := _site_path(path)) is None:
            return f"{text} (`{path}`)"
        return f"[{text}]({os.path.relpath(site_path, PurePosixPath(here).parent)}{anchor})"

    return LIST.sub(r"\1\n", LINK.sub(rewrite, markdown))


def _site_path(path: str) -> str | None:
    """Return where a file of the repository is on the site, or None if it is not there."""
    if path == "README.md":
        return "index.md"
    if path in MOVED:
        return MOVED[path]
    if path.startswith("bench/results/") and path.endswith((".txt", ".svg")):
        return path.replace("bench/", "benchmarks/", 1)
    return path.removeprefix("docs/") if path.startswith("docs/") else None


def _reference_pages() -> Iterator[tuple[str, str]]:
    os.environ["COLUMNS"] = "100"
    command = get_command(app)
    names = [name for name in command.commands if name != "bench"]
    yield "reference/command-line.md", _command_page("Command line", [[], *([name] for name in names)])
    benchmarks = [["bench", name] for name in command.commands["bench"].commands]
    yield "reference/bench-commands.md", _command_page("Benchmark commands", benchmarks)
    yield "reference/options.md", f"{OPTIONS_HEAD}\n{options_table()}"


def _command_page(title: str, commands: list[list[str]]) -> str:
    sections = [f"# {title}\n\nThese texts are the output of `--help`."]
    for words in commands:
        name = " ".join(["handshake", *words])
        sections.append(f"## {name}\n\n```text\n{_help(words)}\n```")
    return "\n\n".join(sections) + "\n"


def _help(words: list[str]) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as output:
        run([*words, "--help"])
    return output.getvalue().rstrip()
