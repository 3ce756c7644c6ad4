"""A feed of datagrams for tests of the command line, and the query that reads it."""

from __future__ import annotations

import socket
from pathlib import Path

from handshake.io.udp.receive import layout_of
from handshake.io.udp.sockets import Endpoint, UdpSender
from handshake.plan.query import parse_query
from waiting import wait_until

SOCKETS = Path("/proc/net/udp")
QUERY = """
CREATE INPUT STREAM Feed (Kind byte);
CREATE INPUT STREAM Trades (Kind byte, Symbol string(4), Price int, Ts long)
    FROM Feed WHERE Kind = 84 TIMESTAMP BY Ts;
CREATE INPUT STREAM Quotes (Kind byte, Bid int) FROM Feed WHERE Kind IN (81, 82);
SELECT Symbol, sum(Price) AS Total FROM Trades [SIZE 10 ADVANCE 10 TIME] GROUP BY Symbol INTO Totals;
SELECT Bid FROM Quotes WHERE Bid > 2 INTO Bids
"""


def free_port() -> int:
    with socket.socket(type=socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def listening(port: int) -> bool:
    """Return whether a process listens on a port.

    On Linux the kernel is asked. A socket that tries the port would keep the receiver from it at that moment.
    """
    if SOCKETS.exists():
        return f":{port:04X} " in SOCKETS.read_text()
    with socket.socket(type=socket.SOCK_DGRAM) as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False


def send_all(port: int, query: str) -> None:
    """Wait for the receiver; send 20 trades, 5 quotes, one datagram of an unknown kind and a broken one."""
    wait_until(lambda: listening(port))
    layouts = {source.name: layout_of(source) for source in parse_query(query).inputs}
    numbers = list(range(20))
    trades = {"Kind": [84] * 20, "Symbol": ["UBSN", "ROG"] * 10, "Price": numbers, "Ts": numbers}
    with UdpSender(Endpoint("127.0.0.1", port, sequence=True), layouts["Trades"], per_datagram=3) as sender:
        sender.send(trades)
        sender.send({"Kind": [81, 82, 81, 81, 82], "Bid": [1, 2, 3, 4, 5]}, layout=layouts["Quotes"])
        sender.send({"Kind": [99], "Bid": [1]}, layout=layouts["Quotes"])
        sender._outbox.send(
            sender._add_header(layouts["Quotes"].pack({"Kind": [81], "Bid": [9]}).view("u1")[None, :3])
        )
        sender.end()
