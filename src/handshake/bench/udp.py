"""`handshake bench udp`: datagrams per second over loopback into Arrow columns, and what is lost beyond that.

A sender in a process of its own sends trades of sixteen bytes, one per datagram, at a given rate. What the
receiver has decoded, what the kernel has counted as dropped, and what the sender has sent must add up.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from handshake.bench import report
from handshake.bench.child import in_child
from handshake.errors import InputError, suggest
from handshake.sources.demux import Counters, Stream
from handshake.sources.udp import Endpoint, UdpReceiver, UdpSender
from handshake.sources.wire import Layout

__all__ = ["run", "send"]

TRADES = Layout.parse("Seqnr int, Symbol string(4), Price int, Volume int")
RATES = (100_000, 200_000, 300_000, 500_000, 700_000, 1_000_000, 1_500_000)
_SYMBOLS = ("UBSN", "NESN", "ROG", "NOVN", "ABBN", "CSGN", "ZURN", "SREN")
MODES = {
    "plain": {"offload": False, "coalesce": False},
    "offload": {"offload": True, "coalesce": False},
    "both": {"offload": True, "coalesce": True},
}
"""Each datagram through the whole stack; sent in runs (UDP_SEGMENT); received in runs as well (UDP_GRO)."""


def run(
    rates: str | None = None, seconds: float = 2.0, buffer: int = 64, modes: str = "plain,offload,both"
) -> None:
    """Try rates from low to high in each mode; the highest without loss."""
    wanted, kinds = _rates(rates), [mode.strip() for mode in modes.split(",")]
    for mode in kinds:
        if mode not in MODES:
            raise InputError(f"no mode '{mode}'; there are {', '.join(MODES)}{suggest(mode, MODES)}")
    samples = [_sample(mode, rate, seconds, buffer << 20) for mode in kinds for rate in wanted]
    _show(samples)
    report.result(
        **{
            f"{mode}_lossless": _lossless(samples, mode) for mode in dict.fromkeys(s["mode"] for s in samples)
        },
        accounted=str(all(s["accounted"] for s in samples)).lower(),
    )


def _rates(text: str | None) -> list[int]:
    parts = (text or "").replace("_", "").split(",")
    if text is not None and not all(part.strip().isdigit() and int(part) > 0 for part in parts):
        raise InputError(f"--rates {text} are no whole numbers, such as 300000,1000000")
    return list(RATES) if text is None else [int(part) for part in parts]


def _lossless(samples: Sequence[dict[str, Any]], mode: str) -> int:
    kept = [s["rate"] for s in samples if s["mode"] == mode and not s["lost"]]
    return round(max(kept, default=0))


def _sample(mode: str, rate: int, seconds: float, buffer: int) -> dict[str, Any]:
    switches = MODES[mode]
    endpoint = Endpoint("127.0.0.1", 0, True, 256, buffer, switches["coalesce"])
    with UdpReceiver(endpoint, Stream("Trades", TRADES)) as receiver:
        told: dict[str, Any] = {}
        options: dict[str, Any] = {
            "port": receiver.endpoint.port,
            "rate": rate,
            "seconds": seconds,
            "offload": switches["offload"],
        }
        sender = threading.Thread(target=lambda: told.update(in_child("udp:send", **options)))
        before = os.times()
        sender.start()
        tuples = _drain(receiver, sender)
        after = os.times()
        counters = receiver.counters
    sample = _figures(mode, told, counters)
    sample |= {
        "asked": rate,
        "tuples": tuples,
        "receiver_us": _busy(before, after) / max(counters.datagrams, 1) * 1e6,
    }
    report.progress(f"{mode}: asked {rate:,}/s, sent {sample['rate']:,.0f}/s, lost {sample['lost']:,}")
    return sample


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


def _drain(receiver: UdpReceiver, sender: threading.Thread) -> int:
    """Take all that comes until the sender has ended and nothing is left; how many tuples."""
    tuples = 0
    for batches in receiver.batches(every=0.05):
        tuples += sum(batch.num_rows for batch in batches.values())
        if not batches and not sender.is_alive():
            receiver.stop()
    sender.join()
    return tuples


def send(port: int, rate: int, seconds: float, offload: bool) -> dict[str, Any]:
    """The sender's process: trades at a rate, then, when the receiver has had time, the mark of the end."""
    chunk = max(rate // 20, 1)
    trades = _trades(chunk)
    with UdpSender(Endpoint("127.0.0.1", port, True), TRADES, offload=offload) as sender:
        sender.send(trades.slice(0, 1))
        begun, busy = time.monotonic(), os.times()
        for step in range(round(seconds * 20)):
            time.sleep(max(begun + step / 20 - time.monotonic(), 0))
            sender.send(trades, rate=rate)
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


def _show(samples: Sequence[dict[str, Any]]) -> None:
    heads = ("mode", "asked/s", "sent/s", "sent", "received", "kernel dropped", "missing", "adds up",
             "µs/datagram, receiver", "sender")  # fmt: skip
    rows = [
        (
            s["mode"], f"{s['asked']:,}", f"{s['rate']:,.0f}", f"{s['sent']:,}", f"{s['got']:,}",
            f"{s['dropped']:,}", f"{s['missing']:,}", "yes" if s["accounted"] else "NO",
            f"{s['receiver_us']:.2f}", f"{s['sender_us']:.2f}",
        )
        for s in samples
    ]  # fmt: skip
    report.table("UDP over loopback into Arrow columns", heads, rows)
