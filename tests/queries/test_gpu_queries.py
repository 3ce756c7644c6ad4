"""Aggregates of joins on a GPU give what the oracle gives, on a stand-in that runs the same frames."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import handshake as hs
from cli_runs import run_here
from gpu_joins import SMALL, TUNINGS
from gpu_queries import check_query, random_items, random_query, use_tuning
from handshake.errors import HandshakeError, UnsupportedError
from handshake.joins.device import reduce
from handshake.kernels.compile import Program
from handshake.kernels.gpu import driver
from handshake.kernels.gpu.frame import Scan
from handshake.kernels.gpu.look_up import look_up_module
from handshake.kernels.gpu.scan import scan_module
from handshake.kernels.gpu.target import PtxTarget
from handshake.operators.query import Query
from handshake.plan.expr import Literal
from stand_in_gpu import StandIn

TEXT = """CREATE INPUT STREAM R (k int8, v int, x float, t timestamp(3)) TIMESTAMP BY t;
CREATE INPUT STREAM S (k int8, w int, c string, y float, t timestamp(3)) TIMESTAMP BY t;
"""
PAIRS = (
    "SELECT R.k, v, w, x, y, c FROM R [SIZE 2 SECONDS], S [SIZE 1 SECONDS] WHERE v BETWEEN w - 10 AND w + 10"
)


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    device = StandIn()
    monkeypatch.setattr(driver, "open_device", lambda: device)
    return device


def tables(rows: int, seed: int = 1, spread: int = 60) -> dict[str, pa.Table]:
    rng = np.random.default_rng(seed)

    def columns() -> tuple[pa.Array, pa.Array, pa.Array, pa.Array]:
        times = pa.array(np.sort(rng.integers(0, 3000, rows)), pa.timestamp("ms"))
        values = (rng.integers(0, high, rows) for high in (3, spread))
        x = spread * rng.random(rows)
        return (*(pa.array(v, kind) for v, kind in zip(values, (pa.int8(), pa.int32()), strict=True)),
                pa.array(x, pa.float32()), times)  # fmt: skip

    r, s = (
        dict(zip(names, columns(), strict=True)) for names in (("k", "v", "x", "t"), ("k", "w", "y", "t"))
    )
    return {
        "R": pa.table(r),
        "S": pa.table({**s, "c": pa.array(["a"] * rows)}).select(["k", "w", "c", "y", "t"]),
    }


def both(text: str, given: dict[str, pa.Table]) -> list[list[dict[str, Any]]]:
    """Return the results on the processor and on the GPU, in any order."""
    runs = (hs.run(TEXT + text, given, device=device)["result"] for device in ("cpu", "gpu"))
    return [sorted(found.to_pylist(), key=repr) for found in runs]


@pytest.mark.parametrize("seed", range(24))
def test_random_aggregates_agree_with_the_oracle(stand_in: StandIn, seed: int) -> None:
    check_query(random_query(seed), random_items(seed, 40), seed, TUNINGS[seed % 3])


def test_pairs_stay_on_the_device(stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    copied = []
    fetch = StandIn.fetch
    monkeypatch.setattr(StandIn, "fetch", lambda *args: (copied.append(args[1].nbytes), fetch(*args)))
    text = f"SELECT count(*) AS n, sum(v) AS s, max(x - y) AS m FROM ({PAIRS}) [HOP 100 ms SIZE 300 ms]"
    cpu, gpu = both(text, tables(3000))
    assert cpu == gpu
    assert sum(row["n"] for row in cpu) > 1_000_000
    assert sum(copied) < 500_000
    assert not stand_in.held


def test_large_windows_are_searched_by_index(stand_in: StandIn) -> None:
    bands = f"{PAIRS} AND x BETWEEN y - 3 AND y + 3"
    text = f"SELECT k, count(*) AS n, avg(w) AS a FROM ({bands}) [TUMBLE 1 s] GROUP BY k"
    with use_tuning(replace(SMALL, device_indexed_from=100, slice_rows=300)):
        given = tables(1500, spread=500)
        query, found = Query(TEXT + text, device="gpu"), []
        for name, table in given.items():
            for start in range(0, 1500, 300):
                found += query.push(name, table.slice(start, 300))["result"]
    core = next(step.operator.core for step in query._steps if hasattr(step.operator, "core"))
    assert core._look_ups.candidates > 0
    assert core.comparisons < 1500 * 1500 / 4
    rows = [row for batch in [*found, *query.finish()["result"]] for row in batch.to_pylist()]
    assert sorted(rows, key=repr) == both(text, given)[0]


@pytest.mark.parametrize("limit", ["_MOST_PAIRS", "_MOST_WORDS"])
def test_searches_are_cut_where_states_or_sums_would_not_fit(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    text = f"SELECT count(*) AS n, sum(v * w) AS s FROM ({PAIRS}) [TUMBLE 10 ms]"
    given = tables(300)
    launches = []
    for value in (getattr(reduce, limit), {"_MOST_PAIRS": 50, "_MOST_WORDS": 900}[limit]):
        before = stand_in.launches
        monkeypatch.setattr(reduce, limit, value)
        cpu, gpu = both(text, given)
        assert cpu == gpu
        launches.append(stand_in.launches - before)
    assert launches[1] > 3 * launches[0]


def test_more_states_than_a_gpu_holds_are_an_error(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reduce, "_MOST_WORDS", 8)
    text = f"SELECT v, count(*) AS n FROM ({PAIRS}) [TUMBLE 10 ms] GROUP BY v"
    with pytest.raises(HandshakeError, match=r"may match in \d+ panes and \d+ groups, and a GPU holds fewer"):
        hs.run(TEXT + text, tables(100), device="gpu")


COUNT, OVER = "SELECT count(*) AS n", f"FROM ({PAIRS}) [TUMBLE 1 s]"
REFUSED = {
    "SELECT v FROM R": "this query has no join",
    PAIRS: "here pairs are results, or go on",
    f"{PAIRS} INTO J; {COUNT} FROM J [TUMBLE 1 s] INTO N": "here pairs are results",
    f"{COUNT} FROM ({PAIRS}) [SIZE 3 TUPLES]": "the window above the join is SIZE 3 ADVANCE 1 TUPLES",
    f"{COUNT} FROM ({PAIRS}) [SESSION 3 s]": "the window above the join is SESSION 3 SECONDS",
    f"{COUNT} FROM ({PAIRS}) [TUMBLE 1 s OFFSET FIRST]": "the window above the join is .* FIRST",
    f"SELECT sum(x) AS n {OVER}": r"sum\(\) of float32 is for",
    f"SELECT max(c) AS n {OVER}": r"max\(\) of string is for",
    f"SELECT stddev(v) AS n {OVER}": r"stddev_samp\(\) of int32 is for",
    f"SELECT first(v) AS n {OVER}": r"first\(\) of int32 is for",
    f"SELECT median(v) AS n {OVER}": "aggregates with DISTINCT, and those that need all pairs",
    f"SELECT count(DISTINCT v) AS n {OVER}": "aggregates with DISTINCT, and those that need all pairs",
    f"{COUNT} {OVER} GROUP BY v + w": r"GROUP BY R.v \+ S.w reads both streams",
    f"SELECT max(EXP(x + y)) AS n {OVER}": r"a GPU cannot compute EXP\(",
    f"{COUNT} FROM (SELECT v FROM R [SIZE 3 TUPLES], S [SIZE 1 TIME] WHERE v = w) [TUMBLE 1 s]":
        "R and S have windows of tuples, or none",
    f"{COUNT} FROM (SELECT v FROM R [SIZE 1 TIME] LEFT JOIN S [SIZE 1 TIME] ON v = w) [TUMBLE 1 s]":
        "this is a left join of R and S",
    f"{COUNT} FROM ({PAIRS} AND EXP(x + y) > 1) [TUMBLE 1 s]":
        r"a GPU does not decide EXP\(.*\) > 1.* alone, and pairs are aggregated there",
}  # fmt: skip


@pytest.mark.parametrize("text", REFUSED)
def test_other_queries_are_refused_with_a_reason(stand_in: StandIn, text: str) -> None:
    with pytest.raises(UnsupportedError, match=f"{REFUSED[text]}.*device=.cpu."):
        hs.run(TEXT + text, tables(5), device="gpu")


def test_cores_are_refused_beside_a_gpu(stand_in: StandIn) -> None:
    with pytest.raises(UnsupportedError, match="cores is for joins on processor cores"):
        hs.run(TEXT + f"SELECT count(*) AS n {OVER}", tables(5), device="gpu", cores=2)


def test_the_command_line_and_explain_take_a_gpu(
    stand_in: StandIn, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    import pyarrow.parquet as pq

    text = TEXT + f"SELECT count(*) AS n {OVER}"
    (tmp_path / "query.sql").write_text(text)
    inputs = []
    for name, table in tables(50).items():
        pq.write_table(table, tmp_path / f"{name}.parquet")
        inputs += ["--input", f"{name}={tmp_path}/{name}.parquet"]
    out = run_here(capfd, "run", tmp_path / "query.sql", *inputs, "--output", "-", "--device", "gpu")
    assert (out.status, out.out) == (
        0,
        '"n"\n' + "".join(f"{row['n']}\n" for row in both(text.removeprefix(TEXT), tables(50))[0]),
    )
    assert stand_in.launches
    shown = hs.explain(text, device="gpu")
    assert "⋈ R 2 seconds, S 1 second: (v >= (w - 10)) AND (v <= (w + 10)), reduced on the GPU" in shown


@pytest.mark.parametrize("seed", range(6))
def test_random_aggregates_become_ptx(stand_in: StandIn, seed: int) -> None:
    query = Query(random_query(seed), device="gpu")
    spec = next(step.operator.core.spec for step in query._steps if hasattr(step.operator, "core"))
    query.close()
    columns, target = (spec.sides[0].columns, spec.sides[1].columns), PtxTarget((7, 0))
    for nullable in (False, True):
        guard = None if isinstance(spec.interior, Literal) else spec.interior
        program = Program(spec.boundary, columns, False, nullable, guard)
        for make in (scan_module, look_up_module):
            text = target.emit(make(Scan(program, 0, False, False, spec.reduction), target))
            assert "atom.global.add.u64" in text or "red.global.add.u64" in text
            for unwanted in ("fma.", "call", ".ftz", ".approx", "add.f32", "mul.f32", "add.f64", "mul.f64"):
                assert unwanted not in text, unwanted
