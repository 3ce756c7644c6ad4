"""Mutated state: chunk files, blocks of new rows, manifests and the logs of received datagrams."""

from __future__ import annotations

import json
import re
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

from fuzz.mutate import Mutant, mutate_bytes, mutate_json
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

__all__ = [
    "check_blocks",
    "check_chunk",
    "check_log",
    "check_manifest",
    "make_blocks",
    "make_chunk",
    "make_log",
    "make_manifest",
]

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


def make_chunk(rng: Random) -> Mutant:
    """Make a mutated chunk file."""
    return Mutant(_chunk()[0], mutate_bytes(rng, _chunk()[0]))


def check_chunk(mutant: Mutant, rng: Random, folder: Path) -> bool | str:
    """Read a chunk file by its reference: only the bytes that were written are accepted."""
    _, ref = _chunk()
    (folder / ref.name).write_bytes(mutant.data)
    batch, _ = read_parts(Store(str(folder)), ref)
    assert mutant.data == mutant.whole, "a damaged chunk was accepted"
    assert batch.num_rows == ref.rows
    return True


def make_blocks(rng: Random) -> Mutant:
    """Make mutated blocks of new rows."""
    whole, *_ = _blocks()
    return Mutant(whole, mutate_bytes(rng, whole))


def _blocks() -> tuple[bytes, Any, Any]:
    return encode_blocks("one", BATCH, np.array([0, 1, 3]))


def check_blocks(mutant: Mutant, rng: Random, folder: Path) -> bool | str:
    """Decode blocks of new rows: only the bytes that were written are accepted."""
    _, layout, _ = _blocks()
    found = decode_blocks("one", "one", layout, [(0, 2)], [mutant.data])
    assert mutant.data == mutant.whole, "damaged blocks were accepted"
    assert found.equals(BATCH)
    return True


@lru_cache(maxsize=1)
def _manifests() -> tuple[bytes, ...]:
    """Manifests of an inner and of a full join."""
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
    return tuple(map(_with_plain_names, found))


def _with_plain_names(data: bytes) -> bytes:
    """Number the random names of the owner and its files in a manifest, so that each run has the same."""
    fields = _fields(data).decode()
    for number, name in enumerate(re.findall(r'[0-9a-f]{32}|(?<="owner": ")[0-9a-f]{12}', fields)):
        fields = fields.replace(name, f"{number:0{len(name)}}")
    return _with_fields(data, fields.encode())


def make_manifest(rng: Random) -> tuple[int, str, Mutant]:
    """Make a mutated manifest: the number of the original, what of it is mutated, and the mutant."""
    number = rng.randrange(len(_manifests()))
    whole = _manifests()[number]
    if rng.random() < 0.5:
        return number, "bytes", Mutant(whole, mutate_bytes(rng, whole))
    text = _fields(whole)
    other = json.dumps(mutate_json(rng, json.loads(text))).encode()
    if rng.random() < 0.1:
        other = mutate_bytes(rng, other)
    return number, "fields", Mutant(text, other)


def check_manifest(given: tuple[int, str, Mutant], rng: Random, folder: Path) -> bool | str:
    """Load a manifest: damage is refused, and other fields are a manifest or refused."""
    number, what, mutant = given
    damaged = what == "bytes"
    manifest = Manifest.parse(mutant.data if damaged else _with_fields(_manifests()[number], mutant.data))
    assert mutant.data == mutant.whole or not damaged, "a damaged manifest was accepted"
    assert Manifest.parse(manifest.dump()).dump() == manifest.dump()
    return True


_HEAD = struct.Struct("<4sIIII")
"""The mark of a manifest, its checksum, and the lengths of its parts: fields, the states of both sides."""


def _fields(data: bytes) -> bytes:
    size = _HEAD.unpack_from(data)[2]
    return zlib.decompress(data[_HEAD.size : _HEAD.size + size])


def _with_fields(data: bytes, fields: bytes) -> bytes:
    """Return the manifest with other fields, which are compressed, and with their checksum."""
    mark, _, size, *rest = _HEAD.unpack_from(data)
    packed = zlib.compress(fields, 1)
    body = struct.pack("<III", len(packed), *rest) + packed + data[_HEAD.size + size :]
    return struct.pack("<4sI", mark, zlib.crc32(body)) + body


@lru_cache(maxsize=1)
def _log() -> tuple[tuple[str, bytes], ...]:
    with tempfile.TemporaryDirectory() as folder:
        with LogWriter(folder, BATCH.schema) as log:
            log.append(BATCH)
            log.append(BATCH.slice(1))
        return tuple((path.name, path.read_bytes()) for path in sorted(Path(folder).iterdir()))


def make_log(rng: Random) -> tuple[str, str, Mutant]:
    """Make a mutated file of a log of datagrams: what is done with the log, the file, and the mutant."""
    name, whole = rng.choice(_log())
    mutant = Mutant(whole, mutate_bytes(rng, whole))
    return "read" if rng.random() < 0.7 else "continue", name, mutant


def check_log(given: tuple[str, str, Mutant], rng: Random, folder: Path) -> bool | str:
    """Read, or continue, the log of received datagrams with one of its files replaced."""
    what, replaced, mutant = given
    place = folder / "log"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    for name, data in _log():
        (place / name).write_bytes(mutant.data if name == replaced else data)
    if what == "read":
        rows = sum(batch.num_rows for batch in LogReader(place))
        assert rows >= 0
        return True
    with LogWriter(place, BATCH.schema) as log:
        log.append(BATCH)
    return True
