"""`handshake bench udp`: datagrams per second over loopback into Arrow columns without loss.

A sender process sends trades of sixteen bytes, one per datagram, at a given rate. The numbers of datagrams
decoded by the receiver, dropped by the kernel and sent by the sender must add up.
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
from handshake_bench.options import parse_numbers

__all__ = ["run", "send"]

TRADES = Layout.parse("Seqnr int, Symbol string(4), Price int, Volume int")
_LONGER, _HALVINGS, _SHARES = 3, 5, (1.0, 0.9, 0.8, 0.7, 0.6, 0.5)
"""Factor of the final trial's time, number of bisections, and shares of the rate for final trials."""
_CHUNK = 10_000
"""Number of different datagrams, which are packed once and sent repeatedly with new numbers."""
_SYMBOLS = ("UBSN", "NESN", "ROG", "NOVN", "ABBN", "CSGN", "ZURN", "SREN")
MODES = {
    "plain": {"offload": False, "coalesce": False},
    "offload": {"offload": True, "coalesce": False},
    "both": {"offload": True, "coalesce": True},
}
"""Datagrams one by one; sent in runs (UDP_SEGMENT); also received in runs (UDP_GRO)."""


def run(
    rates: str | None = None, seconds: float = 2.0, buffer: int = 64, modes: str = "plain,offload,both",
    log: bool = False,
) -> None:  # fmt: skip
    """Find the highest rate without loss in each mode, by search or among the given rates."""
    wanted = None if rates is None else parse_numbers(rates, "300000,1000000")
    kinds = [mode.strip() for mode in modes.split(",")]
    for mode in kinds:
        if mode not in MODES:
            raise InputError(f"no mode '{mode}'; there are {', '.join(MODES)}{suggest(mode, MODES)}")
    samples: list[dict[str, Any]] = []
    found = {}
    for mode in dict.fromkeys(kinds):
        trial = partial(_run_trial, samples, mode, buffer << 20, log)
        found[mode] = _search(trial, seconds) if wanted is None else _best(trial, wanted, seconds)
    _show(samples, log)
    report.result(
        **{f"{mode}_lossless": rate for mode, rate in found.items()},
        accounted=str(all(s["accounted"] for s in samples)).lower(),
    )


Trial = Callable[[float | None, float], dict[str, Any]]
"""A function from a rate (None: as fast as possible) and seconds to figures."""


def _run_trial(
    samples: list[dict[str, Any]], mode: str, buffer: int, log: bool, rate: float | None, seconds: float
) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        samples.append(_sample(mode, rate, seconds, buffer, Path(folder) if log else None))
    return samples[-1]


def _best(trial: Trial, rates: Sequence[float], seconds: float) -> int:
    kept = [s["rate"] for s in [trial(rate, seconds) for rate in rates] if not s["lost"]]
    return round(max(kept, default=0))


def _search(trial: Trial, seconds: float) -> int:
    """Return the highest rate without loss in a trial of three times the length, or 0."""
    fastest = trial(None, _LONGER * seconds)
    if not fastest["lost"]:
        return round(float(fastest["rate"]))
    low, high = 0.0, fastest["rate"]
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if trial(middle, seconds)["lost"] else (middle, high)
    shown = (trial(low * share, _LONGER * seconds) for share in _SHARES if low)
    return next((round(sample["rate"]) for sample in shown if not sample["lost"]), 0)


def _sample(mode: str, rate: float | None, seconds: float, buffer: int, log: Path | None) -> dict[str, Any]:
    switches = MODES[mode]
    endpoint = Endpoint("127.0.0.1", 0, True, 256, buffer, switches["coalesce"])
    with UdpReceiver(endpoint, Stream("Trades", TRADES)) as receiver:
        report_of_sender: dict[str, Any] = {}
        options: dict[str, Any] = {
            "port": receiver.endpoint.port, "rate": rate, "seconds": seconds, "offload": switches["offload"],
        }  # fmt: skip
        sender = threading.Thread(target=lambda: report_of_sender.update(in_child("udp:send", **options)))
        before = os.times()
        sender.start()
        tuples = _drain(receiver, sender, log)
        after = os.times()
        counters = receiver.counters
    busy = _busy(before, after) / max(counters.datagrams, 1) * 1e6
    sample = _figures(mode, report_of_sender, counters) | {
        "asked": rate,
        "tuples": tuples,
        "receiver_us": busy,
    }
    report.progress(
        f"{mode}: asked {_rate_text(rate)}, sent {sample['rate']:,.0f}/s, lost {sample['lost']:,}"
    )
    return sample


def _rate_text(rate: float | None) -> str:
    return "most" if rate is None else f"{rate:,.0f}"


def _figures(mode: str, report_of_sender: dict[str, Any], counters: Counters) -> dict[str, Any]:
    sent, got, dropped = report_of_sender["sent"], counters.datagrams, counters.kernel_dropped or 0
    # The kernel counts coalesced datagrams by run, so only sequence numbers show the loss.
    accounted = got + counters.missing == sent and (MODES[mode]["coalesce"] or got + dropped == sent)
    return {
        "mode": mode, "rate": report_of_sender["datagrams"] / report_of_sender["seconds"],
        "sent": sent, "got": got, "lost": sent - got,
        "dropped": dropped, "missing": counters.missing, "accounted": accounted,
        "sender_us": report_of_sender["cpu"] / sent * 1e6,
    }  # fmt: skip


def _busy(before: os.times_result, after: os.times_result) -> float:
    """Return the seconds of user and kernel time of this process."""
    return (after.user + after.system) - (before.user + before.system)


def _drain(receiver: UdpReceiver, sender: threading.Thread, log: Path | None) -> int:
    """Receive until the sender has ended and nothing is left; return the number of tuples."""
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
    """Send trades at a rate, wait for the receiver, then send the end marker."""
    with UdpSender(Endpoint("127.0.0.1", port, True), TRADES, offload=offload) as sender:
        trades = sender.prepare(_trades(_CHUNK if rate is None else max(round(rate / 20), 1)))
        sender.end(1)  # the receiver counts from the first datagram it sees
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
            s["mode"], _rate_text(s["asked"]), f"{s['rate']:,.0f}", f"{s['sent']:,}",
            f"{s['missing']:,}", f"{s['dropped']:,}", "yes" if s["accounted"] else "NO",
            f"{s['receiver_us']:.2f}", f"{s['sender_us']:.2f}",
        )
        for s in samples
    ]  # fmt: skip
    report.table(f"UDP over loopback into {'a durable log' if log else 'Arrow columns'}", heads, rows)
