"""Exactly once, on a real cluster: processes are killed at random moments, and the sink is exact."""

from __future__ import annotations

import json
import math
import os
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

from handshake.plan import bind, parse
from handshake.plan.bind import bind_value
from handshake.testing.oracle import asof, nearest
from handshake.testing.oracle_values import TIME, rows
from handshake.windows import Duration, windows_of
from kill_tally import counted_kills
from spark_cluster import PATIENCE, Cluster, end, kill, running
from spark_driver import BEST, DELAY, ON, RANKING, TOLERANCE, WINDOW
from spark_kinds import expected_kind
from strategies import Case, expect, scope_of

ROWS = 24
"""Per file and side."""
SPACING = 5
"""Seconds of event time per file: windows and watermark are a few files long, so state expires, too."""
START = datetime(2024, 1, 1)
BEGINNING = time.time() - 10_000
VICTIMS = {
    "python worker": ("pyspark.daemon", "pyspark.daemon"),  # forked by the first of that name
    "executor": ("CoarseGrainedExecutorBackend",),
}
OFTEN = {"python worker": 7, "executor": 6, "node": 2, "driver": 3, "driver's JVM": 2}
"""Kills per run of the long test. A node is a worker with its executor and their Python processes."""
KEYS = {"left": ("l", "x"), "right": ("r", "a")}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with running(tmp_path_factory.mktemp("cluster")) as started:
        yield started


def drop_files(rng: Random, folder: Path, files: int) -> Case:
    """Write files for both sources; return the join of their rows, without a late row per file."""
    tables = {}
    for side, (key, value) in KEYS.items():
        (folder / side).mkdir(parents=True)
        rows = []
        for number in range(files):
            here = [_row(rng, key, value, number, number * ROWS + k) for k in range(ROWS)]
            late = [{key: -number, value: 7, "t": START - timedelta(hours=1)}] if number else []
            lines = "".join(json.dumps({**row, "t": row["t"].isoformat()}) + "\n" for row in [*here, *late])
            path = folder / side / f"{number:04}.json"
            path.write_text(lines)
            os.utime(path, (BEGINNING + number, BEGINNING + number))  # Spark takes files in this order
            rows += here
        tables[side] = pa.Table.from_pylist(
            rows, pa.schema([(key, pa.int64()), (value, pa.int32()), ("t", pa.timestamp("us"))])
        )
    return Case(tables["left"], tables["right"], ON, windows_of(WINDOW), "t", "t")


def _row(rng: Random, key: str, value: str, number: int, index: int) -> dict:
    """Return a row; times are out of order by less than the watermark's delay, so that no row is late."""
    at = START + timedelta(seconds=number * SPACING, milliseconds=rng.randrange(1000 * SPACING))
    return {key: index, value: rng.choice((rng.randint(0, 300), 7)), "t": at}


def pairs_of(case: Case, folder: Path, kind: str) -> tuple[Counter, Counter]:
    """Return the pairs in the sink, and those of the oracle that are final at the last watermark."""
    found = feather.read_table(folder / "pairs")
    clocks = [[row[TIME] for row in rows(table, "t")] for table in (case.left, case.right)]
    arrivals = [(side, k) for side, clock in zip(KEYS, clocks, strict=True) for k in range(len(clock))]
    mark = min(map(max, clocks)) - Duration.parse(DELAY).nanoseconds
    mark = mark // 10**6 * 10**6  # Spark's are in milliseconds
    best = kind in ("asof", "nearest")
    wanted = expected_best(case, kind, mark) if best else expected_kind(case, kind, arrivals, mark)
    return Counter(zip(found["l"].to_pylist(), found["r"].to_pylist(), strict=True)), Counter(wanted)


def late_rows(folder: Path) -> dict[str, list[int]]:
    """Return the late rows of each side that the join has kept, by file."""
    tables = {side: pq.read_table(folder / "late" / side) for side in KEYS}
    return {side: sorted(-key for key in tables[side][KEYS[side][0]].to_pylist()) for side in KEYS}


def expected_best(case: Case, kind: str, mark: int) -> list[tuple[int, int | None]]:
    """Return the left rows that are final at a watermark, with their best matches."""
    left, right = rows(case.left, "t"), rows(case.right, "t")
    scope = scope_of(case.left.schema, case.right.schema)
    if kind == "asof":
        wait = Duration.parse(TOLERANCE).nanoseconds
        found = asof(left, right, bind(parse(ON), scope), "forward", wait, True)
        final = [i for i, row in enumerate(left) if row[TIME] + wait < mark]
        return [(i, found[i]) for i in final]
    ranked = nearest(left, right, expect(case).pairs, bind_value(parse(RANKING), scope), BEST)
    final = [i for i, row in enumerate(left) if row[TIME] + Duration.parse(WINDOW).nanoseconds <= mark]
    return [(i, other) for i in final for other, _ in ranked.get(i, [(None, None)])]


