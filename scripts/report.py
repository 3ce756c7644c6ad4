"""Write build/report.html: the figures and tables of the papers that are reproduced, from bench/results.

The list of benchmarks is the one in bench/README.md. Each shows the figures that it has stored as JSON.
Published values are columns of the tables. Tables of the other benchmarks follow as text.
"""

from __future__ import annotations

import html
import importlib
import re
import subprocess
import sys
import time
from base64 import b64encode
from collections.abc import Iterable, Sequence
from pathlib import Path

from handshake_bench.report import Report, load

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
ROW = re.compile(r"^\| `(handshake bench [^`]+)` \| (.+?) \| (.*?) ?\|$", re.MULTILINE)
NOT_REPRODUCED = (
    ("Handshake join, tables 1 and 2: power", "needs an FPGA board; cycles and clocks are above"),
    ("CellJoin, figures 7 and 8: cycles and CPI of an SPE", "needs a Cell processor"),
    (
        "CellJoin, figure 9: the best size of basic windows by a formula",
        "an estimate for the memory of a Cell processor; figure 13 has the choice of our cost model",
    ),
    ("Glacier, table 2: size of a chip", "describes the authors' chip"),
    (
        "Glacier, figure 8: packets processed at two input loads",
        "needs an FPGA board on a network; circuits are simulated here",
    ),
    ("Other figures", "drawings of algorithms and architectures, without measurements"),
)
STYLE = """
:root { color-scheme: light dark; --bg: #f5f7f7; --card: #fff; --ink: #1c2b29; --muted: #5c6d6a;
  --line: #dbe3e1; --mark: #e6f2ef; --accent: #0d7a6c; }
@media (prefers-color-scheme: dark) { :root {
  --bg: #0e1514; --card: #16201f; --ink: #e2ebe9; --muted: #93a5a2; --line: #2a3735; --mark: #1d3531;
  --accent: #4fbfae; } }
* { box-sizing: border-box; }
body { font: 16px/1.55 system-ui, sans-serif; margin: 0; background: var(--bg); color: var(--ink); }
main { max-width: 70rem; margin: 0 auto; padding: 1.5rem 1rem 3rem; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: .5rem 0; } h2 { font-size: 1.15rem; margin: 0 0 .3rem; }
h3 { font-size: .92rem; font-weight: 600; margin: 1.2rem 0 .4rem; }
a { color: var(--accent); }
section, nav { background: var(--card); border: 1px solid var(--line); border-radius: 12px;
  padding: 1.1rem 1.2rem; margin-top: 1rem; }
nav ul { margin: .3rem 0 0; padding-left: 1.1rem; columns: 22rem; } nav li { break-inside: avoid; }
p.about, .notes { color: var(--muted); font-size: .88rem; margin: .3rem 0; } .notes { margin-top: .7rem; }
.scroll { overflow: auto; }
table { border-collapse: collapse; font-size: .86rem; font-variant-numeric: tabular-nums; }
th, td { text-align: left; vertical-align: top; padding: .25rem .8rem; border-bottom: 1px solid var(--line);
  white-space: nowrap; }
#not-reproduced td { white-space: normal; }
th { color: var(--muted); font-weight: 500; }
.scroll:not(#not-reproduced *) td:first-child { position: sticky; left: 0; background: var(--card); }
.number { text-align: right; }
.published { background: var(--mark); }
img { display: block; width: 100%; height: auto; margin: 1rem auto 0; background: #fff; border-radius: 8px; }
code { font-size: .88em; background: var(--mark); border-radius: 5px; padding: .1em .35em;
  overflow-wrap: anywhere; }
pre { font-size: .78rem; line-height: 1.3; margin: .3rem 0; }
details { margin-top: .8rem; color: var(--muted); font-size: .85rem; } summary { cursor: pointer; }
@media (max-width: 40rem) {
  main { padding: 1rem .5rem 2rem; } section, nav { padding: .9rem .8rem; }
  table { font-size: .8rem; } th, td { padding: .25rem .45rem; }
  th { white-space: normal; vertical-align: bottom; }
  td:first-child { white-space: normal; min-width: 6.5rem; }
  td.number:first-child { min-width: 0; }
}
"""
PAPERS = "CellJoin, handshake join, Glacier (continuous queries on FPGAs), and handshake join on FPGAs"
NUMBER = re.compile(r"[-+<>~… .,%/!*0-9e]*[0-9-][-+<>~… .,%/!*0-9e]*")


def main(path: Path = ROOT / "build" / "report.html") -> int:
    """Write the page and print its path."""
    rows = ROW.findall((ROOT / "bench" / "README.md").read_text())
    papers = [row for row in rows if re.search(r"\b(figures?|tables?|section) \d", row[1])]
    shown = [_section(*row) for row in papers if _files(row[2])]
    missing = [
        (what, f"no stored result; run {command}") for command, what, files in papers if not _files(files)
    ]
    others = [_as_text(*row) for row in rows if row not in papers and _files(row[2])]
    path.parent.mkdir(exist_ok=True)
    path.write_text(_page(shown, [*missing, *NOT_REPRODUCED], others))
    print(f"open {path}")
    return 0


def _files(cell: str) -> list[Path]:
    return [RESULTS / name for name in re.findall(r"\(results/([^)]+)\)", cell)]


