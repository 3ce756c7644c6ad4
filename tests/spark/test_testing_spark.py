"""Tests of `handshake.testing` on Spark."""

from __future__ import annotations

from datetime import timedelta

import pyarrow as pa
import pytest

from handshake import testing
from handshake.errors import InputError, SchemaError, UnsupportedError
from worked_example import EVENT, START, worked_example

pytest.importorskip("pyspark")


def rows(*seconds):
    return {
        "t": [START + timedelta(seconds=n) for n in seconds],
        "k": [n % 2 for n in seconds],
        "x": [0.0] * len(seconds),
    }


@pytest.mark.parametrize("how", [pytest.param("inner", marks=pytest.mark.soak), "full"])
def test_a_script_with_late_rows_and_restarts(spark, tmp_path, how):
    script = (
        testing.Script(EVENT, EVENT)
        .push(left=rows(0, 1, 5, 4), right=rows(2, 9))
        .push(left=rows(30), right=rows(31))
        .restart()
        .push(left=rows(3, 29, 32), right=rows(28))
        .restart()
    )
    join = {"on": "l.k = r.k", "window": "10 seconds", "time": "t", "lateness": "4 seconds", "how": how}
    outcome = script.check(join, "spark", spark=spark, folder=tmp_path)
    assert outcome.late == script.expect(join, "spark").late == 1
    assert outcome.results.num_rows > 5


def test_the_worked_example_on_spark(spark, tmp_path, monkeypatch):
    (test,) = (each for each in worked_example(monkeypatch) if "spark" in each.__name__)
    test(spark, tmp_path)


def test_mistakes_are_named(spark, tmp_path):
    steps = testing.SparkSteps(spark, lambda a: a, {"a": "id int"}, tmp_path)
    with pytest.raises(InputError, match="no micro-batch has run that could be repeated"):
        steps.repeat()
    with pytest.raises(InputError, match=r"no stream 'b' \(a\)"):
        steps.step(b={"id": [1]})
    assert steps.step(a={"id": [1, 2]})["id"].to_pylist() == [1, 2]
    script = testing.Script(EVENT, EVENT).advance(left=START)
    with pytest.raises(UnsupportedError, match="only rows move the watermark"):
        script.run({"time": "t"}, "spark", spark=spark, folder=tmp_path / "other")
    naive = {"t": pa.timestamp("us")}
    with pytest.raises(SchemaError, match="timestamps with a zone only, and column 't' of the left"):
        testing.Script(naive, naive).run({"time": "t"}, "spark", spark=spark, folder=tmp_path / "naive")