def count_commits(folder: Path) -> int:
    """Count the micro-batches that are done."""
    found = [int(p.name) for p in (folder / "checkpoint" / "commits").glob("*") if p.name.isdigit()]
    return max(found, default=-1) + 1


class Run:
    """A driver that joins a folder to the end, however often it must be started again."""

    def __init__(self, cluster: Cluster, folder: Path, kind: str, state: str = "directory") -> None:
        self.cluster, self.folder, self.kind, self.state = cluster, folder, kind, state
        self.process = self._start()

    def _start(self) -> subprocess.Popen:
        return self.cluster.driver(self.folder, f"driver-{self.folder.name}", self.kind, self.state)

    def strike(self, victim: str, rng: Random, after: int) -> None:
        """Kill a process at a random moment after the given number of micro-batches."""
        self._until(lambda: count_commits(self.folder) >= after or self.process.poll() is not None)
        pause = rng.uniform(0, 2)
        time.sleep(pause)  # the random moment under test
        self._check_runs()
        if victim == "driver":
            end(self.process)
            self.process = self._start()
        elif victim == "driver's JVM":
            self._until(lambda: self.cluster.jvm_of(self.process))
            kill(self.cluster.jvm_of(self.process)[0])
            self._until(lambda: self.process.poll() is not None)
            assert self.process.returncode != 0
            self.process = self._start()
        elif victim == "node":
            self.cluster.restart_worker(rng.randrange(self.cluster.workers))
        else:
            self._until(lambda: self.cluster.find(*VICTIMS[victim]))
            kill(rng.choice(sorted(self.cluster.find(*VICTIMS[victim]))))
        print(f"killed the {victim} {pause:.3f} s after batch {after}; {count_commits(self.folder)} are done")

    def finish(self) -> None:
        self._until(lambda: self.process.poll() is not None)
        assert self.process.returncode == 0, self._log()

    def _until(self, reached: Callable[[], object]) -> None:
        """Wait as long as micro-batches go on; time in which all of this is stopped does not count."""
        done, waited, last = -1, 0.0, time.monotonic()
        while not reached():
            if count_commits(self.folder) != done:
                done, waited = count_commits(self.folder), 0.0
            assert waited < PATIENCE, "nothing moves\n" + self._log()
            time.sleep(0.02)  # between two looks
            before, last = last, time.monotonic()
            waited += min(last - before, 1.0)

    def _check_runs(self) -> None:
        assert self.process.poll() is None, "the driver ended before its time\n" + self._log()

    def _log(self) -> str:
        log = self.cluster.folder / f"driver-{self.folder.name}.log"
        return log.read_text(errors="replace")[-6000:]


def check_kills(
    cluster: Cluster,
    folder: Path,
    victims: list[str],
    seed: int,
    apart: int = 3,
    kind: str = "inner",
    state: str = "directory",
) -> None:
    """Kill one process after the other while a join runs; then the sink must be exact."""
    print(f"seed {seed}, {kind}")
    rng = Random(f"kills {seed}")
    files = apart * (len(victims) + 1) + 2
    case = drop_files(rng, folder, files)
    run = Run(cluster, folder, kind, state)
    with counted_kills(cluster="processes", kind=kind, state=state, seed=seed) as kills:
        for number, victim in enumerate(victims, 1):
            run.strike(victim, rng, apart * number - rng.randrange(apart))
            kills[victim] += 1
        run.finish()
        found, wanted = pairs_of(case, folder, kind)
        assert found == wanted, (seed, "missing", wanted - found, "too many", found - wanted)
        assert wanted
        if "files" in state:
            assert late_rows(folder) == {side: [*range(1, files)] for side in KEYS}


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_killed_driver_leaves_no_trace_in_the_sink(cluster, tmp_path):
    check_kills(cluster, tmp_path, ["driver"], seed=4, apart=2)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("state", ["directory", "store"])
@pytest.mark.parametrize("kind", ["inner", "full", "left_semi"])
def test_kills_leave_no_trace_in_the_sink(cluster, tmp_path, kind, state):
    check_kills(cluster, tmp_path, ["python worker", "executor", "driver"], seed=4, kind=kind, state=state)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("state", ["files", "store files"])
@pytest.mark.parametrize("kind", ["inner", "full"])
def test_kills_leave_no_trace_in_files_of_results_and_late_rows(cluster, tmp_path, kind, state):
    victims = ["python worker", "driver", "executor", "driver"]
    check_kills(cluster, tmp_path, victims, seed=5, kind=kind, state=state)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["left", "left_anti", "asof", "nearest"])
def test_kills_leave_no_trace_of_rows_that_wait(cluster, tmp_path, kind):
    check_kills(cluster, tmp_path, ["python worker", "executor", "driver"], seed=4, kind=kind)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("state", ["directory", "store"])
