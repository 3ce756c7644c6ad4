"""Datagrams into logs: one log per stream in a folder, and the receiver's counters beside them."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

from handshake.io.udp.demux import Counters
from handshake.io.udp.log import LogWriter
from handshake.io.udp.sockets import UdpReceiver

__all__ = ["COUNTERS", "read_counters", "record"]

COUNTERS = "counters.json"
_TELL = 1.0
"""Seconds between two updates of the counters' file."""


def record(
    receiver: UdpReceiver,
    folder: str | Path,
    *,
    sync: float = 0.2,
    segment_bytes: int = 64 << 20,
    keep_bytes: int | None = None,
    idle: float | None = None,
    ends: int | None = None,
    tell: Callable[[Counters], None] | None = None,
) -> Counters:
    """Write what a receiver gets into `folder`/<stream>/ until it ends; `tell` hears of it once a second.

    Ctrl-C ends it too, once what the kernel holds is written: `KeyboardInterrupt` is raised after that.
    """
    names = [stream.name for stream in receiver.demux.streams]
    options = {"sync": sync, "segment_bytes": segment_bytes, "keep_bytes": keep_bytes}
    logs = {name: LogWriter(Path(folder) / name, receiver.schema(name), **options) for name in names}  # type: ignore[arg-type]
    try:
        try:
            _pour(receiver, logs, Path(folder), idle, ends, tell)
        except KeyboardInterrupt:
            receiver.stop()
            _pour(receiver, logs, Path(folder), None, None, None)
            raise
    finally:
        for log in logs.values():
            log.close()
        _write_counters(Path(folder), receiver.counters)
    return receiver.counters


def _pour(
    receiver: UdpReceiver, logs: dict[str, LogWriter], folder: Path, idle: float | None, ends: int | None,
    tell: Callable[[Counters], None] | None,
) -> None:  # fmt: skip
    told = time.monotonic()
    for batches in receiver.batches(idle=idle, ends=ends):
        for name, batch in batches.items():
            logs[name].append(batch)
        for log in logs.values():
            log.tick()
        if time.monotonic() - told >= _TELL:
            told = time.monotonic()
            _write_counters(folder, receiver.counters)
            if tell is not None:
                tell(receiver.counters)


def _write_counters(folder: Path, counters: Counters) -> None:
    partial = folder / f"{COUNTERS}.partial"
    partial.write_text(json.dumps(counters.json()) + "\n")
    os.replace(partial, folder / COUNTERS)


def read_counters(folder: str | Path) -> Counters:
    """What a receiver last said about the logs in a folder."""
    path = Path(folder) / COUNTERS
    return Counters(**json.loads(path.read_text())) if path.exists() else Counters()
