"""The page with the figures of the papers: `make report`."""

from __future__ import annotations

import html
import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_spec = importlib.util.spec_from_file_location("report", ROOT / "scripts/report.py")
assert _spec is not None
assert _spec.loader is not None
report = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(report)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("report") / "report.html"
    assert report.main(path) == 0
    return path.read_text()


@pytest.mark.parametrize(
    "figure",
    [
        "Handshake join, figure 15",
        "Handshake join, figure 16",
        "CellJoin, figures 10 and 11",
        "CellJoin, figure 12",
        "CellJoin, figure 13",
        "CellJoin, section 7.1",
        "Glacier, table 3",
    ],
)
def test_figures_have_their_tables_and_commands(page: str, figure: str) -> None:
    section = next(part for part in page.split("<section ") if figure in part.partition("</h2>")[0])
    assert '<table><tr><th class="' in section
    assert not set("┃│━─") & set(section)
    assert "<code>handshake bench " in section
    assert "RESULT " in section


def test_what_is_not_reproduced_has_a_reason(page: str) -> None:
    table = page.partition("<h2>Not reproduced</h2>")[2]
    rows = re.findall(r"<tr><td>(.+?)</td><td>(.+?)</td></tr>", table)
    assert len(rows) >= len(report.NOT_REPRODUCED)
    assert any("figure 8: packets" in figure for figure, _ in rows)


def test_every_stored_table_is_on_the_page(page: str) -> None:
    """Each file that a benchmark of the README has stored is on the page, rendered or as text."""
    for _, _, cell in report.ROW.findall((ROOT / "bench/README.md").read_text()):
        for path in report._files(cell):
            if path.suffix == ".txt":
                rendered = f'<section id="{path.stem}">' in page
                figures = html.escape(path.read_text().splitlines()[-1])
                assert rendered or figures in page, path.name


def test_the_page_needs_no_network(page: str) -> None:
    addresses = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert len(addresses) >= 9
    assert all(address.startswith(("data:", "#")) for address in addresses)


def test_tables_keep_every_value(page: str) -> None:
    section = page.partition('<section id="circuit_synth">')[2].partition("</section>")[0]
    rows = [re.findall(r">([^<>]*)</td>", row) for row in section.split("<tr>")]
    assert ["local", "2", "256.4", "251.3 to 256.8"] in [row[:4] for row in rows]  # the last one in two lines
    text = (ROOT / "bench/results/circuits.txt").read_text()
    values = [
        cell.strip() for line in text.splitlines() if line.startswith("│") for cell in line[1:-1].split("│")
    ]
    shown = re.findall(
        r">([^<>]*)</td>", page.partition('<section id="circuits">')[2].partition("</section>")[0]
    )
    assert shown == values
    assert page.count('<th class="number published">published</th>') >= 3


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("throughput", ["1,400 / 1,000 / 750"]),
        ("overload", ["1,000", "750", "500", "up to 3.5"]),
        ("batches", ["128"]),
        ("windows", ["up to 10%"]),
        ("simd", ["&gt; 2"]),
        ("circuit_synth", ["nearly 150", "150 to 170"]),
        ("circuit_tables", ["1.54%", "168"]),
    ],
)
def test_values_that_a_paper_states_are_in_its_column(page: str, name: str, values: list[str]) -> None:
    section = page.partition(f'<section id="{name}">')[2].partition("</section>")[0]
    published = re.findall(r'<td class="[^"]*published">([^<]*)</td>', section)
    assert set(values) <= set(published)
