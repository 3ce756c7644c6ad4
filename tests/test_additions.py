"""Additions of CONTRIBUTING's table: an entry from outside the package works from text to results."""

from __future__ import annotations

import ast
import json
import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import handshake as hs
from cli_runs import run_here
from handshake.engines.joins import join_plan
from handshake.errors import UnsupportedError
from handshake.io import files
from handshake.io.formats import FileFormat
from handshake.joins.access import ACCESS_METHODS, AccessMethod
from handshake.joins.arrangements.registry import ARRANGEMENTS
from handshake.joins.arrangements.three_step import ThreeStep
from handshake.joins.plan import predicate_of
from handshake.metrics import FAMILIES, REPORTS, metric, names
from handshake.metrics.families import derived_families
from handshake.metrics.registry import Exported
from handshake.options import _TYPES, OPTIONS, Option, Options
from handshake.plan.algebra import Node, Output
from handshake.plan.functions.registry import FUNCTIONS, WHOLE, Function, takes
from handshake.plan.optimise import RULE_SETS
from handshake.plan.query import parse_query
from handshake.schema import INT64
from handshake.testing import assert_same_rows, reference
from handshake.windows import UNITS, TimeWindow, windows_of


def numbers(seed: int) -> pa.Table:
    rng = random.Random(seed)
    return pa.table({"t": list(range(60)), "x": [rng.randrange(100) for _ in range(60)]})


def check_join(**options: Any) -> str:
    """Compare a join with the oracle; return its explanation."""
    left, right = numbers(1), numbers(2)
    join = {"on": "l.x BETWEEN r.x - 5 AND r.x + 5", "window": "20 seconds", "time": "t"}
    assert_same_rows(hs.join(left, right, **join, **options), reference(join, left, right))
    return hs.explain(left, right, **join, **options)


def add_choice(monkeypatch: pytest.MonkeyPatch, option: str, name: str) -> None:
    """Let an option have one more value."""
    more = replace(OPTIONS[option], choices=(*OPTIONS[option].choices, name))
    monkeypatch.setitem(OPTIONS, option, more)


