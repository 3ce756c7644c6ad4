"""Benchmarks run and end with the line that scripts read; what they say is for people to judge.

Work is counted, not timed, so what is said of it is checked.
"""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as xml
from functools import cache

import pytest

from handshake.cli.app import run as command
from handshake.errors import HandshakeError, InputError, UnsupportedError
from handshake_bench import (
    asof,
    batch,
    batches,
    kinds,
    latency,
    mway,
    overload,
    report,
    scaling,
    scan,
    search,
    sessions,
    simd,
    sustained,
    throughput,
    windows,
    work,
)
from handshake_bench.child import in_child
from handshake_bench.paced import feed
from handshake_bench.published import outputs
from handshake_bench.simulated import ARRANGEMENTS, Counts
from handshake_bench.workload import Streams


def result(capsys) -> dict[str, str]:
    lines = capsys.readouterr().out.strip().splitlines()
    assert lines[-1].startswith("RESULT ")
    return dict(re.findall(r"(\w+)=(\S+)", lines[-1]))


def test_scan(capsys):
    scan.run(seconds=0.2)
    figures = result(capsys)
    assert {"scan_vs_c", "general_vs_c"} <= figures.keys()


def test_sessions(capsys):
    sessions.run(rows=3000, groups=10, rounds=1)
    last = capsys.readouterr().out.splitlines()[-1]
    assert re.match(r"RESULT rows=3000 groups=10 states_mrps=\S+ states_processor_mrps=\S+ rows_mrps=", last)


def test_batch_agrees_with_polars_and_duckdb(capsys):
    batch.run(rows=3000, limit=60)
    figures = result(capsys)
    assert float(figures["vs_polars"]) > 0
    assert figures["polars_ended"] == figures["duckdb_ended"] == "yes"


@pytest.mark.parametrize(("method", "algorithm"), [("scan", "low_latency"), ("band", "three_step")])
def test_sustained(capsys, method, algorithm):
    sustained.run(method=method, algorithm=algorithm, window="4 s", rate=2000, seconds=1)
    figures = result(capsys)
    assert (figures["method"], figures["algorithm"]) == (method, algorithm)
    assert float(figures["load"]) > 0


def test_asof_agrees_with_polars_and_duckdb(capsys):
    asof.run(rows=2000, keys=10, band_rows=2000, rounds=1, stream_rows=20_000)
    assert {"vs_polars", "vs_duckdb", "band_vs_best", "stream_rate"} <= result(capsys).keys()


def test_kinds(capsys):
    kinds.run(window="4 s", rate=2000, seconds=1)
    figures = result(capsys)
    assert {"left", "full", "left_semi", "left_anti", "left_state"} <= figures.keys()
    assert figures["inner"] == figures["inner_state"] == "1"


def test_highest_rates_of_kinds(capsys):
    kinds.run(window="1 s", rate=2000, seconds=0.1, batch=0.1, sustained=True)
    figures = result(capsys)
    assert figures["inner"] == "1"
    assert {"left", "full", "left_semi", "left_anti", "inner_load", "left_load", "rate"} <= figures.keys()


# What is kept, and made of what was kept.

KEPT = {
    "simd": ["simd.svg"],
    "throughput": ["throughput.svg"],
    "overload": ["overload_figure_10.svg", "overload_figure_11.svg"],
    "batches": ["batches.svg"],
    "windows": ["windows.svg"],
    "mway": ["mway.svg"],
    "latency": ["latency.svg"],
    "work": ["work.svg"],
    "scaling": ["scaling.svg", "scaling_work.svg"],
}


def point(kind: dict, algorithm: str, cores: int) -> dict:
    return {
        **kind,
        "algorithm": algorithm,
        "cores": cores,
        "rate": 1000.0 * cores,
        "samples": [(1000.0, 0.95)],
    }


