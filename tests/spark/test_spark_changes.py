"""Changes of a join that has state: what comes after the change is what a double loop defines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from datetime import datetime
from pathlib import Path
from random import Random
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import handshake
from handshake.engines.spark.failures import reason
from handshake.engines.spark.joins.definition import Definition
from handshake.engines.spark.state.manifest import Manifest
from handshake.engines.spark.state.reading import read_state
from handshake.engines.spark.state.store import StateError, Store
from handshake.kinds import KINDS
from handshake.options import OPTIONS, Options
from handshake.plan.parse import parse
from handshake.windows import windows_of
from spark_session import Feed, Sink
from spark_steps import Cluster
from spark_streams import RETAIN, SCHEMAS, SECOND

BAND = "x BETWEEN a - 10 AND a + 10"
Match = Callable[[int | None, int | None], bool]
PREDICATES: dict[str, Match] = {
    BAND: lambda x, a: x is not None and a is not None and abs(x - a) <= 10,
    "x BETWEEN a - 25 AND a + 25": lambda x, a: x is not None and a is not None and abs(x - a) <= 25,
    "x = a": lambda x, a: x is not None and x == a,
    "x % 7 = a % 7": lambda x, a: x is not None and a is not None and x % 7 == a % 7,
    "x < a - 150": lambda x, a: x is not None and a is not None and x < a - 150,
}


@dataclass(frozen=True)
class Row:
    """A row that is not late: its micro-batch, its number, its value and its stamps."""

    batch: int
    number: int
    value: int | None
    time: int


class Story:
    """A join whose definition changes, micro-batch by micro-batch, and what it should give."""

    def __init__(self, rng: Random, root: Path, on: str, window: str, **changes: Any) -> None:
        self.rng, self.on, self.window = rng, on, window
        definition = Definition(
            *SCHEMAS, parse(on), windows_of(window), ("t", "u"), "_right", None,
            **{"segments": 2, "partitions": 2, "root": str(root), "marker": "", "retain": RETAIN, **changes},
        )  # fmt: skip
        self.cluster = Cluster(definition, Store(str(root)))
        self.rows: tuple[list[Row], list[Row]] = ([], [])
        self.marks: list[int] = []
        self.plans: list[tuple[str, str]] = []
        self.results: list[pa.RecordBatch] = []

    def change(self, on: str | None = None, window: str | None = None, **changes: Any) -> None:
        """Restart the query with another definition."""
        self.on, self.window = on or self.on, window or self.window
        changes |= {
            "on": parse(self.on),
            "windows": windows_of(self.window),
            "identity": str(self.rng.random()),
        }
        now = self.cluster.definition
        own = [field.name for field in fields(now)]
        options = {name: changes.pop(name) for name in OPTIONS if name in changes and name not in own}
        self.cluster.change(replace(now, options=replace(now.options, **options), **changes))

    def run(self, batches: int, size: int = 5, again: tuple[int, ...] = ()) -> None:
        """Run micro-batches; their rows are out of order, and some are late."""
        for _ in range(batches):
            self.skip(1)
            number = len(self.marks) - 1
            parts = tuple([self._table(side, number, self.rng.randint(1, size))] for side in (0, 1))
            self.results += self.cluster.run(parts, again)

    def skip(self, batches: int) -> None:
        """Let the watermark move on as if there had been micro-batches."""
        for _ in range(batches):
            self.marks.append(max((len(self.marks) - 1) * SECOND - SECOND // 2, 0))
            self.plans.append((self.on, self.window))
        self.cluster.watermark = self.marks[-1]

    def _table(self, side: int, number: int, size: int) -> pa.Table:
        schema = (self.cluster.definition.left, self.cluster.definition.right)[side]
        start = sum(1 for _ in self.rows[side]) + 1000 * number
        rows = []
        for k in range(size):
            at = max(number * SECOND + self.rng.randint(-2 * SECOND, SECOND), 0)
            value = self.rng.choice((self.rng.randint(0, 300), self.rng.randint(0, 300), 7, None))
            rows.append((start + k, value, at, "new")[: len(schema)])
            if at >= self.marks[-1] or "tuples" in self.window:
                self.rows[side].append(Row(number, start + k, value, at))
        return pa.Table.from_arrays(
            [pa.array(c, f.type) for c, f in zip(zip(*rows, strict=True), schema, strict=True)], schema=schema
        )

    def pairs(self) -> Counter[tuple[int, int]]:
        """Return all pairs that the semantics of changes define."""
        found = ((left, right) for left in self.rows[0] for right in self.rows[1])
        return Counter((left.number, right.number) for left, right in found if self._joins(left, right))

    def _joins(self, left: Row, right: Row) -> bool:
        early, late = sorted((left.batch, right.batch))
        on, window = self.plans[late]
        size = windows_of(window).left.size // 1000
        if not PREDICATES[on](left.value, right.value) or abs(left.time - right.time) >= size:
            return False
        held = left if left.batch < right.batch else right
        changes = [b for b in range(early + 1, late + 1) if self.plans[b] != self.plans[b - 1]]
        for change in changes if early < late else ():
            before = windows_of(self.plans[change - 1][1]).left.size // 1000
            if held.time <= self.marks[change] - before:
                return False  # it had left its window when the change came
        return True

    def found_pairs(self) -> Counter[tuple[int | None, int | None]]:
        pairs: Counter[tuple[int | None, int | None]] = Counter()
        for batch in self.results:
            names, nothing = batch.schema.names, [None] * batch.num_rows
            sides = [batch.column(n).to_pylist() if n in names else nothing for n in "lr"]
            pairs.update(zip(*sides, strict=True))
        return pairs


CHANGES: dict[str, dict[str, Any]] = {
    "longer": {"window": "9 seconds"},
    "shorter": {"window": "2 seconds"},
    "wider": {"on": "x BETWEEN a - 25 AND a + 25"},
    "hash": {"on": "x = a"},
    "computed": {"on": "x % 7 = a % 7"},
    "all": {"on": "x < a - 150"},
    "more segments": {"segments": 5},
    "one segment": {"segments": 1},
    "partitions": {"partitions": 3},
    "scan": {"method": "scan"},
    "together": {"on": "x = a", "window": "6 seconds", "segments": 3},
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_join_gives_what_the_double_loop_defines(name: str, tmp_path: Path) -> None:
    story = Story(Random(name), tmp_path, BAND, "4 seconds")
    story.run(12)
    story.change(**CHANGES[name])
    story.run(1, again=(0,))
    story.run(11)
    assert story.found_pairs() == story.pairs()
    assert len(story.pairs()) > 20


@pytest.mark.parametrize(
    "seed", [*range(3), *(pytest.param(n, marks=pytest.mark.soak) for n in range(3, 60))]
)
def test_many_changes_one_after_the_other(seed: int, tmp_path: Path) -> None:
    """Also back to an earlier definition, and with files pruned in between."""
    rng = Random(f"changes {seed}")
    story = Story(rng, tmp_path, rng.choice([*PREDICATES]), "4 seconds", segments=rng.randint(1, 4))
    for _ in range(rng.randint(2, 6)):
        story.run(rng.randint(1, 9), size=rng.choice((3, 12)))
        directory = read_state(str(tmp_path))
        directory.prune(directory.orphans())
        changed = {
            "on": rng.choice([*PREDICATES]), "window": f"{rng.randint(1, 9)} seconds",
            "segments": rng.randint(1, 5), "partitions": rng.randint(1, 4),
        }  # fmt: skip
        chosen = rng.sample([*changed], rng.randint(1, 3))
        story.change(**{key: changed[key] for key in chosen})
    story.run(6)
    assert story.found_pairs() == story.pairs()


@pytest.mark.parametrize("kind", ["left", "right", "full", "left_semi", "left_anti"])
@pytest.mark.parametrize("name", ["longer", "shorter", "more segments", "one segment", "partitions"])
def test_outer_joins_change_too(kind: str, name: str, tmp_path: Path) -> None:
    """Rows without a match come once, when no match can come any more by the window that counts then."""
    story = Story(Random(f"{kind} {name}"), tmp_path, BAND, "4 seconds", kind=KINDS[kind])
    story.run(12, size=3)
    story.change(**CHANGES[name])
    story.run(12, size=3)
    story.cluster.watermark = 10**9 * SECOND  # all rows are final now
    story.results += story.cluster.tick()
    pairs = story.pairs()
    met = [{pair[side] for pair in pairs} for side in (0, 1)]
    expected: Counter[tuple[int | None, int | None]] = Counter()
    if kind in ("left", "right", "full"):
        expected.update(pairs)
    if kind == "left_semi":
        expected.update((n, None) for n in met[0])
    for side in (0, 1):
        if KINDS[kind].preserved[side]:
            alone = [row.number for row in story.rows[side] if row.number not in met[side]]
            expected.update((n, None) if side == 0 else (None, n) for n in alone)
    assert story.found_pairs() == expected


def test_held_rows_have_null_in_a_new_column(tmp_path: Path) -> None:
    story = Story(Random("column"), tmp_path, BAND, "4 seconds")
    story.run(6)
    story.change(left=SCHEMAS[0].append(pa.field("note", pa.string())))
    changed = len(story.results)
    story.run(1, again=(0, 1))
    story.run(5)
    assert story.found_pairs() == story.pairs()
    batch_of = {row.number: row.batch for row in story.rows[0]}
    rows = [row for batch in story.results[changed:] for row in batch.to_pylist()]
    assert {(batch_of[row["l"]] >= 6, row["note"]) for row in rows} == {(False, None), (True, "new")}
    story.change(left=SCHEMAS[0])  # and away again
    story.run(1, again=(0,))
    story.run(3)
    assert story.found_pairs() == story.pairs()


def test_windows_of_tuples_change_in_length(tmp_path: Path) -> None:
    story = Story(Random("tuples"), tmp_path, BAND, "40 tuples")
    order: list[tuple[int, Row]] = []
    limits: list[int] = []
    for window in ("40 tuples", "90 tuples", "15 tuples"):
        story.change(window=window)
        limits.append(len(order))
        for _ in range(8):
            before = [len(rows) for rows in story.rows]
            story.run(1, size=9)
            new = [(side, row) for side in (0, 1) for row in story.rows[side][before[side] :]]
            order += sorted(new, key=lambda each: (each[1].time, each[0]))
    assert story.found_pairs() == _tuple_pairs(order, limits, (40, 90, 15))


def _tuple_pairs(order: list[tuple[int, Row]], starts: list[int], sizes: tuple[int, ...]) -> Counter[Any]:
    """Return the pairs of rows, by a double loop over their order of arrival."""
    pairs: Counter[Any] = Counter()
    places = [[at for at, (side, _) in enumerate(order) if side == k] for k in (0, 1)]
    generation = [max(k for k, start in enumerate(starts) if at >= start) for at in range(len(order))]
    for at, (side, row) in enumerate(order):
        for before in range(at):
            other, held = order[before]
            if other == side:
                continue
            since = sum(1 for place in places[other] if before <= place < at)
            alive = since <= sizes[generation[at]]
            for g in range(generation[before] + 1, generation[at] + 1):
                then = sum(1 for place in places[other] if before <= place < starts[g])
                alive = alive and then <= sizes[g - 1]
            values = (held.value, row.value) if other == 0 else (row.value, held.value)
            if alive and PREDICATES[BAND](*values):
                pairs[(held.number, row.number) if other == 0 else (row.number, held.number)] += 1
    return pairs


def test_a_change_that_failed_can_be_taken_back(tmp_path: Path) -> None:
    """Segments that have changed in a micro-batch that was not committed leave nothing behind."""
    story = Story(Random("back"), tmp_path, BAND, "4 seconds")
    story.run(6)
    cluster, rows = story.cluster, [list(each) for each in story.rows]
    states, definition, results = list(cluster.states), cluster.definition, list(story.results)
    story.change(on="x = a", segments=3)
    story.run(1)
    cluster.definition, cluster.states, cluster.batch = definition, states, 6  # as if it had not ended
    story.on, story.results, story.rows = BAND, results, (rows[0], rows[1])
    del story.marks[6:], story.plans[6:]
    story.run(4)
    assert story.found_pairs() == story.pairs()
    story.change(window="9 seconds")
    story.run(4)
    assert story.found_pairs() == story.pairs()


@pytest.mark.parametrize("files", [False, True])
@pytest.mark.parametrize("name", ["longer", "more segments", "one segment"])
def test_a_change_after_a_failed_micro_batch_without_rows(name: str, files: bool, tmp_path: Path) -> None:
    """Segments whose timers have expired have written their state and files, but it was not committed."""
    results = str(tmp_path / "results") if files else None
    story = Story(
        Random(name), tmp_path, BAND, "4 seconds", kind=KINDS["left"],
        options=Options(results_to=results),
    )  # fmt: skip
    story.run(8, size=3)
    story.skip(4)
    assert story.cluster.crash_tick()
    story.change(**CHANGES[name])
    assert story.cluster.tick() == []
    story.run(3)
    story.cluster.watermark = 10**9 * SECOND
    story.results += story.cluster.tick()
    met = {left for left, _ in story.pairs()}
    alone = Counter((row.number, None) for row in story.rows[0] if row.number not in met)
    assert story.found_pairs() == story.pairs() + alone
    if results is not None:
        story.results = [
            b for file in Path(results).glob("*.parquet") for b in pq.read_table(file).to_batches()
        ]
        assert story.found_pairs() == story.pairs() + alone


def test_a_first_micro_batch_that_failed_leaves_nothing_behind(tmp_path: Path) -> None:
    first = Story(Random("first"), tmp_path, "x = a", "4 seconds", segments=3)
    first.run(1)  # it is not committed, and the definition is corrected
    story = Story(Random("second"), tmp_path, BAND, "4 seconds")
    story.run(3)
    story.change(window="6 seconds")
    story.run(3)
    assert story.found_pairs() == story.pairs()
    assert len({each.place for each in read_state(str(tmp_path)).joins[0].past}) == 2


def test_files_of_earlier_generations_are_removed_in_the_end(tmp_path: Path) -> None:
    story = Story(Random("removed"), tmp_path, BAND, "4 seconds")
    story.run(2)
    story.change(window="6 seconds")
    story.run(40)
    state = read_state(str(tmp_path)).joins[0]
    assert state.past == []
    assert {each.manifest.about.since for each in state.segments} == {2}


REFUSED = [
    (
        {"kind": KINDS["left"]},
        "the kind of a join cannot change from inner to left on a checkpoint: "
        "segments keep other rows for each kind",
    ),
    (
        {"windows": windows_of("9 tuples")},
        "the windows of a join cannot change from 4 seconds to 9 tuples on a checkpoint: "
        "a window by time and one by number of tuples need other stamps of rows that have come",
    ),
    (
        {"left": pa.schema([("l", pa.int64()), ("x", pa.int64()), ("t", pa.timestamp("us"))])},
        "the left columns of a join cannot change from (l int64, x int32, t timestamp[us]) to "
        "(l int64, x int64, t timestamp[us]) on a checkpoint: column 'x' was int32 and is int64",
    ),
    (
        {"left": SCHEMAS[0].append(pa.field("y", pa.string())), "on": parse("y = '7' AND x = a")},
        "the predicate of a join cannot change from (x >= (a - 10)) AND (x <= (a + 10)) "
        "to (y = '7') AND (x = a) on a checkpoint: rows in the state have no column 'y'",
    ),
]


@pytest.mark.parametrize(("change", "message"), REFUSED)
def test_what_cannot_change_says_why(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    story = Story(Random("refused"), tmp_path, BAND, "4 seconds")
    story.run(3)
    before = list(story.cluster.states)
    story.cluster.change(replace(story.cluster.definition, identity=uuid4().hex, **change))
    with pytest.raises(StateError) as error:
        story.run(1)
    assert str(error.value).startswith(message)
    assert "; put back what " in str(error.value)
    assert story.cluster.states == before


@pytest.mark.parametrize("name", ["longer", "hash", "more segments", "one segment"])
def test_a_changed_join_with_another_name_is_refused(name: str, tmp_path: Path) -> None:
    """The folder of a join has its name, and a join that is not named has another one in another program."""
    story = Story(Random(name), tmp_path, BAND, "4 seconds")
    story.run(4)
    story.cluster.folder = "query/join-other%20one"
    story.run(2)  # unchanged, it goes on where it is
    story.change(**CHANGES[name])
    before = list(story.cluster.states)
    with pytest.raises(StateError) as error:
        story.run(1)
    assert str(error.value) == (
        "the join 'test' of this checkpoint has changed, and is called 'other one' now: a join that changes "
        "finds its rows by its name; pass name='test', or put back the old definition"
    )
    story.cluster.states[:] = before
    del story.marks[6:], story.plans[6:]
    for rows in story.rows:
        rows[:] = [row for row in rows if row.batch < 6]
    story.cluster.folder = "query/join-test"
    story.run(6)
    assert story.found_pairs() == story.pairs()


def test_joins_whose_names_are_exchanged_keep_their_own_rows(tmp_path: Path) -> None:
    story, other = (
        Story(Random(on), tmp_path, on, window)
        for on, window in ((BAND, "4 seconds"), ("x = a", "9 seconds"))
    )
    other.cluster.folder = "query/join-other"
    for _ in range(2):
        story.run(4)
        other.run(4)
        story.cluster.folder, other.cluster.folder = other.cluster.folder, story.cluster.folder
    assert story.found_pairs() == story.pairs()
    assert other.found_pairs() == other.pairs()


def test_the_predicate_of_an_outer_join_cannot_change(tmp_path: Path) -> None:
    story = Story(Random("outer"), tmp_path, BAND, "4 seconds", kind=KINDS["left"])
    story.run(3)
    story.change(on="x = a")
    with pytest.raises(StateError, match="which rows have matched was decided by the old one"):
        story.run(1)


def test_a_newer_format_is_refused_in_one_sentence(tmp_path: Path) -> None:
    story = Story(Random("newer"), tmp_path, BAND, "4 seconds")
    story.run(1)
    data = story.cluster.states[0]
    assert data is not None
    manifest = Manifest.parse(data)
    newer = manifest.dump(version=99)
    with pytest.raises(StateError) as error:
        Manifest.parse(newer)
    assert str(error.value) == (
        "the checkpoint holds join state of version 99, this release reads up to version 4; "
        "go on with the release that wrote it, or start from a new checkpoint"
    )


# On Spark


class Query:
    """A streaming join on Spark that is restarted with changes; a file per side is a micro-batch."""

    def __init__(self, spark: Any, folder: Path) -> None:
        self.spark, self.folder, self.rng = spark, folder, Random(folder.name)
        self.feeds = [
            Feed(folder / "left", "l long, x int, t timestamp, note string"),
            Feed(folder / "right", "r long, a int, t timestamp, note string"),
        ]
        self.sink, self.rows, self.plans = Sink(folder), ([], []), []

    def run(self, files: int, on: str, window: str, left: tuple[str, ...] = (), **options: Any) -> None:
        """Add files, and run the query until it has read them."""
        for _ in range(files):
            self.plans.append((on, window))
            for side, feed in enumerate(self.feeds):
                number = len(self.plans) - 1
                rows = []
                for k in range(10):
                    at = (100 + number) * SECOND + self.rng.randint(-SECOND, SECOND)
                    rows.append((1000 * number + k, self.rng.randint(0, 120), at))
                    self.rows[side].append(Row(number, *rows[-1]))
                columns = [pa.array(each) for each in zip(*rows, strict=True)]
                columns[1] = columns[1].cast(pa.int32())
                columns[2] = columns[2].cast(pa.timestamp("us", "UTC"))
                note = pa.array(["new"] * len(rows))
                feed.add(pa.table([*columns, note], names=["lr"[side], "xa"[side], "t", "note"]))
        names = (("l", "x", "t", *left), ("r", "a", "t"))
        streams = [
            feed.read(self.spark).select(*each).withWatermark("t", "3 seconds")
            for feed, each in zip(self.feeds, names, strict=True)
        ]
        joined = handshake.join(
            *streams, on, window=window, state_dir=str(self.folder / "state"), name="changes",
            **{"segments": 2, **options},
        )  # fmt: skip
        self.sink.run(joined)

    def skip(self) -> None:
        """Count a micro-batch without rows."""
        self.plans.append(self.plans[-1])

    def pairs(self) -> Counter[tuple[int, int]]:
        """Return all pairs that the semantics of changes define, by the watermarks that Spark had."""
        story = Story.__new__(Story)
        story.rows, story.plans = self.rows, self.plans
        story.marks = [0] * len(self.plans)
        for progress in self.sink.progress:
            moment = progress["eventTime"].get("watermark", "1970-01-01T00:00:00.000Z")
            story.marks[progress["batchId"]] = int(datetime.fromisoformat(moment).timestamp()) * SECOND
            fraction = moment.rpartition(".")[2].rstrip("Z")
            story.marks[progress["batchId"]] += int(fraction) * 1000
        for side in (0, 1):
            assert all(row.time >= story.marks[row.batch] for row in self.rows[side]), "a row is late"
        return story.pairs()

    def found_pairs(self) -> Counter[tuple[int, int]]:
        return Counter((row["l"], row["r"]) for row in self.sink.rows())


def test_a_join_changes_on_its_checkpoint(spark: Any, tmp_path: Path) -> None:
    query = Query(spark, tmp_path)
    query.run(3, BAND, "4 seconds")
    query.run(2, BAND, "9 seconds")
    query.run(2, BAND, "2 seconds", segments=3)
    query.run(2, "x = a", "6 seconds", left=("note",))
    assert {row["note"] for row in query.sink.batches[7].to_pylist()} == {None, "new"}
    query.run(2, "x % 7 = a % 7", "6 seconds", segments=1)
    query.run(2, BAND, "4 seconds")
    assert query.found_pairs() == query.pairs()
    with pytest.raises(Exception, match="cannot change") as error:
        query.run(1, BAND, "4 seconds", how="left")
    assert reason(error.value) == (
        "the kind of a join cannot change from inner to left on a checkpoint: segments keep other rows for "
        "each kind; put back what was there, or start from a new checkpoint"
    )
    query.run(1, BAND, "4 seconds")
    assert query.found_pairs() == query.pairs()


def test_an_outer_join_changes_on_its_checkpoint(spark: Any, tmp_path: Path) -> None:
    """Timers of segments before the change expire later, in a run that changes nothing."""
    query = Query(spark, tmp_path)
    query.run(3, "x = a", "2 seconds", how="left")
    query.run(2, "x = a", "3 seconds", how="left", segments=3)
    query.run(4, "x = a", "3 seconds", how="left", segments=3)
    pairs, found = query.pairs(), query.found_pairs()
    alone = {left for left, right in found if right is None}
    assert Counter({pair: n for pair, n in found.items() if pair[1] is not None}) == pairs
    assert all(found[left, None] == 1 for left in alone)
    met = {left for left, _ in pairs}
    assert not alone & met
    final = (100 + 7 - 3 - 3 - 1) * SECOND  # a window and a delay before the newest rows of the last but one
    assert {row.number for row in query.rows[0] if row.time < final} - met <= alone
    assert alone


def test_shuffle_partitions_change_with_the_checkpoint(spark: Any, tmp_path: Path) -> None:
    """Spark keeps the number in the checkpoint; since 4.2 it can divide the state again."""
    query = Query(spark, tmp_path)
    query.run(3, BAND, "4 seconds")
    spark.conf.set("spark.sql.shuffle.partitions", "3")
    try:
        query.run(2, BAND, "4 seconds")  # Spark goes on with two
        assert query.found_pairs() == query.pairs()
        manager = getattr(spark, "_streamingCheckpointManager", None)
        if manager is not None:
            manager.repartition(str(query.sink.folder / "checkpoint"), 3)
            query.skip()
            query.run(2, BAND, "4 seconds")
            assert query.found_pairs() == query.pairs()
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", "2")
