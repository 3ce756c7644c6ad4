"""Write build/report.html: the figures and tables of the papers that are reproduced, from bench/results.

The list of benchmarks is the one in bench/README.md. Published values are columns of the tables.
"""

from __future__ import annotations

import html
import json
import re
import subprocess
import sys
import time
from pathlib import Path

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
body { font: 16px/1.5 system-ui, sans-serif; max-width: 76rem; margin: 0 auto; padding: 1rem; color: #222; }
section { border-top: 1px solid #ccc; margin-top: 2rem; }
pre { overflow-x: auto; font-size: 0.8rem; line-height: 1.15; background: #f6f8f8; padding: 0.7rem; }
img { max-width: 100%; height: auto; }
code { background: #f0f3f3; padding: 0 0.2rem; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; } p.about { color: #555; font-size: 0.9rem; }
td, th { text-align: left; padding: 0.2rem 0.8rem 0.2rem 0; vertical-align: top; }
"""


def main(path: Path = ROOT / "build" / "report.html") -> int:
    """Write the page and print its path."""
    rows = ROW.findall((ROOT / "bench" / "README.md").read_text())
    papers = [row for row in rows if re.search(r"\b(figures?|tables?|section) \d", row[1])]
    shown = [_section(*row) for row in papers if _files(row[2])]
    missing = [
        (what, f"no stored result; run {command}") for command, what, files in papers if not _files(files)
    ]
    path.parent.mkdir(exist_ok=True)
    path.write_text(_page(shown, [*missing, *NOT_REPRODUCED]))
    print(f"open {path}")
    return 0


def _files(cell: str) -> list[Path]:
    return [RESULTS / name for name in re.findall(r"\(results/([^)]+)\)", cell)]


def _section(command: str, what: str, cell: str) -> str:
    files = _files(cell)
    plots = RESULTS.glob(f"{files[0].stem}*.svg")
    parts = [f"<section><h2>{html.escape(what[:1].upper() + what[1:])}</h2>"]
    about = f"{_machine(files[0])}; stored on {_date(files[0])}; command "
    parts.append(
        f'<p class="about">{html.escape(about)}<code>{html.escape(command)} --out bench/results</code></p>'
    )
    parts += [f"<pre>{html.escape(f.read_text())}</pre>" for f in files if f.suffix == ".txt"]
    for plot in sorted({*plots, *(f for f in files if f.suffix == ".svg")}):
        parts.append(f'<img alt="{plot.stem}" src="{_data_address(plot)}">')
    return "\n".join([*parts, "</section>"])


def _machine(path: Path) -> str:
    data = path.with_suffix(".json")
    found = json.loads(data.read_text()) if data.exists() else {}
    machine = found.get("machine") if isinstance(found, dict) else None
    return str(machine or "machine: see the last lines of the table")


def _date(path: Path) -> str:
    command = ["git", "log", "-1", "--format=%cs", "--", str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or time.strftime("%Y-%m-%d", time.gmtime(path.stat().st_mtime))


def _data_address(path: Path) -> str:
    from base64 import b64encode

    return f"data:image/svg+xml;base64,{b64encode(path.read_bytes()).decode()}"


def _page(sections: list[str], missing: list[tuple[str, str]]) -> str:
    rows = "\n".join(f"<tr><td>{html.escape(a)}</td><td>{html.escape(b)}</td></tr>" for a, b in missing)
    return f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Handshake: figures of the papers</title><style>{STYLE}</style>
<h1>Figures of the papers</h1>
<p>Tables have published values in columns of their own, if the text of a paper states them.</p>
{"".join(sections)}
<section><h2>Not reproduced</h2><table><tr><th>figure</th><th>reason</th></tr>{rows}</table></section>
</html>
"""


if __name__ == "__main__":
    sys.exit(main())
