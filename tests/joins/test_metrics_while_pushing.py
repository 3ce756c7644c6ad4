"""Figures that a thread reads while another one pushes rows: no error, and counts that only grow."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import handshake as hs

ROWS = pa.schema([("t", pa.timestamp("s")), ("x", pa.int64())])


def _two(**options: Any) -> tuple[Any, Callable[[Any], Any]]:
    join = hs.Join(left=ROWS, right=ROWS, on="ABS(l.x - r.x) <= 1", window="400 seconds", time="t", **options)
    return join, lambda rows: (join.push_left(rows), join.push_right(rows))


def _three() -> tuple[Any, Callable[[Any], Any]]:
    names = ("a", "b", "c")
    join = hs.MultiJoin(
        dict.fromkeys(names, ROWS), "a.x = b.x AND b.x = c.x", window="20 seconds", time="t", cores=2
    )
    return join, lambda rows: [join.push(name, rows) for name in names]


def _nearest() -> tuple[Any, Callable[[Any], Any]]:
    join = hs.NearestJoin(left=ROWS, right=ROWS, by="ABS(l.x - r.x)", window="400 seconds", time="t")
    return join, lambda rows: (join.push_left(rows), join.push_right(rows))


@pytest.mark.parametrize(
    "make",
    [
        *(
            lambda name=name: _two(algorithm=name)
            for name in ("three_step", "cell", "handshake", "low_latency")
        ),
        lambda: _two(how="full"),
        _three,
        _nearest,
    ],
    ids=["three_step", "cell", "handshake", "low_latency", "full", "several", "nearest"],
)
def test_metrics_can_be_read_while_rows_are_pushed(make: Callable[[], Any]) -> None:
    join, push = make()
    seen: list[tuple[int, ...]] = []
    counted: list[tuple[int, ...]] = []
    errors: list[BaseException] = []
    over = threading.Event()

    def read() -> None:
        try:
            while not over.is_set():
                found = join.metrics()
                assert found.to_dict()
                rows, results = join.counts()
                counted.append((*rows, *results.values()))
                seen.append((found.rows, found.comparisons, found.expired, found.latency.results))
        except BaseException as error:
            errors.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    rng = np.random.default_rng(1)
    for start in range(0, 3000, 100):
        push({"t": list(range(start, start + 100)), "x": rng.integers(0, 300, 100)})
    over.set()
    reader.join()
    join.finish()
    assert errors == []
    assert len(seen) > 5
    for figures in (seen, counted):
        for before, after in itertools.pairwise(figures):
            assert all(a <= b for a, b in zip(before, after, strict=True))
    last = join.metrics()
    assert join.counts() == (tuple(stream.rows for stream in last.streams), {"join": last.results})
    assert join.metrics().rows == 3000 * len(join.metrics().streams)