def test_an_access_method(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = AccessMethod(
        "narrow", "a band", lambda analysis: bool(analysis.bounds), lambda analysis: "the first band alone",
        preference=-1, largest=64, attributes=1,
    )  # fmt: skip
    monkeypatch.setitem(ACCESS_METHODS, "narrow", mine)
    add_choice(monkeypatch, "method", "narrow")
    assert "method      narrow: the first band alone" in check_join()
    assert "method      narrow: as asked" in check_join(method="narrow")


def test_an_arrangement(monkeypatch: pytest.MonkeyPatch) -> None:
    class Mine(ThreeStep):
        name = "mine"

    monkeypatch.setitem(ARRANGEMENTS, "mine", Mine)
    add_choice(monkeypatch, "algorithm", "mine")
    assert "algorithm   mine, cores: 1" in check_join(algorithm="mine")


def test_a_window_kind() -> None:
    @dataclass(frozen=True)
    class Closed(TimeWindow):
        """A time window that rows at its far end belong to."""

        def reach(self, unit: str) -> int:
            return self.size // UNITS[unit]

    left, right = {"t": [0]}, {"t": [4, 5, 6]}
    found = hs.join(left, right, window=Closed(5 * UNITS["s"]), time="t")
    assert sorted(found["t_right"].to_pylist()) == [4, 5]
    assert hs.join(left, right, window="5 seconds", time="t")["t_right"].to_pylist() == [4]


def export_as(monkeypatch: pytest.MonkeyPatch, report: str, name: str, family: str) -> None:
    """Let the registry say that a figure is exported."""
    shown = [replace(m, exported=Exported(family)) if m.name == name else m for m in REPORTS[report]]
    monkeypatch.setitem(REPORTS, report, tuple(shown))
    added = {each.name: each for each in derived_families()}
    monkeypatch.setitem(FAMILIES, family, added[family])


def test_a_metric_that_is_exported(monkeypatch: pytest.MonkeyPatch) -> None:
    export_as(monkeypatch, "join", "skipped", "skipped_basic_windows")
    rows = pa.schema([("x", pa.int64())])
    with hs.Join(left=rows, right=rows, on="l.x < r.x", window="10 tuples") as join:
        join.push_left({"x": [1]})
        text = hs.metrics.export(join, name="pairs").text()
    assert 'handshake_skipped_basic_windows_total{engine="local",query="pairs"} 0.0' in text
    assert f"# HELP handshake_skipped_basic_windows {metric('join', 'skipped').help}\n" in text


def test_a_metric_of_micro_batches_that_is_exported(monkeypatch: pytest.MonkeyPatch) -> None:
    export_as(monkeypatch, "micro_batch", "visits", "visits")
    segment = {"segment": 0, **dict.fromkeys(names("micro_batch"), 0)}
    figures = {**segment, "rows": 2, "visits": 7, "segments": [json.dumps(segment)]}

    class Running:
        """A streaming query that reports its micro-batches."""

        name, id, isActive = "market", "1", True
        batch = 0

        def exception(self) -> None:
            return None

        @property
        def lastProgress(self) -> dict[str, Any]:
            at = "2026-01-01T00:00:00Z"
            return {"batchId": self.batch, "timestamp": at, "observedMetrics": {"matches": figures}}

    query = Running()
    watch = hs.metrics.export(query)
    assert 'handshake_visits_total{engine="spark",query="market"} 7.0' in watch.text()
    query.batch = 1
    assert 'handshake_visits_total{engine="spark",query="market"} 14.0' in watch.text()


@dataclass(frozen=True)
class More(Options):
    """All options, and one more."""

    limit: int | None = None


def test_an_option_of_joins_on_spark(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An option travels to the tasks in the definition of a join; joins of tables and queries refuse it."""
    from handshake.engines.spark.engine import SparkEngine, frames_plan
    from handshake.engines.spark.joins.explain import recall

    option = Option("Rows per micro-batch.", ("spark",), least=1, frames="streaming DataFrames")
    monkeypatch.setitem(OPTIONS, "limit", option)
    monkeypatch.setitem(_TYPES, "limit", int | None)

    with pytest.raises(UnsupportedError, match="limit is a whole number from 1 up; 0 was given"):
        More(limit=0)
    engine, wanted = SparkEngine(), More(limit=3, order="any")
    streams = [
        spark.readStream.format("rate").load().withWatermark("timestamp", "1 second") for _ in range(2)
    ]
    inputs = dict(zip(("left", "right"), streams, strict=True))
    windows, on = windows_of("5 seconds"), "l.value = r.value"
    plan = frames_plan(*streams, on, windows, (None, None), suffix="_right", aliases=None)
    planned = recall(engine.run(plan, inputs, wanted).results()["join"])
    assert planned is not None
    assert planned.definition.__getstate__()["options"] == wanted
    tables = {name: pa.table({"value": [1]}) for name in inputs}
    schema = tables["left"].schema
    plan = join_plan(schema, schema, predicate_of(on), windows_of(), (None, None))
    refused = "limit=3 is for joins of streaming DataFrames, not of"
    with pytest.raises(UnsupportedError, match=f"{refused} tables"):
        engine.run(plan, tables, wanted)
    plan = parse_query("CREATE INPUT STREAM S (a int); SELECT a FROM S WHERE a > 1 INTO T")
    with pytest.raises(UnsupportedError, match=f"{refused} queries"):
        engine.check(plan, wanted)


def test_no_function_of_the_spark_engine_passes_options_one_by_one() -> None:
    """They travel as one value, `Options`, so that another one needs no change on its way."""
    ours = {name for name, option in OPTIONS.items() if option.frames} - {"state"}
    for path in Path(hs.__file__).parent.glob("engines/spark/**/*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                passed = {each.arg for each in node.keywords} & ours
                assert not passed or called in ("Options", "replace"), (path.name, called, passed)


def test_a_file_format(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    class Writer:
        def __init__(self, stream: Any, schema: pa.Schema) -> None:
            self._stream = stream

        def write_table(self, table: pa.Table) -> None:
            for row in table.to_pylist():
                self._stream.write(" ".join(map(str, row.values())).encode() + b"\n")

        def close(self) -> None:
            self._stream.write(b"end\n")

    def read(path: Path, compression: str | None) -> pa.Table:
        return pa.table({"x": [int(line) for line in path.read_text().split()]})

    monkeypatch.setattr(files, "FORMATS", (*files.FORMATS, FileFormat("Numbers", (".num",), read, Writer)))
    left, out = tmp_path / "left.num", tmp_path / "out.num"
    left.write_text("1\n20\n")
    (tmp_path / "right.csv").write_text("a\n5\n40\n")
    run_here(capfd, "join", left, tmp_path / "right.csv", "--on", "ABS(l.x - r.a) <= 10", "--output", out)
    assert out.read_text() == "1 5\nend\n"


def test_a_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Node] = []

    def look(node: Node) -> Node:
        seen.append(node)
        return node

    monkeypatch.setitem(RULE_SETS, "local", (*RULE_SETS["local"], look))
    text = "CREATE INPUT STREAM S (a int, b int); SELECT b FROM S INTO T"
    assert hs.run(text, {"S": {"a": [1], "b": [2]}})["T"].to_pylist() == [{"b": 2}]
    assert [node.name for node in seen if isinstance(node, Output)] == ["T"]


def test_a_function(monkeypatch: pytest.MonkeyPatch) -> None:
    triple = Function("triple", takes(WHOLE, gives=INT64), lambda call: lambda value: 3 * value)
    monkeypatch.setitem(FUNCTIONS, "triple", triple)
    found = hs.join({"x": [1, 2, None]}, {"a": [6, 9]}, "TRIPLE(l.x) = r.a AND TRIPLE(2) = 6")
    assert found.to_pylist() == [{"x": 2, "a": 6}]
