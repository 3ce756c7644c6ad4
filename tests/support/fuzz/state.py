"""Mutated state: chunk files, blocks of new rows, manifests and the logs of received datagrams."""

from __future__ import annotations

import json
import shutil
import struct
import tempfile
import zlib
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa

from fuzz.mutate import mutate_bytes, mutate_json
from handshake.engines.spark.state.blocks import decode_blocks, encode_blocks
from handshake.engines.spark.state.chunks import ChunkRef, read_parts, write_chunk
from handshake.engines.spark.state.manifest import Manifest
from handshake.engines.spark.state.store import Store
from handshake.io.udp.log import LogReader, LogWriter
from handshake.joins.basic_window import BasicWindow
from handshake.kinds import kind_of_join
from handshake.windows import windows_of
from spark_steps import Cluster, definition_of
from strategies import Case

__all__ = ["check_blocks", "check_chunk", "check_log", "check_manifest"]

BATCH = pa.RecordBatch.from_pydict(
    {
        "x": pa.array([1, None, 3], pa.int64()),
        "s": pa.array(["a", None, "éé"]),
        "f": pa.array([0.5, 1.5, None]),
    }
)


@lru_cache(maxsize=1)
def _chunk() -> tuple[bytes, ChunkRef]:
    with tempfile.TemporaryDirectory() as folder:
        tables = pa.table({"x": [1, 2, 3], "s": ["a", "b", None]}), pa.table({"a": [1, 5, 9]})
        case = Case(*tables, "x = a", windows_of("1000 tuples"), None, None)
        spec = definition_of(*tables, case, 2, folder).spec.sides[0]
        ref = write_chunk(Store(folder), "one.chunk", BasicWindow(spec, tables[0].to_batches()[0]))
        return (Path(folder) / "one.chunk").read_bytes(), ref


def check_chunk(rng: Random, folder: Path) -> bool | str:
    """Read a mutated chunk file by its reference: only the bytes that were written are accepted."""
    whole, ref = _chunk()
    data = mutate_bytes(rng, whole)
    (folder / ref.name).write_bytes(data)
    batch, _ = read_parts(Store(str(folder)), ref)
    assert data == whole, "a damaged chunk was accepted"
    assert batch.num_rows == ref.rows
    return True


def check_blocks(rng: Random, folder: Path) -> bool | str:
    """Decode mutated blocks of new rows: only the bytes that were written are accepted."""
    whole, layout, _ = encode_blocks("one", BATCH, np.array([0, 1, 3]))
    data = mutate_bytes(rng, whole)
    found = decode_blocks("one", "one", layout, [(0, 2)], [data])
    assert data == whole, "damaged blocks were accepted"
    assert found.equals(BATCH)
    return True


@lru_cache(maxsize=1)
def _manifests() -> tuple[bytes, ...]:
    found: list[bytes] = []
    for how in ("inner", "full"):
        with tempfile.TemporaryDirectory() as folder:
            times = pa.array(np.arange(8) * 1_000_000, pa.timestamp("us"))
            tables = pa.table({"x": range(8), "t": times}), pa.table({"a": range(8), "u": times})
            case = Case(*tables, "x BETWEEN a - 1 AND a + 1", windows_of("3 seconds"), "t", "u")
            cluster = Cluster(definition_of(*tables, case, 2, folder, kind=kind_of_join(how)), Store(folder))
            for start in (0, 4):
                cluster.run(tuple([table.slice(start, 4)] for table in tables))
            found += [state for state in cluster.states if state is not None]
    return tuple(found)


def check_manifest(rng: Random, folder: Path) -> bool | str:
    """Load a mutated manifest: damage is refused, and other fields are a manifest or refused."""
    whole = rng.choice(_manifests())
    damaged = rng.random() < 0.5
    data = mutate_bytes(rng, whole) if damaged else _with_fields(rng, whole)
    manifest = Manifest.parse(data)
    assert data == whole or not damaged, "a damaged manifest was accepted"
    assert Manifest.parse(manifest.dump()).dump() == manifest.dump()
    return True


def _with_fields(rng: Random, data: bytes) -> bytes:
    """The manifest with other values in its fields, which are compressed, and with the checksum of these."""
    head = struct.Struct("<4sIIII")
    mark, _, size, *rest = head.unpack_from(data)
    fields: Any = json.loads(zlib.decompress(data[head.size : head.size + size]))
    text = json.dumps(mutate_json(rng, fields)).encode()
    if rng.random() < 0.1:
        text = mutate_bytes(rng, text)
    packed = zlib.compress(text, 1)
    body = struct.pack("<III", len(packed), *rest) + packed + data[head.size + size :]
    return struct.pack("<4sI", mark, zlib.crc32(body)) + body


@lru_cache(maxsize=1)
def _log() -> tuple[tuple[str, bytes], ...]:
    with tempfile.TemporaryDirectory() as folder:
        with LogWriter(folder, BATCH.schema) as log:
            log.append(BATCH)
            log.append(BATCH.slice(1))
        return tuple((path.name, path.read_bytes()) for path in sorted(Path(folder).iterdir()))


def check_log(rng: Random, folder: Path) -> bool | str:
    """Read, and continue, the log of received datagrams with one of its files mutated."""
    place = folder / "log"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    files = _log()
    chosen = rng.randrange(len(files))
    for number, (name, data) in enumerate(files):
        (place / name).write_bytes(mutate_bytes(rng, data) if number == chosen else data)
    if rng.random() < 0.7:
        rows = sum(batch.num_rows for batch in LogReader(place))
        assert rows >= 0
        return True
    with LogWriter(place, BATCH.schema) as log:
        log.append(BATCH)
    return True
