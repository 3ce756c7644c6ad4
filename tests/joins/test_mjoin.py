"""Joins of three and more streams give what the oracle gives, in every order and on any number of cores."""

from __future__ import annotations

from itertools import permutations
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import handshake.joins.multiway.spec as multiway_spec
from handshake.errors import ExpressionError, HandshakeError, SchemaError, UnsupportedError, WindowError
from handshake.joins.multiway.mjoin import MJoin
from handshake.joins.multiway.order import Order, best_order, cost_order, runner_up
from handshake.joins.multiway.spec import ManySpec, StreamSpec, many_spec
from handshake.joins.multiway.stats import Selectivity, Statistics
from handshake.joins.multiway.step import _later
from handshake.joins.tuning import TUNING, Tuning
from handshake.plan import call, col, parse
from handshake.schema import UNITS
from handshake.windows import parse_window
from multiway_cases import DEALT, SECOND, Case, changing_orders
from pairs import EXAMPLES


def check(seed: int, many: int, most: int, cores: int, tuning: Tuning = TUNING) -> int:
    """Push random streams in random batches; says how many combinations that made."""
    case = Case(seed, many, most)
    spec = case.spec(tuning)
    join = MJoin(spec, case.lateness * SECOND // UNITS[spec.unit], cores)
    arrivals, found = case.push_all(join)
    want = case.want(arrivals, by_time=case.timed)
    got = case.members(found)
    assert got == sorted(want.pairs), (case.text, case.windows, case.lateness)
    figures = join.metrics()
    assert (figures.late, figures.no_time, figures.results) == (want.late, want.no_time, len(got))
    assert sum(core.results for core in figures.cores) == len(got)
    return len(got)


SIZES = ((3, 12), (3, 12), (4, 6), (2, 20))


@settings(EXAMPLES, max_examples=4)
@given(seed=st.integers(0, 2**32 - 1), size=st.sampled_from(SIZES))
def test_any_number_of_streams_agrees_with_the_oracle(seed, size):
    """As shipped; then with every basic window indexed."""
    check(seed, *size, cores=1)
    check(seed, *size, cores=1, tuning=Tuning(indexed_from=1, indexed_probes=1))


@settings(EXAMPLES, max_examples=4)
@given(seed=st.integers(0, 2**32 - 1), size=st.sampled_from(SIZES), cores=st.integers(2, 4))
def test_any_number_of_cores_agrees_with_the_oracle(seed, size, cores):
    check(seed, *size, cores=cores, tuning=DEALT)


@settings(EXAMPLES, max_examples=4)
@given(seed=st.integers(0, 2**32 - 1), size=st.sampled_from(((3, 12), (4, 6))), cores=st.integers(1, 3))
def test_orders_that_change_while_the_join_runs_change_no_result(seed, size, cores):
    with changing_orders(seed) as tuning:
        check(seed, *size, cores=cores, tuning=tuning)


@pytest.mark.soak
@pytest.mark.timeout(0)
@settings(EXAMPLES, max_examples=1_000, derandomize=False)
@given(
    seed=st.integers(0, 2**32 - 1),
    size=st.sampled_from(((3, 14), (4, 7), (5, 4), (2, 40))),
    cores=st.integers(1, 4),
    changing=st.booleans(),
)
def test_soak(seed, size, cores, changing):
    with changing_orders(seed if changing else None) as tuning:
        check(seed, *size, cores=cores, tuning=tuning)


# Plans.

SCHEMA = pa.schema([("x", pa.int64()), ("y", pa.int64())])


def spec_of(
    text: str, many: int, window: str | None = None, schema: pa.Schema = SCHEMA, tuning: Tuning = TUNING
) -> ManySpec:
    size = None if window is None else parse_window(window)
    return many_spec([StreamSpec(f"s{k}", schema, size) for k in range(many)], parse(text), tuning)


def batch_of(x: Any, y: Any) -> pa.RecordBatch:
    return pa.record_batch([pa.array(x, pa.int64()), pa.array(y, pa.int64())], schema=SCHEMA)


def test_the_first_orders_prefer_equality_then_bands_then_any_connection():
    spec = spec_of("s0.x = s2.x AND ABS(s0.y - s1.y) <= 3 AND s2.y <> s3.y AND s1.x = s3.x", 4)
    orders = [best_order(k, spec, Statistics(spec)).targets for k in range(4)]
    assert [order[0] for order in orders] == [2, 3, 0, 1]
    methods = [spec.step(frozenset({0}), k).spec.method for k in (2, 1)]
    assert methods == ["hash", "band"]


def random_spec(rng: Random, many: int) -> tuple[ManySpec, Statistics]:
    """Return a connected join of random conditions, and random sizes and selectivities."""
    pairs = [(rng.randrange(k), k) for k in range(1, many)]
    pairs += [tuple(sorted(rng.sample(range(many), 2))) for _ in range(rng.randrange(3))]
    kinds = ("s{}.x = s{}.x", "ABS(s{}.y - s{}.y) <= 3", "s{}.x < s{}.y", "s{}.x <> s{}.y")
    spec = spec_of(" AND ".join(rng.choice(kinds).format(*pair) for pair in pairs), many)
    statistics = Statistics(spec)
    for k in range(many):
        statistics.hold(k, int(10 ** rng.uniform(0, 5)))
    for streams in statistics._selectivity:
        share = 10 ** rng.uniform(-5, 0)
        statistics._selectivity[streams] = Selectivity(share, share * rng.choice((1, 0.1)))
    return spec, statistics


@pytest.mark.parametrize("many", [2, 3, 5, 6, 8])
def test_up_to_eight_streams_have_the_best_order(many: int):
    rng = Random(f"orders {many}")
    for source in rng.sample(range(many), 1 if many == 8 else 2):
        spec, statistics = random_spec(rng, many)
        rest = [k for k in range(many) if k != source]
        every = [cost_order(source, order, spec, statistics) for order in permutations(rest)]
        best = best_order(source, spec, statistics)
        assert best.seconds == pytest.approx(min(order.seconds for order in every))
        other = runner_up(best, spec, statistics)
        others = [order.seconds for order in every if order.targets[0] != best.targets[0]]
        assert (other is None) == (not others)
        assert other is None or other.seconds == pytest.approx(min(others))


def test_the_method_that_an_order_is_weighed_with_is_that_of_its_steps():
    rng = Random("methods")
    for many in (2, 3, 4, 4, 5, 5):
        spec, _ = random_spec(rng, many)
        for target in range(many):
            rest = [k for k in range(many) if k != target]
            joined = frozenset(rng.sample(rest, rng.randint(1, len(rest))))
            assert spec.new_conditions(joined, target).method == spec.step(joined, target).spec.method


def test_twenty_streams_are_planned_with_few_steps_weighed_and_analysed(monkeypatch: pytest.MonkeyPatch):
    """Each order weighs every stream that is left at each of its steps, and nothing twice."""
    many, weighed, analysed = 20, [0], [0]

    def count(module: Any, name: str, counter: list[int]) -> None:
        original = getattr(module, name)

        def count_calls(*args: Any, **kwargs: Any) -> Any:
            counter[0] += 1
            return original(*args, **kwargs)

        monkeypatch.setattr(module, name, count_calls)

    count(Order, "then", weighed)
    count(multiway_spec, "join_spec", analysed)
    join = MJoin(spec_of(" AND ".join(f"s{k}.x = s{k + 1}.x" for k in range(many - 1)), many, "9 tuples"))
    each = many * (many - 1) // 2
    assert weighed[0] <= many * each
    assert analysed[0] <= 3 * many
    weighed[0] = analysed[0] = 0
    assert "from s19    s19 -> s18 -> s17" in join.explain()
    assert weighed[0] <= many * each
    assert analysed[0] == 0
    join.close()


def test_more_than_eight_streams_begin_with_what_leaves_least():
    chain = spec_of(" AND ".join(f"s{k}.x = s{k + 1}.x" for k in range(11)), 12)
    assert best_order(0, chain, Statistics(chain)).targets == tuple(range(1, 12))
    star = spec_of(" AND ".join(f"s0.x = s{k}.x" for k in range(1, 10)), 10)
    statistics = Statistics(star)
    for k in range(1, 10):
        statistics.hold(k, 100 * (k * 7 % 11 + 1))
    assert best_order(0, star, statistics).targets == (8, 5, 2, 7, 4, 1, 9, 6, 3)
    other = runner_up(best_order(0, star, statistics), star, statistics)
    assert other is not None
    assert other.targets[0] == 5


def test_steps_of_like_layout_share_a_window():
    join = MJoin(spec_of("s0.x = s1.x AND s1.x = s2.x", 3))
    assert len(join._windows) == 3


def test_orders_follow_what_the_streams_turn_out_to_be_like():
    """By the look of it s0.x = s1.x is the sharper condition; but s1 has one value, and s2 hardly a match."""
    tuning = Tuning(order_worth=0)
    join = MJoin(spec_of("s0.x = s1.x AND s0.y < s2.y", 3, "3000 tuples", tuning=tuning))
    before = join.orders[0].targets
    rng = np.random.default_rng(1)
    found = want = 0
    for _ in range(6):
        y = rng.integers(0, 1000, 1000)
        s0 = batch_of(np.full(1000, 7), y)
        batches = (s0, batch_of(np.full(1000, 7), y), batch_of(y, np.full(1000, -1)))
        for k in (1, 2, 0):
            found += sum(batch.num_rows for batch in join.push(k, batches[k]))
    assert before == (1, 2)
    assert join.orders[0].targets == (2, 1)
    assert join.metrics().replans >= 1
    assert found == want


def test_measured_steps_are_believed_before_samples():
    spec = spec_of("s0.x = s1.x AND s1.y = s2.y", 3)
    join = MJoin(spec)
    many = batch_of(np.arange(300), np.arange(300))
    for k in range(3):
        list(join.push(k, many))
    assert join.statistics.estimate(frozenset({2}), 1).known == "guessed"
    join._observe()
    first, second = (join.statistics.estimate(frozenset(j), t) for j, t in (({2}, 1), ({0}, 1)))
    assert (first.known, first.matches) == ("measured", 1.0)
    assert (second.known, round(second.matches, 1)) == ("sampled", 1.2)


def test_python_functions_are_not_called_for_samples():
    called = []

    def near(a: int, b: int) -> bool:
        called.append((a, b))
        return abs(a - b) <= 1

    on = (
        call(near, col("s0.y"), col("s1.y")) & (col("s0.x") == col("s1.x")) & (col("s1.y") == col("s2.y"))
    ).expr
    join = MJoin(many_spec([StreamSpec(f"s{k}", SCHEMA) for k in range(3)], on))
    for k in range(3):
        list(join.push(k, batch_of(range(20), range(20))))
    count = len(called)
    join._observe()
    assert (join.metrics().results, len(called)) == (20, count)


def test_windows_expire_in_every_step():
    join = MJoin(spec_of("s0.x = s1.x AND s1.x = s2.x", 3, "10 tuples"))
    batch = batch_of(range(1100), range(1100))
    count = 0
    for _ in range(4):
        for k in range(3):
            count += sum(found.num_rows for found in join.push(k, batch))
    assert join.expired > 0
    assert all(window.rows <= 2200 for window in join._windows.values())
    assert count == join.metrics().results


@pytest.mark.parametrize("cores", [2, 3])
def test_large_windows_are_dealt_out_and_small_ones_are_not(cores):
    """Every core has a share of the comparisons, and together they make those of one core."""
    tuning = Tuning(dealt_rows=1)
    rng = np.random.default_rng(3)
    batches = [batch_of(rng.integers(0, 9000, 3000), rng.integers(0, 9000, 3000)) for _ in range(24)]
    figures = []
    for n in (1, cores):
        spec = spec_of("s0.x + s1.x = 100 * s1.y AND s1.y = s2.y", 3, "20000 tuples", tuning=tuning)
        join = MJoin(spec, cores=n)
        for at, batch in enumerate(batches):
            list(join.push(at % 3, batch))
        list(join.drain())
        figures.append(join.metrics())
        join.close()
    alone, shared = figures
    assert alone.results == shared.results
    loads = [core.comparisons for core in shared.cores]
    assert min(loads) > 0.5 * sum(loads) / cores


def both(join: MJoin, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
    return [*join.push(0, batch), *join.drain()]


def test_an_error_in_a_core_names_the_batch_and_ends_all_threads():
    def bad(a: int, b: int) -> bool:
        raise ValueError("no luck")

    on = (call(bad, col("s0.x"), col("s1.x")) & (col("s1.y") == col("s2.y"))).expr
    join = MJoin(many_spec([StreamSpec(f"s{k}", SCHEMA) for k in range(3)], on), cores=2)
    for k in (2, 1):
        list(join.push(k, batch_of(range(3), range(3))))
    told = r"a join core failed on a batch of 3 tuples of the s0 input: the Python function bad .*no luck"
    with pytest.raises(HandshakeError, match=told):
        both(join, batch_of(range(3), range(3)))
    assert join.crew.running() == 0


def test_times_are_moved_without_wrapping():
    low, high = -(2**63), 2**63 - 1
    times = np.array([low, -1, 0, high - 1, high])
    assert _later(times, 0).tolist() == times.tolist()
    for by in (1, 5, 2**63, 2**64 - 1, 2**64, 2**70):
        assert _later(times, by).tolist() == [min(int(t) + by, high) for t in times]


# Mistakes.


def refusal(text: str, **options: Any) -> str:
    with pytest.raises(HandshakeError) as caught:
        spec_of(text, 3, **options)
    return str(caught.value)


def test_mistakes_in_predicates_are_told_in_the_words_of_the_predicate():
    assert refusal("s0.x = s1.q") == "no column 'q' in the s1 input (x, y) (line 1, column 8)"
    assert refusal("s0.x = s9.x") == "no input 's9' (s0, s1, s2) (line 1, column 8)"
    assert (
        refusal("x = s1.x")
        == "column 'x' is in several inputs (s0, s1, s2); write s0.x, say (line 1, column 1)"
    )
    assert refusal("q = s1.x") == "no column 'q' (line 1, column 1)"
    assert refusal("db.s0.x = s1.x") == "no input 'db' (s0, s1, s2) (line 1, column 1)"
    assert "the predicate must be true or false, but s0.x + s1.x is" in refusal("s0.x + s1.x")
    assert "l.s0" not in refusal("s0.x LIKE s1.x")


def test_mistakes_about_streams_are_named():
    with pytest.raises(SchemaError, match="a join needs two or more streams; 1 was given"):
        many_spec([StreamSpec("a", SCHEMA)], parse("a.x = 1"))
    with pytest.raises(SchemaError, match="'a b' cannot name a stream; a name is letters, digits and _"):
        many_spec([StreamSpec("a b", SCHEMA), StreamSpec("c", SCHEMA)], parse("c.x = 1"))
    with pytest.raises(SchemaError, match=r"two streams are called 'a' \(case does not matter\); rename one"):
        many_spec([StreamSpec("a", SCHEMA), StreamSpec("A", SCHEMA)], parse("a.x = 1"))
    other = pa.schema([("x_c", pa.int64()), ("x", pa.int64())])
    with pytest.raises(SchemaError, match="output column 'x_c' would appear twice, from a and from c"):
        many_spec([StreamSpec("a", other), StreamSpec("c", SCHEMA)], parse("a.x = c.x"))
    with pytest.raises(
        WindowError, match="a time window needs a time column for every stream, and none is named"
    ):
        spec_of("s0.x = s1.x", 3, "3 s")


def test_times_that_do_not_compare_are_refused():
    zoned = pa.schema([("t", pa.timestamp("s", "UTC"))])
    plain, text = pa.schema([("t", pa.timestamp("ms"))]), pa.schema([("t", pa.string())])
    window = parse_window("3 s")

    def streams(*schemas: pa.Schema) -> list[StreamSpec]:
        return [StreamSpec(f"s{k}", schema, window, "t") for k, schema in enumerate(schemas)]

    with pytest.raises(SchemaError, match="the time columns do not compare"):
        many_spec(streams(plain, plain, zoned), parse("TRUE"))
    with pytest.raises(SchemaError, match="column 't' of the s2 input is string, which is not a time"):
        many_spec(streams(plain, plain, text), parse("TRUE"))
    assert many_spec(streams(plain, pa.schema([("t", pa.int64())]), plain), parse("TRUE")).unit == "ms"


def test_what_no_kernel_can_compute_is_refused_in_the_words_of_the_predicate():
    wide = pa.schema([("x", pa.decimal128(38, 0))])
    with pytest.raises(UnsupportedError, match=r"s0\.x \* s1\.x.* may need more than 512 bits"):
        spec_of(" * ".join(["s0.x * s1.x"] * 4) + " > s2.x", 3, schema=wide)
    assert issubclass(ExpressionError, HandshakeError)
