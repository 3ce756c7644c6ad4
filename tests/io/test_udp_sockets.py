"""Real sockets on loopback: every datagram arrives or is counted."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from handshake.errors import InputError
from handshake.io.udp import mmsg
from handshake.io.udp.demux import Stream
from handshake.io.udp.log import LogReader
from handshake.io.udp.receive import read_counters, record
from handshake.io.udp.sockets import Endpoint, UdpReceiver, UdpSender
from handshake.io.udp.wire import Layout
from waiting import wait_until

TRADES = Layout.parse("Seqnr int, Symbol string(4), Price int, Volume int")
ANY = Endpoint("127.0.0.1", 0, sequence=True, max_datagram=300)


def trades(count: int) -> pa.Table:
    numbers = np.arange(count)
    columns = {
        name: pa.array(numbers * n % 10_007, pa.int32())
        for n, name in enumerate(("Seqnr", "Price", "Volume"), 1)
    }
    symbols = pa.array(["UBSN", "ABB", "é", ""]).take(pa.array(numbers % 4))
    table = pa.table({**columns, "Symbol": symbols})
    return table.select(TRADES.schema.names).cast(TRADES.schema)


def collect(receiver: UdpReceiver, **options: Any) -> dict[str, pa.Table]:
    found: dict[str, list[pa.RecordBatch]] = {}
    for batches in receiver.batches(**options):
        for name, batch in batches.items():
            found.setdefault(name, []).append(batch)
    return {name: pa.Table.from_batches(batches) for name, batches in found.items()}


@pytest.mark.parametrize("per_datagram", [1, 7])
@pytest.mark.parametrize(
    ("offload", "coalesce", "calls"),
    [(False, False, True), (True, False, True), (True, True, True), (False, False, False)],
    ids=["plain", "offload", "coalesced", "one-by-one"],
)
def test_what_is_sent_is_received(
    per_datagram: int, offload: bool, coalesce: bool, calls: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not calls:  # as on systems without recvmmsg and sendmmsg
        monkeypatch.setattr(mmsg, "_LIBC", None)
    sent = trades(5_000)
    endpoint = Endpoint("127.0.0.1", 0, True, 300, 64 << 20, coalesce)
    with UdpReceiver(endpoint, Stream("Trades", TRADES)) as receiver:
        with UdpSender(receiver.endpoint, TRADES, per_datagram=per_datagram, offload=offload) as sender:
            count = sender.send(sent)
            sender.end()
        got = collect(receiver, ends=1, idle=30)
        counters = receiver.counters
    assert got["Trades"].equals(sent)
    assert count == -(-5_000 // per_datagram)
    assert (counters.tuples, counters.missing, counters.malformed) == (5_000, 0, 0)
    assert counters.kernel_dropped == (0 if calls else counters.kernel_dropped)


def test_prepared_tuples_are_sent_again_with_new_numbers() -> None:
    sent = trades(100)
    with UdpReceiver(ANY, Stream("Trades", TRADES)) as receiver:
        with UdpSender(receiver.endpoint, TRADES, per_datagram=3) as sender:
            prepared = sender.prepare(sent)
            assert [sender.send_prepared(prepared) for _ in range(3)] == [34] * 3
            sender.end()
        got = collect(receiver, ends=1, idle=30)
        counters = receiver.counters
    assert got["Trades"].equals(pa.concat_tables([sent] * 3))
    assert (counters.datagrams - counters.ends, counters.missing, counters.out_of_sequence) == (102, 0, 0)


def test_what_the_kernel_drops_is_counted_exactly() -> None:
    receiver = mmsg.open_receiver("127.0.0.1", 0, 4096, coalesce=False)
    inbox = mmsg.Inbox(4096, 64)
    with UdpSender(Endpoint("127.0.0.1", receiver.getsockname()[1]), Layout.parse("x int")) as sender:
        sender.send({"x": list(range(3000))})
    while inbox.fill(receiver):
        pass
    dropped = mmsg.kernel_dropped(receiver)
    receiver.close()
    if dropped is None:
        pytest.skip("this system does not count drops per socket")
    assert dropped > 0
    assert inbox.count + dropped == 3000


def test_gaps_senders_and_bad_datagrams_are_told_apart(tmp_path: Path) -> None:
    bad = tmp_path / "bad.jsonl"
    with UdpReceiver(ANY, Stream("T", Layout.parse("x int")), bad=str(bad)) as receiver:
        address = ("127.0.0.1", receiver.endpoint.port)
        with socket.socket(type=socket.SOCK_DGRAM) as a, socket.socket(type=socket.SOCK_DGRAM) as b:
            for number in (3, 4, 8, 6):
                a.sendto(number.to_bytes(8, "big") + b"\0\0\0\1", address)
            b.sendto((100).to_bytes(8, "big") + b"\0\0\0\2\0\0\0\3", address)
            b.sendto((101).to_bytes(8, "big") + b"\0\0\0\2\0", address)
            b.sendto(b"short", address)
            b.sendto((102).to_bytes(8, "big") + b"\0" * 400, address)
        got = collect(receiver, idle=0.6)
        counters = receiver.counters
    assert got["T"].column("x").to_pylist() == [1, 1, 1, 1, 2, 3]
    assert (counters.datagrams, counters.tuples, counters.malformed) == (8, 6, 3)
    assert (counters.missing, counters.out_of_sequence, counters.repeated) == (2, 1, 0)
    reasons = [json.loads(line)["reason"] for line in bad.read_text().splitlines()]
    assert sorted(reasons) == [
        "longer than the receiver takes (max_datagram)",
        "no whole number of T's tuples of 4 bytes",
        "shorter than its sequence number of 8 bytes",
    ]


def test_strict_stops_and_ports_in_use_are_told() -> None:
    with UdpReceiver(Endpoint("127.0.0.1", 0), Stream("T", Layout.parse("x int")), strict=True) as receiver:
        with pytest.raises(
            InputError, match=rf"cannot receive on {receiver.endpoint}: Address already in use; is"
        ):
            UdpReceiver(receiver.endpoint, Stream("T", Layout.parse("x int")))
        with socket.socket(type=socket.SOCK_DGRAM) as sender:
            sender.sendto(b"abc", ("127.0.0.1", receiver.endpoint.port))
        with pytest.raises(
            InputError, match=r"malformed datagram of 3 bytes.*first bytes are 61 62 63. Unless"
        ):
            collect(receiver, idle=10)


def test_several_streams_in_one_input_go_to_their_logs(tmp_path: Path) -> None:
    orders = Layout.parse("MsgType byte, ClOrdId int, Side char, TransactTime long")
    cancels = Layout.parse("MsgType byte, ClOrdId int, OrigClOrdId int, TransactTime long")
    streams = (Stream("Orders", orders, (68,)), Stream("Cancels", cancels, (70, 71)))
    with UdpReceiver(ANY, streams, type_field="MsgType", arrival="At") as receiver:
        with UdpSender(receiver.endpoint, orders, per_datagram=3) as sender:
            sender.send(
                {
                    "MsgType": [68] * 5,
                    "ClOrdId": [1, 2, 3, 4, 5],
                    "Side": list("12312"),
                    "TransactTime": [9] * 5,
                }
            )
            sender.send(
                {"MsgType": [70, 71], "ClOrdId": [6, 7], "OrigClOrdId": [1, 2], "TransactTime": [10, 11]},
                layout=cancels,
            )
            sender.send({"MsgType": [99], "ClOrdId": [8], "Side": ["1"], "TransactTime": [12]})
            sender.end()
        counters = record(receiver, tmp_path, ends=1, idle=30)
    rows = {name: pa.Table.from_batches(list(LogReader(tmp_path / name))) for name in ("Orders", "Cancels")}
    assert rows["Orders"].column("ClOrdId").to_pylist() == [1, 2, 3, 4, 5]
    assert rows["Cancels"].drop(["At"]).to_pylist() == [
        {"MsgType": 70, "ClOrdId": 6, "OrigClOrdId": 1, "TransactTime": 10},
        {"MsgType": 71, "ClOrdId": 7, "OrigClOrdId": 2, "TransactTime": 11},
    ]
    assert rows["Orders"].schema.field("At").type == pa.timestamp("us", "UTC")
    assert (counters.unknown, counters.unknown_types, counters.tuples) == (1, {"99": 1}, 7)
    assert read_counters(tmp_path) == counters


_RECORD = """
import sys
from handshake.io.udp.demux import Stream
from handshake.io.udp.receive import record
from handshake.io.udp.sockets import Endpoint, UdpReceiver
from handshake.io.udp.wire import Layout
with UdpReceiver(Endpoint("127.0.0.1", 0, sequence=True), Stream("T", Layout.parse("x int"))) as receiver:
    print(receiver.endpoint.port, flush=True)
    try:
        record(receiver, sys.argv[1], sync=30, tell=lambda counters: print(counters.tuples, flush=True))
    except KeyboardInterrupt:
        print("interrupted after", receiver.counters.tuples, flush=True)
"""


def test_ctrl_c_writes_what_has_come(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", _RECORD, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    port = int(process.stdout.readline())
    with UdpSender(Endpoint("127.0.0.1", port, sequence=True), Layout.parse("x int")) as sender:
        sender.send({"x": list(range(1000))})
    wait_until(lambda: process.stdout.readline() == "1000\n")
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60)[0].splitlines()[-1] == "interrupted after 1000"
    rows = pa.Table.from_batches(list(LogReader(tmp_path / "T")))
    assert rows.column("x").to_pylist() == list(range(1000))
    assert read_counters(tmp_path).tuples == 1000


def test_a_rate_is_kept() -> None:
    with UdpSender(Endpoint("127.0.0.1", 9), Layout.parse("x int")) as sender:
        begun = time.monotonic()
        sender.send({"x": list(range(200))}, rate=1000)
        assert time.monotonic() - begun >= 0.19
