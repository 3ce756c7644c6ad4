"""Checkpoints that a release of this package wrote, with the state of their joins.

python tests/support/old_checkpoint.py FILE.zip runs a streaming join for three micro-batches and packs its
checkpoint and its state directory. `tests/spark/data` keeps one file per version of the format.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from random import Random
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

import pyarrow as pa

SECOND = 10**6
BATCHES = 3
ON, WINDOW = "x BETWEEN a - 10 AND a + 10", "4 seconds"
NAMES = (("l", "x", "t"), ("r", "a", "t"))


def rows_of(side: int, number: int) -> list[tuple[int, int, int]]:
    """Return the rows of a micro-batch: number, value and time."""
    rng = Random(f"side {side}, micro-batch {number}")
    times = [(100 + number) * SECOND + rng.randint(-SECOND, SECOND) for _ in range(10)]
    return [(1000 * number + k, rng.randint(0, 60), at) for k, at in enumerate(times)]


def add_file(feed: Any, side: int, number: int) -> None:
    """Add the rows of a micro-batch to a stream."""
    keys, values, times = zip(*rows_of(side, number), strict=True)
    stamps = pa.array(times).cast(pa.timestamp("us", "UTC"))
    feed.add(pa.table([pa.array(keys), pa.array(values, pa.int32()), stamps], names=list(NAMES[side])))


def feeds_in(folder: Path) -> list[Any]:
    """Return both streams of files below a folder."""
    from spark_session import Feed

    return [
        Feed(folder / side, f"{key} long, {value} int, t timestamp")
        for side, (key, value, _) in zip(("left", "right"), NAMES, strict=True)
    ]


def join_feeds(spark: Any, feeds: list[Any], folder: Path, window: str = WINDOW, **options: Any) -> Any:
    """Return the join of the streams, with its state below a folder."""
    import handshake

    streams = [feed.read(spark).withWatermark("t", "3 seconds") for feed in feeds]
    options = {"segments": 2, "name": "kept", **options}
    return handshake.join(*streams, ON, window=window, state_dir=str(folder / "state"), **options)


def pack(folder: Path, target: str) -> None:
    """Write checkpoint and state to an archive; paths in files of Spark begin with `/kept` there."""
    with ZipFile(target, "w", ZIP_DEFLATED, compresslevel=9) as archive:
        for path in sorted(path for part in ("checkpoint", "state") for path in (folder / part).rglob("*")):
            name = path.relative_to(folder)
            if _has_paths(name) and path.is_file():
                if path.suffix != ".crc":
                    archive.writestr(str(name), path.read_text().replace(str(folder), "/kept"))
            elif path.is_file() and "batch" not in name.parts:
                archive.write(path, name)


def _has_paths(name: Path) -> bool:
    """Return whether Spark writes absolute paths into a file of a checkpoint."""
    return "sources" in name.parts or "_metadata" in name.parts


def unpack(source: Path, folder: Path) -> None:
    """Restore checkpoint and state from an archive, for streams of files below a folder."""
    with ZipFile(source) as archive:
        archive.extractall(folder)
    for path in (folder / "checkpoint").rglob("*"):
        if path.is_file() and _has_paths(path.relative_to(folder)):
            path.write_text(path.read_text().replace("/kept", str(folder)))


def main(target: str) -> None:
    """Write the checkpoint of a join after its first micro-batches."""
    from handshake.engines.spark.cluster import start_cluster
    from spark_session import SETTINGS, Sink

    folder = Path(tempfile.mkdtemp(prefix="kept-"))
    settings = {**SETTINGS, "spark.sql.streaming.minBatchesToRetain": "2"}
    with start_cluster("kept", cores=2, **settings) as cluster:
        feeds = feeds_in(folder)
        for number in range(BATCHES):
            for side, feed in enumerate(feeds):
                add_file(feed, side, number)
        Sink(folder).run(join_feeds(cluster.session, feeds, folder))
    pack(folder, target)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main(sys.argv[1])