@pytest.mark.parametrize("seed", range(8))
def test_three_hundred_kills(cluster, tmp_path, seed, state):
    """Kill twenty processes of a join, one in each micro-batch on average."""
    victims = [victim for victim, number in OFTEN.items() for _ in range(number)]
    Random(seed).shuffle(victims)
    kind = ("inner", "full", "left_anti", "asof", "left", "left_semi", "right", "nearest")[seed]
    if kind == "nearest" and state == "store":
        kind = "inner"  # nearest joins keep a directory
    check_kills(cluster, tmp_path, victims, seed, apart=1, kind=kind, state=state)


# Kills and changes


CHANGES = [
    {"window": "45 seconds"},
    {"window": "9 seconds", "segments": 3},
    {"on": "x = a", "segments": 1},
    {"on": "x BETWEEN a - 20 AND a + 20", "window": "30 seconds"},
]
MATCH = {
    ON: lambda x, a: abs(x - a) <= 10,
    "x = a": lambda x, a: x == a,
    "x BETWEEN a - 20 AND a + 20": lambda x, a: abs(x - a) <= 20,
}


def _note_offsets(folder: Path, known: dict[int, tuple[int, int]]) -> None:
    """Note the watermark in microseconds and the number of files so far of each micro-batch."""
    for path in (folder / "checkpoint" / "offsets").glob("[0-9]*"):
        if path.name.isdigit() and int(path.name) not in known:
            with suppress(FileNotFoundError):  # Spark removes old ones
                _, facts, *sources = path.read_text().splitlines()
                files = max(json.loads(each)["logOffset"] for each in sources if each != "-") + 1
                known[int(path.name)] = (json.loads(facts)["batchWatermarkMs"] * 1000, files)


def changed_pairs(case: Case, plans: list[tuple[int, int, dict]]) -> Counter:
    """Return the pairs by a double loop.

    Args:
        case: All rows.
        plans: Per definition of the join, the first file, the watermark then, and the options.
    """
    left, right = (table.to_pylist() for table in (case.left, case.right))
    for rows_of_side in (left, right):
        for k, row in enumerate(rows_of_side):
            row["file"], row["at"] = k // ROWS, round(row["t"].timestamp() * 1e6)
            row["plan"] = sum(1 for first, _, _ in plans if k // ROWS >= first) - 1
    return Counter((a["l"], b["r"]) for a in left for b in right if _is_pair(a, b, plans))


def _is_pair(a: dict, b: dict, plans: list[tuple[int, int, dict]]) -> bool:
    early, late = sorted((a, b), key=lambda row: row["file"])
    options = plans[late["plan"]][2]
    size = Duration.parse(options["window"]).nanoseconds // 1000
    if not MATCH[options["on"]](a["x"], b["a"]) or abs(a["at"] - b["at"]) >= size:
        return False
    for k in range(early["plan"] + 1, late["plan"] + 1):
        before = Duration.parse(plans[k - 1][2]["window"]).nanoseconds // 1000
        if early["at"] <= plans[k][1] - before:
            return False  # it had left its window when the change came
    return True


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(4))
def test_a_driver_is_killed_and_comes_back_changed(cluster, tmp_path, seed):
    """Kill the driver at random moments; each time it goes on with another definition of the join."""
    rng = Random(f"changes {seed}")
    case = drop_files(rng, tmp_path, 14)
    options = {"on": ON, "window": WINDOW}
    begun: list[tuple[int, dict]] = [(0, dict(options))]
    offsets: dict[int, tuple[int, int]] = {}
    run = Run(cluster, tmp_path, "inner")

    def is_done(after: float) -> bool:
        _note_offsets(tmp_path, offsets)
        return count_commits(tmp_path) >= after or run.process.poll() is not None

    for number, change in enumerate(rng.sample(CHANGES, 2), 1):
        run._until(lambda after=4 * number: is_done(after))
        time.sleep(rng.uniform(0, 2))  # the random moment under test
        run._check_runs()
        end(run.process)
        options |= change
        (tmp_path / "changes.json").write_text(json.dumps(options))
        begun.append((count_commits(tmp_path), dict(options)))
        run.process = run._start()
    run._until(lambda: is_done(math.inf))
    run.finish()
    plans = []
    for first, chosen in begun:
        batch = min(n for n in offsets if n >= first and (n == 0 or offsets[n][1] > offsets[n - 1][1]))
        plans.append((offsets[batch - 1][1] if batch else 0, offsets[batch][0], chosen))
    found = feather.read_table(tmp_path / "pairs")
    pairs = Counter(zip(found["l"].to_pylist(), found["r"].to_pylist(), strict=True))
    wanted = changed_pairs(case, plans)
    assert pairs == wanted, (seed, plans, "missing", wanted - pairs, "too many", pairs - wanted)
    assert wanted