RATES = {
    "counts": [1, 2], "scale": 1.0, "skipped": [],
    "points": [
        point({"minutes": minutes}, algorithm, cores)
        for minutes in (15, 10) for algorithm in throughput.ARRANGEMENTS for cores in (1, 2)
    ],
}  # fmt: skip
SHARES = {
    "counts": [1, 2], "ticks": 4, "batch": 8,
    "points": [
        {"input": name, "arrangement": arrangement, "cores": cores,
         **{what: {"mean": 5.0, "shares": (0.95, 1.2)} for what in work.WHAT}}
        for name in work.INPUTS for arrangement in ARRANGEMENTS for cores in (1, 2)
    ],
}  # fmt: skip
CURVE = [{"rate": 1000.0 * n, "output": 7000.0, "dropped": 300.0 * n, "share": 0.3 * (n > 1)} for n in (1, 2)]
EARLIER = {
    "simd": {
        kernel: {"comparisons_per_s": rate, "packed_comparisons": 0, "results": 7,
                 "rates": [(1, r), (2, 2 * r)]}
        for kernel, rate, r in (("scalar", 1e9, 800.0), ("vector", 12e9, 2400.0))
    } | {"window": 900.0},
    "throughput": RATES,
    "overload": {
        "window": 900.0,
        "series": [
            {"kernel": kernel, "cores": cores, "capacity": 1500.0, "points": CURVE}
            for kernel, cores in (("vector", 1), ("vector", 2), ("scalar", 2))
        ],
    },
    "batches": {"cores": 2, "series": [{"window": 60.0, "points": [(128, 9.0), (256, 5.0), (512, 4.5)]}]},
    "windows": {
        "cores": 2,
        "series": [
            {"window": 60.0, "points": [(2048, 9.0), (4096, 6.0)], "chosen": 4096, "at_choice": 6.6},
        ],
    },
    "mway": {
        "held": 2000, "batch": 256,
        "points": [
            {"streams": 3, "cores": cores, "tuples_per_s": 9e4 / slower, "results": 8, "seconds": 2.0,
             "order": order, **({"gain": slower} if slower > 1 else {})}
            for cores, order, slower in ((1, "best", 1.0), (2, "best", 0.5), (1, "worst", 30.0))
        ],
    },
    "latency": {
        "window": 900.0, "cores": 2, "tick": 0.002,
        "points": [
            {"algorithm": name, "method": method, "window": 900.0, "sustained": 3000.0, "rate": 1500.0,
             "results": 10, "p50": 0.001, "p90": 0.002, "p99": 0.003, "longest": 0.004,
             "buckets": [(0.001, 6), (0.003, 4)]}
            for name, method in latency.RUNS
        ],
    },
    "work": SHARES,
    "scaling": {"throughput": RATES, "work": SHARES, "seconds": 1.0},
}  # fmt: skip
EXPECTED = {
    "simd": {"kernel_gain": "12", "work_gain": "9"},
    "throughput": {"handshake_15min": "2000", "handshake_speedup": "4"},
    "overload": {"no_drop_vector": "1000", "output_vs_scalar": "1"},
    "batches": {"flat_from_bytes": "256", "gain": "2"},
    "windows": {"choice_vs_best_60s": "1.1"},
    "mway": {"streams_3_cores_2": "180000", "streams_3_cores_1_worst": "3000", "order_gain_3": "30"},
    "latency": {"low_latency_p50_ms": "1", "low_latency_band_p50_ms": "1", "handshake_p99_ms": "3"},
    "work": {"cell_comparisons": "1.2"},
    "scaling": {"cell_15min": "2000", "work_low_latency_messages": "1.2"},
}


@pytest.fixture
def earlier(tmp_path):
    def write_results(name: str) -> str:
        path = tmp_path / f"kept_{name}.json"
        data = {"benchmark": name, "machine": "a machine", "quick": False, **EARLIER[name]}
        path.write_text(json.dumps(data))
        return str(path)

    return write_results


@pytest.mark.parametrize("name", KEPT)
def test_tables_and_plots_are_made_of_an_earlier_run(capsys, tmp_path, earlier, name):
    out = tmp_path / "out"
    assert command(["bench", name, "--from", earlier(name), "--out", str(out)]) == 0
    figures = result(capsys)
    assert EXPECTED[name].items() <= figures.items()
    text = (out / f"{name}.txt").read_text()
    assert "a machine" in text
    assert text.strip().splitlines()[-1].startswith("RESULT ")
    for picture in KEPT[name]:
        assert xml.parse(out / picture).getroot().tag.endswith("svg")


def test_pictures_are_the_same_in_every_run(tmp_path, earlier):
    source = earlier("throughput")
    for folder in ("a", "b"):
        throughput.run(out=str(tmp_path / folder), source=source)
    first, second = ((tmp_path / folder / "throughput.svg").read_bytes() for folder in ("a", "b"))
    assert first == second