class Page(Report):
    """A report of a benchmark as HTML."""

    def table(self, title: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """Add a table with its title, of which the values that a paper states are tinted."""
        self.text += [f"<h3>{html.escape(title)}</h3>", _table(heads, list(rows))]

    def say(self, text: str) -> None:
        """Add a note. A sentence may go on in the next one."""
        self.text.append(f'<p class="notes">{html.escape(text.strip())}</p>')

    def result(self, **figures: float | str) -> None:
        """Add the figures for scripts, folded."""
        super().result(**figures)
        line = html.escape(self.text.pop())
        self.text.append(f"<details><summary>Figures for scripts</summary><code>{line}</code></details>")

    def html(self) -> str:
        """Return all parts; notes that follow each other are one paragraph."""
        return "\n".join(self.text).replace('</p>\n<p class="notes">', "\n")


def _section(command: str, what: str, cell: str) -> str:
    files = _files(cell)
    name = files[0].stem
    path = files[0].with_suffix(".json")
    data = load(str(path), name)
    page = Page(data["machine"])
    importlib.import_module(f"handshake_bench.{name}").show(page, data)
    title, plots = html.escape(_title(what)), {*RESULTS.glob(f"{name}*.svg")}
    about = html.escape(f"{data['machine']}; stored on {_date(path)}; command ")
    parts = [
        f'<section id="{name}"><h2>{title}</h2>',
        f'<p class="about">{about}<code>{html.escape(command)} --out bench/results</code></p>',
        page.html(),
        *(_picture(plot, title) for plot in sorted(plots)),
        "</section>",
    ]
    return "\n".join(parts)


def _as_text(command: str, what: str, cell: str) -> str:
    """Return the stored tables of a benchmark that reproduces no figure, folded."""
    files = [path for path in _files(cell) if path.suffix == ".txt"]
    tables = "".join(
        f'<p class="notes">{path.name}, stored on {_date(path)}</p>'
        f'<div class="scroll" tabindex="0"><pre>{html.escape(path.read_text().rstrip())}</pre></div>'
        for path in files
    )
    plain = re.sub(r"\[([^]]+)\]\([^)]*\)", r"\1", what)
    code = re.sub("`([^`]+)`", r"<code>\1</code>", html.escape(plain))
    about = f"<code>{html.escape(command)}</code> {code}"
    return f"<details><summary>{about}</summary>{tables}</details>"


def _title(what: str) -> str:
    return what[:1].upper() + what[1:]


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    kinds = [_kind(name, [row[k] for row in rows]) for k, name in enumerate(heads)]
    drawn = [_row("th", heads, kinds), *(_row("td", row, kinds) for row in rows)]
    return f'<div class="scroll" tabindex="0"><table>{"".join(drawn)}</table></div>'


def _kind(name: str, cells: list[str]) -> str:
    """Return the classes of a column: numbers, and values that a paper states."""
    numbers = all(NUMBER.fullmatch(cell) for cell in cells if cell)
    return " ".join(["number"] * numbers + ["published"] * ("published" in name))


def _row(tag: str, cells: Sequence[str], kinds: Sequence[str]) -> str:
    columns = (
        f'<{tag} class="{kind}">{html.escape(cell)}</{tag}>' for cell, kind in zip(cells, kinds, strict=True)
    )
    return f"<tr>{''.join(columns)}</tr>"


def _date(path: Path) -> str:
    command = ["git", "log", "-1", "--format=%cs", "--", str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or time.strftime("%Y-%m-%d", time.gmtime(path.stat().st_mtime))


def _picture(path: Path, title: str) -> str:
    """Return a plot that scrolls where it would be too small to read."""
    data = path.read_bytes()
    found = re.search(rb'<svg[^>]* width="([0-9.]+)pt"', data)
    points = float(found[1]) if found else 0
    address = f"data:image/svg+xml;base64,{b64encode(data).decode()}"
    widths = f"min-width: {points * 0.9:.0f}px; max-width: {points * 1.6:.0f}px"
    return f'<div class="scroll" tabindex="0"><img alt="{title}" style="{widths}" src="{address}"></div>'


def _page(sections: list[str], missing: list[tuple[str, str]], others: list[str]) -> str:
    rows = "\n".join(f"<tr><td>{html.escape(a)}</td><td>{html.escape(b)}</td></tr>" for a, b in missing)
    links = re.findall(r'<section id="([^"]+)"><h2>(.+?)</h2>', "".join(sections))
    contents = "".join(f'<li><a href="#{name}">{title}</a></li>' for name, title in links)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Handshake: figures of the papers</title><style>{STYLE}</style></head>
<body><main>
<h1>Figures of the papers</h1>
<p>What Handshake reproduces of four papers: {PAPERS}. Values that the text of a paper states are in
<span class="published">tinted columns</span>. Written on {time.strftime("%Y-%m-%d")}.</p>
<nav aria-label="Contents"><h2>Contents</h2>
<ul>{contents}<li><a href="#not-reproduced">Not reproduced</a></li>
<li><a href="#others">Other benchmarks</a></li></ul></nav>
{"".join(sections)}
<section id="not-reproduced"><h2>Not reproduced</h2>
<div class="scroll"><table><tr><th>figure</th><th>reason</th></tr>{rows}</table></div></section>
<section id="others"><h2>Other benchmarks</h2>{"".join(others)}</section>
</main></body></html>
"""


if __name__ == "__main__":
    sys.exit(main())
