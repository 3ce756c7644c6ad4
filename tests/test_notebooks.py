"""The notebooks run from top to bottom, and objects show themselves in them."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import handshake as hs
from handshake.html import card
from handshake.joins.replay import Replay

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel")

EXAMPLES = Path(__file__).parents[1] / "examples"
ROWS = pa.schema([("t", pa.timestamp("us")), ("x", pa.int64())])


def run(name: str) -> list[str]:
    """Execute a notebook in a kernel of its own; return what each cell of code showed."""
    notebook = nbformat.read(EXAMPLES / name, as_version=4)
    for cell in notebook.cells:
        assert not cell.get("outputs"), "notebooks are kept without outputs"
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    return ["\n".join(map(show_output, c.outputs)) for c in notebook.cells if c.cell_type == "code"]


def show_output(output: Any) -> str:
    data = output.get("data", {})
    return str(output.get("text") or data.get("text/html") or data.get("text/plain") or "")


@pytest.mark.filterwarnings("default")
def test_first_steps_in_process() -> None:
    cells = run("first_steps.ipynb")
    assert "9.98" in cells[0]
    assert "the rows do not join" in cells[1]
    assert "<b>Plan of a join</b>" in cells[2]
    assert "<b>Join, running</b>" in cells[4]
    assert "Live page: <a href=" in cells[5]
    assert "'High': 12" in cells[7]
    assert "<b>Query, ended</b>" in cells[8]


@pytest.mark.filterwarnings("default")
def test_first_steps_on_spark() -> None:
    pytest.importorskip("pyspark")
    cells = run("first_steps_on_spark.ipynb")
    assert int(cells[1].splitlines()[-1]) > 100
    assert cells[3].splitlines()[-1] == "True"
    assert "<b>near, the last micro-batch</b>" in cells[4]
    results = (
        f'handshake_results_total{{engine="spark",query="near",result="join"}} {cells[1].splitlines()[-1]}.0'
    )
    assert results in cells[5]


def test_joins_plans_and_figures_show_themselves_and_escape_names() -> None:
    evil = pa.schema([("<b>x</b>", pa.int64())])
    with hs.Join(left=evil, right=ROWS, on="l.`<b>x</b>` < r.x", window="10 tuples") as join:
        join.push_left({"<b>x</b>": [1, 2]})
        join.push_right({"t": [0], "x": [2]})
        for text in (join._repr_html_(), join.plan._repr_html_(), join.metrics()._repr_html_()):
            assert "<b>x</b>" not in text
        assert "2 rows, 2 in the window, 0 late" in join._repr_html_()
    assert "<b>Join, closed</b>" in join._repr_html_()
    with hs.MultiJoin(
        {"a": ROWS, "b": ROWS, "c": ROWS}, "a.x = b.x AND b.x = c.x", window="9 tuples"
    ) as many:
        assert "<b>MultiJoin, running</b>" in many._repr_html_()
        assert escape(many.plan.explain()) in many.plan._repr_html_()
    asof = hs.AsOfJoin(left=ROWS, right=ROWS, time="t", tolerance="1 second")
    with asof:
        assert "<b>AsOfJoin, running</b>" in asof._repr_html_()


def test_replays_queries_and_reasons_show_themselves() -> None:
    rows = pa.table({"t": [0, 1], "x": [1, 2]}, ROWS)
    plan = hs.prepare(ROWS, ROWS, "l.x = r.x", window="2 seconds", time="t")
    replay = Replay(plan, rows, rows)
    assert "<b>Replay, not begun</b>" in replay._repr_html_()
    list(replay)
    assert "<b>Replay, ended</b>" in replay._repr_html_()
    assert "4 of 4" in replay._repr_html_()
    assert escape(plan.explain()) in replay._repr_html_()
    why = hs.why(0, 1, "l.x = r.x", left=rows, right=rows, window="2 seconds", time="t", how="left")
    for text in ("<b>The rows do not join</b>", "l.x = r.x", "1 = 2", "without a match, the left row"):
        assert text in why._repr_html_()
    with hs.Query("CREATE INPUT STREAM S (x int); SELECT x FROM S WHERE x < 3 INTO T") as query:
        query.push("S", {"x": [1, 2]})
        assert "2 rows" in query.metrics()._repr_html_()
        assert "<b>Figures of a query</b>" in query.metrics()._repr_html_()
        assert "<b>Plan of a query</b>" in query.plan._repr_html_()
        assert escape("└─ S") in query.plan._repr_html_()


def test_a_card_escapes_everything() -> None:
    text = card("<t>", [("<n>", "<v>")], "<p>", [["<h>"], ["<c>"]])
    for letter in "tnvphc":
        assert f"&lt;{letter}&gt;" in text