def test_what_was_kept_can_be_shown_again(tmp_path, earlier):
    throughput.run(out=str(tmp_path / "a"), source=earlier("throughput"))
    throughput.run(out=str(tmp_path / "b"), source=str(tmp_path / "a" / "throughput.json"))
    first, second = ((tmp_path / folder / "throughput.txt").read_text() for folder in ("a", "b"))
    assert first == second


def test_without_matplotlib_figures_are_kept_all_the_same(capsys, tmp_path, earlier, monkeypatch):
    monkeypatch.setattr(report, "find_spec", lambda name: None)
    throughput.run(out=str(tmp_path / "out"), source=earlier("throughput"))
    assert "--from" in capsys.readouterr().out
    assert {p.name for p in (tmp_path / "out").iterdir()} == {"throughput.txt", "throughput.json"}


def test_a_file_of_another_benchmark_is_refused(earlier):
    with pytest.raises(InputError, match=r"is from benchmark 'work', not 'simd'; give the simd\.json"):
        simd.run(source=earlier("work"))


@pytest.mark.parametrize("text", ["[1]", "no json"])
def test_a_file_that_is_none_is_refused(tmp_path, text):
    path = tmp_path / "file.json"
    path.write_text(text)
    with pytest.raises(InputError, match=re.escape(str(path))):
        work.run(source=str(path))


# Options.


@pytest.mark.parametrize("text", ["0,1", "a", "", "1,,2"])
def test_cores_must_be_numbers(text):
    with pytest.raises(UnsupportedError, match="whole numbers from 1 up"):
        throughput.core_counts(text)
    with pytest.raises(UnsupportedError, match="whole numbers from 1 up"):
        work.run(text)


def test_more_cores_than_there_are_cannot_be_measured():
    with pytest.raises(UnsupportedError, match="100000 cores cannot be measured: this process may use"):
        throughput.core_counts("1,100000")


def test_by_default_all_cores_are_measured(monkeypatch):
    monkeypatch.setattr(throughput, "usable_cores", lambda: 6)
    assert throughput.core_counts(None) == [1, 2, 4, 6]


# Measurements, small.


def test_kernels_without_vectors_find_the_same_and_have_none():
    scalar = in_child("simd:kernel_figures", scalar=True, seconds=0.01)
    vector = in_child("simd:kernel_figures", scalar=False, seconds=0.01)
    assert scalar["results"] == vector["results"] > 0
    assert scalar["packed_comparisons"] == 0 < vector["packed_comparisons"]


def test_a_measurement_that_fails_says_so():
    with pytest.raises(HandshakeError, match="'simd:no_such' failed"):
        in_child("simd:no_such")


def test_a_search_ends_at_a_rate_that_was_sustained():
    rate, samples = search.highest(search.band_plan("three_step", 1, 2.0), 2.0, 500.0, 0.2, tries=2)
    assert samples[0].rate == 500
    assert rate == max((s.rate for s in samples if s.load <= 1), default=0)


@pytest.mark.parametrize("algorithm", ["cell", pytest.param("low_latency", marks=pytest.mark.soak)])
def test_paced_streams_lose_nothing_when_there_is_time(algorithm):
    run = feed(search.band_plan(algorithm, 2, 2.0), 1000.0, 2.0, 0.5, tick=0.05)
    before = 2 * (2000 + 1000)  # full windows, and a second more before the clock runs
    assert run.metrics.left_rows + run.metrics.right_rows - before <= run.offered == 1000
    assert run.shed == 0
    assert run.results > 0


def test_paced_streams_shed_what_finds_no_room():
    run = feed(search.band_plan("cell", 1, 20.0, room=1), 200_000.0, 20.0, 0.2, tick=0.01, held=1000.0)
    metrics = run.metrics
    assert metrics.left_shed + metrics.right_shed >= run.shed > 0


def test_outputs_by_the_formula():
    assert outputs(1000.0, 900.0) == pytest.approx(7200)


def test_streams_are_the_same_in_every_run():
    first, second = (Streams(100.0).left(0, 50) for _ in range(2))
    assert first.equals(second)
    assert set(map(len, first.column("z").to_pylist())) == {20}


@pytest.mark.parametrize("module", [windows, pytest.param(batches, marks=pytest.mark.soak)])
def test_time_per_tuple(capsys, module):
    module.run(quick=True)
    assert all(float(value) > 0 for value in result(capsys).values())


