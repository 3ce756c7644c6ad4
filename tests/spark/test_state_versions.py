"""Kept checkpoints of several versions of the state's format go on, and can be changed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from handshake.engines.spark.failures import reason
from handshake.engines.spark.state.reading import read_state
from old_checkpoint import BATCHES, SECOND, add_file, feeds_in, join_feeds, rows_of, unpack
from spark_session import Sink

DATA = Path(__file__).parent / "data"
VERSIONS = [2, 3, 4]
WRITER = "4.3"
"""The release of Spark that wrote the checkpoints; earlier ones need not read them."""


class Restored:
    """A query that goes on from a checkpoint that an earlier release wrote."""

    def __init__(self, spark: Any, version: int, folder: Path) -> None:
        if spark.version < WRITER:
            pytest.skip(f"Spark {WRITER} wrote the checkpoint, and this is {spark.version}")
        unpack(DATA / f"checkpoint-v{version}.zip", folder)
        self.spark, self.folder, self.feeds = spark, folder, feeds_in(folder)
        self.sink, self.batches = Sink(folder), BATCHES
        self.windows = [4] * BATCHES
        for feed in self.feeds:
            feed.files = BATCHES  # the source has seen files of earlier names

    def run(self, files: int, window: int = 4, **options: Any) -> None:
        """Run some more micro-batches, with a window of that many seconds."""
        for _ in range(files):
            for side, feed in enumerate(self.feeds):
                add_file(feed, side, self.batches)
            self.windows.append(window)
            self.batches += 1
        self.sink.run(join_feeds(self.spark, self.feeds, self.folder, f"{window} seconds", **options))

    def mark(self, batch: int) -> int:
        """Return the watermark of a micro-batch, which Spark counts in milliseconds."""
        before = [max(at for n in range(batch) for _, _, at in rows_of(side, n)) for side in (0, 1)]
        return min(before) // 1000 * 1000 - 3 * SECOND

    def expected_pairs(self) -> Counter[tuple[int, int]]:
        """Return the pairs of the micro-batches since the checkpoint, by a double loop."""
        left, right = ([(n, *row) for n in range(self.batches) for row in rows_of(s, n)] for s in (0, 1))
        return Counter(
            (a[1], b[1])
            for a in left
            for b in right
            if max(a[0], b[0]) >= BATCHES and abs(a[2] - b[2]) <= 10 and self._in_windows(a, b)
        )

    def _in_windows(self, a: tuple[int, ...], b: tuple[int, ...]) -> bool:
        early, late = sorted((a[0], b[0]))
        held = (a if a[0] < b[0] else b)[3]
        changes = [n for n in range(early + 1, late + 1) if self.windows[n] != self.windows[n - 1]]
        lost = any(held <= self.mark(n) - self.windows[n - 1] * SECOND for n in changes)
        return not lost and abs(a[3] - b[3]) < self.windows[late] * SECOND

    def check(self) -> None:
        """Compare all results since the checkpoint with the double loop."""
        assert Counter((row["l"], row["r"]) for row in self.sink.rows()) == self.expected_pairs()
        assert read_state(str(self.folder / "state")).damage() == []


@pytest.mark.parametrize("version", VERSIONS)
def test_a_checkpoint_of_an_earlier_version_goes_on_and_changes(
    spark: Any, tmp_path: Path, version: int
) -> None:
    query = Restored(spark, version, tmp_path)
    if version < 3:  # its segments have no copies of their manifests
        with pytest.raises(Exception, match="an earlier release wrote") as error:
            query.run(1, window=9)
        assert reason(error.value) == (
            "an earlier release wrote the checkpoint, and its segments cannot read each other's state; run "
            "the query for one micro-batch without a change first, or start from a new checkpoint"
        )
        query.windows[-1] = 4
        query.run(0)
    query.run(2, window=9, segments=3)
    query.check()
