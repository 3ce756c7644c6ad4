"""Tests of the documents: examples print the output shown, links exist, everything public is documented."""

from __future__ import annotations

import doctest
import importlib
import os
import pkgutil
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import handshake

ROOT = Path(__file__).parent.parent
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    ROOT / "bench/README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
GENERATED = {f"docs/reference/{name}.md" for name in ("command-line", "bench-commands", "options")}
_BLOCK = r"((?:(?!```).)*)```"
EXAMPLES = [
    pytest.param(code, output, id=f"{page.stem}-{number}")
    for page in PAGES
    for number, (code, output) in enumerate(
        re.findall(rf"```python\n{_BLOCK}\n+```\n{_BLOCK}", page.read_text(), re.DOTALL)
    )
]
TUTORIAL = (ROOT / "docs/tutorial.md").read_text()
COMMANDS = re.findall(r"```console\n\$ (.*?)\n(.*?)```", TUTORIAL, re.DOTALL)
MODULES = [m.name for m in pkgutil.walk_packages(handshake.__path__, "handshake.")]


def test_documents_have_examples():
    assert len(EXAMPLES) >= 5
    assert len(COMMANDS) == 3


@pytest.mark.parametrize(("code", "output"), EXAMPLES)
def test_examples_print_the_output_shown(code, output, capsys):
    """Run examples in this process, where warnings are errors; test_package.py runs one in its own."""
    exec(compile(code, "example", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr() == (output, "")


@pytest.mark.parametrize(("command", "output"), COMMANDS)
def test_commands_of_the_tutorial_print_the_output_shown(command, output, tmp_path):
    for name, text in re.findall(r'```\w+ title="([^"]+)"\n(.*?)```', TUTORIAL, re.DOTALL):
        (tmp_path / name).write_text(text)
    program, *arguments = shlex.split(command)
    assert program == "handshake"
    done = subprocess.run(
        [sys.executable, "-m", "handshake", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == sorted(output.splitlines())


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples(name):
    failed, _ = doctest.testmod(importlib.import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert failed == 0


@pytest.mark.parametrize("name", handshake.__all__)
def test_everything_public_is_documented(name):
    public = getattr(handshake, name)
    assert name == "__version__" or (getattr(public, "__doc__", None) or type(public).__doc__)


@pytest.mark.parametrize("name", handshake.__all__)
def test_everything_public_is_in_the_reference(name):
    reference = (ROOT / "docs/reference/api.md").read_text()
    assert name == "__version__" or f"::: handshake.{name}\n" in reference


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
        if "://" not in target:
            path = os.path.normpath(page.parent / target)
            assert Path(path).exists() or os.path.relpath(path, ROOT) in GENERATED, target


ROOMS = [
    line.split("|")[1:4]
    for line in (ROOT / "docs/architecture.md").read_text().partition("## Types that")[0].splitlines()
    if line.startswith("| `")
]


@pytest.mark.parametrize(("room", "what", "start"), ROOMS, ids=lambda cell: cell.strip()[:20])
def test_rooms_exist_and_start_where_the_architecture_says(room, what, start):
    for place in re.findall("`([^`]+)`", room):
        path = ROOT / "src/handshake" / place
        assert path.exists(), place
        for name in re.findall("`([^`]+)`", start):
            named = path / name if path.is_dir() else path
            assert named.exists(), name
            assert path.is_dir() or re.search(rf"^(class|def) {name}\b", path.read_text(), re.M), name


PACKAGE = ROOT / "src/handshake"
FOLDERS = (
    ROOT,
    ROOT / "src",
    PACKAGE,
    PACKAGE / "engines/circuit",
    PACKAGE / "engines/spark",
    ROOT / "bench",
)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_pages_name_exist(page):
    """The changelog is left out: it has history."""
    named = re.findall(r"`(\w+/[\w/]+\.(?:py|json|txt|ipynb))`", page.read_text())
    for file in named if page.name != "CHANGELOG.md" else ():
        assert any((folder / file).exists() for folder in FOLDERS), file


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


ADDITIONS = [
    line.split("|")[1:3]
    for line in (ROOT / "CONTRIBUTING.md").read_text().partition("## How to add")[2].splitlines()
    if line.startswith(("| a ", "| an "))
]


@pytest.mark.parametrize(("addition", "touched"), ADDITIONS, ids=lambda cell: cell.strip())
def test_an_addition_touches_at_most_three_files_and_they_exist(addition, touched):
    assert len(touched.split(",")) <= 3
    named = re.findall("`([^`]+)`", touched)
    assert named
    for file in named:
        assert (ROOT / "src/handshake" / file).exists(), (addition, file)


def test_all_additions_are_described():
    assert len(ADDITIONS) == 15
