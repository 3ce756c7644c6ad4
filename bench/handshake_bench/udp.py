"""`handshake bench udp`: datagrams per second over loopback into Arrow columns, and what is lost beyond that.

A sender in a process of its own sends trades of sixteen bytes, one per datagram, at a given rate. What the
receiver has decoded, what the kernel has counted as dropped, and what the sender has sent must add up.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from handshake.errors import InputError, suggest
from handshake.io.udp.demux import Counters, Stream
from handshake.io.udp.log import LogWriter
from handshake.io.udp.sockets import Endpoint, UdpReceiver, UdpSender
from handshake.io.udp.wire import Layout
from handshake_bench import report
from handshake_bench.child import in_child

__all__ = ["run", "send"]

TRADES = Layout.parse("Seqnr int, Symbol string(4), Price int, Volume int")
_LONGER, _HALVINGS, _SHARES = 3, 5, (1.0, 0.9, 0.8, 0.7, 0.6, 0.5)
"""A rate counts when kept for so many times a trial's time; the search's steps; what to try in the end."""
_CHUNK = 10_000
"""Different datagrams: they are packed once and sent again and again, with new numbers."""
_SYMBOLS = ("UBSN", "NESN", "ROG", "NOVN", "ABBN", "CSGN", "ZURN", "SREN")
MODES = {
    "plain": {"offload": False, "coalesce": False},
    "offload": {"offload": True, "coalesce": False},
    "both": {"offload": True, "coalesce": True},
}
"""Each datagram through the whole stack; sent in runs (UDP_SEGMENT); received in runs as well (UDP_GRO)."""


def run(
    rates: str | None = None, seconds: float = 2.0, buffer: int = 64, modes: str = "plain,offload,both",
    log: bool = False,
) -> None:  # fmt: skip
    """The highest rate without loss in each mode: searched for, or out of those given."""
    wanted, kinds = _rates(rates), [mode.strip() for mode in modes.split(",")]
    for mode in kinds:
        if mode not in MODES:
            raise InputError(f"no mode '{mode}'; there are {', '.join(MODES)}{suggest(mode, MODES)}")
    samples: list[dict[str, Any]] = []
    found = {}
    for mode in dict.fromkeys(kinds):
        trial = partial(_noted, samples, mode, buffer << 20, log)
        found[mode] = _search(trial, seconds) if wanted is None else _best(trial, wanted, seconds)
    _show(samples, log)
    report.result(
        **{f"{mode}_lossless": rate for mode, rate in found.items()},
        accounted=str(all(s["accounted"] for s in samples)).lower(),
    )


Trial = Callable[[float | None, float], dict[str, Any]]
"""A rate (None: as fast as can be) for some seconds; its figures."""


def _noted(
    samples: list[dict[str, Any]], mode: str, buffer: int, log: bool, rate: float | None, seconds: float
) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        samples.append(_sample(mode, rate, seconds, buffer, Path(folder) if log else None))
    return samples[-1]


def _best(trial: Trial, rates: Sequence[float], seconds: float) -> int:
    kept = [s["rate"] for s in [trial(rate, seconds) for rate in rates] if not s["lost"]]
    return round(max(kept, default=0))


def _search(trial: Trial, seconds: float) -> int:
    """The highest rate that loses nothing for three times as long as a trial takes; 0: none was found."""
    fastest = trial(None, _LONGER * seconds)
    if not fastest["lost"]:
        return round(float(fastest["rate"]))
    low, high = 0.0, fastest["rate"]
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if trial(middle, seconds)["lost"] else (middle, high)
    shown = (trial(low * share, _LONGER * seconds) for share in _SHARES if low)
    return next((round(sample["rate"]) for sample in shown if not sample["lost"]), 0)


def _rates(text: str | None) -> list[int] | None:
    parts = (text or "").replace("_", "").split(",")
    if text is not None and not all(part.strip().isdigit() and int(part) > 0 for part in parts):
        raise InputError(f"--rates {text} are no whole numbers, such as 300000,1000000")
    return None if text is None else [int(part) for part in parts]


def _sample(mode: str, rate: float | None, seconds: float, buffer: int, log: Path | None) -> dict[str, Any]:
    switches = MODES[mode]
    endpoint = Endpoint("127.0.0.1", 0, True, 256, buffer, switches["coalesce"])
    with UdpReceiver(endpoint, Stream("Trades", TRADES)) as receiver:
        told: dict[str, Any] = {}
        options: dict[str, Any] = {
            "port": receiver.endpoint.port, "rate": rate, "seconds": seconds, "offload": switches["offload"],
        }  # fmt: skip
        sender = threading.Thread(target=lambda: told.update(in_child("udp:send", **options)))
        before = os.times()
        sender.start()
        tuples = _drain(receiver, sender, log)
        after = os.times()
        counters = receiver.counters
    busy = _busy(before, after) / max(counters.datagrams, 1) * 1e6
    sample = _figures(mode, told, counters) | {"asked": rate, "tuples": tuples, "receiver_us": busy}
    report.progress(f"{mode}: asked {_asked(rate)}, sent {sample['rate']:,.0f}/s, lost {sample['lost']:,}")
    return sample


def _asked(rate: float | None) -> str:
    return "most" if rate is None else f"{rate:,.0f}"


def _figures(mode: str, told: dict[str, Any], counters: Counters) -> dict[str, Any]:
    sent, got, dropped = told["sent"], counters.datagrams, counters.kernel_dropped or 0
    # of coalesced datagrams the kernel counts runs, so that only the sequence numbers tell the loss
    accounted = got + counters.missing == sent and (MODES[mode]["coalesce"] or got + dropped == sent)
    return {
        "mode": mode, "rate": told["datagrams"] / told["seconds"],
        "sent": sent, "got": got, "lost": sent - got,
        "dropped": dropped, "missing": counters.missing, "accounted": accounted,
        "sender_us": told["cpu"] / sent * 1e6,
    }  # fmt: skip


def _busy(before: os.times_result, after: os.times_result) -> float:
    """Seconds of processor time, in this process and in the kernel for it."""
    return (after.user + after.system) - (before.user + before.system)


def _drain(receiver: UdpReceiver, sender: threading.Thread, log: Path | None) -> int:
    """Take all that comes until the sender has ended and nothing is left; how many tuples."""
    tuples = 0
    with nullcontext() if log is None else LogWriter(log, receiver.schema("Trades")) as writer:
        for batches in receiver.batches(every=0.05):
            for batch in batches.values():
                tuples += batch.num_rows
                if writer is not None:
                    writer.append(batch)
            if not batches and not sender.is_alive():
                receiver.stop()
    sender.join()
    return tuples


def send(port: int, rate: float | None, seconds: float, offload: bool) -> dict[str, Any]:
    """The sender's process: trades at a rate, then, when the receiver has had time, the mark of the end."""
    with UdpSender(Endpoint("127.0.0.1", port, True), TRADES, offload=offload) as sender:
        trades = sender.prepare(_trades(_CHUNK if rate is None else max(round(rate / 20), 1)))
        sender.end(1)  # counting begins with the first datagram that is seen: this one is
        begun, busy = time.monotonic(), os.times()
        while time.monotonic() < begun + seconds:
            due = 0.0 if rate is None else begun + (sender.sent - 1) / rate - time.monotonic()
            time.sleep(max(due, 0))
            sender.send_prepared(trades, rate=rate)
        took, datagrams, spent = time.monotonic() - begun, sender.sent - 1, _busy(busy, os.times())
        for _ in range(4):
            time.sleep(0.25)
            sender.end(1)
    return {"sent": sender.sent, "datagrams": datagrams, "seconds": took, "cpu": spent}


def _trades(count: int) -> pa.Table:
    random = np.random.default_rng(1)
    columns = {
        name: pa.array(random.integers(1, 10_000, count), pa.int32()) for name in ("Seqnr", "Price", "Volume")
    }
    symbols = pa.array(_SYMBOLS).take(pa.array(random.integers(0, len(_SYMBOLS), count)))
    return pa.table({**columns, "Symbol": symbols})


def _show(samples: Sequence[dict[str, Any]], log: bool) -> None:
    heads = ("mode", "asked/s", "sent/s", "sent", "missing", "dropped", "adds up", "recv µs", "send µs")
    rows = [
        (
            s["mode"], _asked(s["asked"]), f"{s['rate']:,.0f}", f"{s['sent']:,}",
            f"{s['missing']:,}", f"{s['dropped']:,}", "yes" if s["accounted"] else "NO",
            f"{s['receiver_us']:.2f}", f"{s['sender_us']:.2f}",
        )
        for s in samples
    ]  # fmt: skip
    report.table(f"UDP over loopback into {'a durable log' if log else 'Arrow columns'}", heads, rows)
