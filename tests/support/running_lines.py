"""Handshake lines with threads, and a stream to push into them."""

from __future__ import annotations

import threading

import numpy as np
import pyarrow as pa

from handshake.joins.arrangements.handshake.line import Handshake
from handshake.joins.join import prepare

SCHEMA = pa.schema([("t", pa.timestamp("us")), ("x", pa.int64())])


def stream(rows: int, seed: int = 0, values: int = 50) -> pa.RecordBatch:
    """Return rows of random values, one per millisecond."""
    times = pa.array(np.arange(rows, dtype=np.int64) * 1000).view(pa.timestamp("us"))
    x = np.random.default_rng(seed).integers(0, values, rows)
    return pa.RecordBatch.from_arrays([times, pa.array(x)], schema=SCHEMA)


def line_of(on="l.x = r.x", window="1 s", cores=3, **more) -> Handshake:
    return Handshake(prepare(SCHEMA, SCHEMA, on, window, time="t", **more).spec, cores=cores)


def threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith("handshake core")]