def test_scaling_stops_when_its_time_is_up(capsys, tmp_path):
    scaling.run(cores="1", minutes=1e-3, quick=True, out=str(tmp_path))
    data = json.loads((tmp_path / "scaling.json").read_text())
    assert data["throughput"]["points"] == []
    assert len(data["throughput"]["skipped"]) == 6


@pytest.mark.soak
def test_several_streams_and_their_orders(capsys, monkeypatch):
    monkeypatch.setattr(mway, "core_counts", lambda text: [1, 2])
    mway.run(quick=True)
    figures = result(capsys)
    assert {"streams_2_cores_1", "streams_4_cores_2", "streams_4_cores_1_worst"} <= figures.keys()
    assert float(figures["order_gain_4"]) > 1


@pytest.mark.soak
def test_overload_and_its_children(monkeypatch, capsys):
    monkeypatch.setattr(overload, "in_child", lambda target, scalar, **options: inline(target, **options))
    monkeypatch.setattr(overload, "core_counts", lambda text: [1])
    overload.run(quick=True)
    assert float(result(capsys)["output_vs_one_core"]) == 1


def inline(target: str, **options):
    return getattr(overload, target.split(":")[1])(**options)


@pytest.mark.soak
def test_latency(capsys):
    latency.run(quick=True)
    figures = result(capsys)
    names = ("low_latency", "low_latency_band", "cell", "handshake")
    assert all(float(figures[f"{name}_p99_ms"]) >= float(figures[f"{name}_p50_ms"]) for name in names)


# Work per core: counts, the same on every machine.


@cache
def counts_of(arrangement: str, cores: int, name: str) -> Counts:
    return work.count_work(arrangement, cores, name, ticks=64, batch=8192)


def shares(arrangement: str, cores: int, name: str, what: str) -> tuple[float, float]:
    values = getattr(counts_of(arrangement, cores, name), what)
    mean = sum(values) / cores
    return min(values) / mean, max(values) / mean


SCANNED = ("uniform", "bursty", "uneven", "pressed")
CASES = [
    *((arrangement, 8, name) for arrangement in ARRANGEMENTS for name in SCANNED),
    *(pytest.param(a, 2, name, marks=pytest.mark.soak) for a in ARRANGEMENTS for name in SCANNED),
    *((arrangement, 4, "skewed") for arrangement in ARRANGEMENTS),
]


def within(arrangement: str, cores: int, name: str, what: str) -> bool:
    least, most = shares(arrangement, cores, name, what)
    return least >= 0.9 and most <= 1.1


@pytest.mark.parametrize(("arrangement", "cores", "name"), CASES)
def test_comparisons_of_a_core_are_within_a_tenth_of_its_share(arrangement, cores, name):
    assert within(arrangement, cores, name, "comparisons")


@pytest.mark.parametrize(("arrangement", "cores", "name"), CASES)
@pytest.mark.parametrize("what", ["messages", "tuples"])
def test_a_core_is_handed_its_share_within_a_tenth(arrangement, cores, name, what):
    assert within(arrangement, cores, name, what)


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("name", SCANNED)
def test_sixty_four_cores_of_a_line_do_their_share_within_a_tenth(name):
    counts = work.count_work("handshake", 64, name, work.TICKS, work.BATCH)
    for values in (counts.comparisons, counts.messages, counts.tuples):
        mean = sum(values) / 64
        assert 0.9 * mean <= min(values)
        assert max(values) <= 1.1 * mean


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
def test_cores_share_the_work_and_do_not_add_to_it(arrangement):
    one, four = (sum(work.count_work(arrangement, n, "uniform", 64, 8192).comparisons) for n in (1, 4))
    assert four <= 1.1 * one


def test_the_cost_of_a_live_page_is_measured(capsys):
    pytest.importorskip("starlette")
    assert command(["bench", "live", "--pairs", "1", "--window", "2000 tuples"]) == 0
    figures = dict(pair.split("=") for pair in capsys.readouterr().out.splitlines()[-1].split()[1:])
    assert figures.keys() >= {"cost", "noise", "processor_cost", "processor_noise", "updates", "update_ms"}
    assert float(figures["updates"]) > 1


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
def test_counts_are_the_same_in_every_run(arrangement):
    first, second = (work.count_work(arrangement, 4, "bursty", 32, 2048) for _ in range(2))
    assert first == second
