"""Datagrams on the command line: received into a log, sent from a file, queried as they come."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from handshake.cli.app import run
from handshake.io.udp.log import LogReader
from handshake.io.udp.receive import direct, streams_for
from handshake.operators.query import Query
from handshake.plan.query import parse_query
from handshake_bench import udp
from udp_feed import QUERY, free_port, listening, send_all
from waiting import wait_until


@pytest.fixture
def query(tmp_path: Path) -> Path:
    path = tmp_path / "query.sql"
    path.write_text(QUERY)
    return path


def test_a_query_on_datagrams(query: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    port = free_port()
    sender = threading.Thread(target=send_all, args=(port, QUERY))
    sender.start()
    files = {name: tmp_path / name for name in ("totals.csv", "bids.csv", "bad.csv", "metrics.json")}
    status = run([
        "run", str(query), "--input", f"Feed=udp://127.0.0.1:{port}?sequence=yes&ends=1",
        "--output", f"Totals={files['totals.csv']}", "--output", f"Bids={files['bids.csv']}",
        "--bad", str(files["bad.csv"]), "--metrics", str(files["metrics.json"]),
    ])  # fmt: skip
    sender.join()
    said = capsys.readouterr()
    assert status == 0, said.err
    assert files["totals.csv"].read_text().splitlines()[1:] == [
        '"UBSN",20',
        '"ROG",25',
        '"UBSN",70',
        '"ROG",75',
    ]
    assert files["bids.csv"].read_text().splitlines()[1:] == ["3", "4", "5"]
    assert "no whole number of Quotes's tuples of 5 bytes" in files["bad.csv"].read_text()
    counters = json.loads(files["metrics.json"].read_text())["datagrams"]["Feed"]
    assert (counters["tuples"], counters["malformed"], counters["unknown_types"]) == (25, 1, {"99": 1})
    assert "14, 1 malformed, 1 of unknown type" in said.out


def test_strict_stops_the_query(query: Path, capsys: pytest.CaptureFixture[str]) -> None:
    port = free_port()
    sender = threading.Thread(target=send_all, args=(port, QUERY))
    sender.start()
    given = f"Feed=udp://127.0.0.1:{port}?sequence=yes&ends=1"
    assert run(["run", str(query), "--input", given, "--strict"]) == 2
    sender.join()
    assert "no whole number of Quotes's tuples of 5 bytes" in capsys.readouterr().err


def test_received_into_a_log_and_sent_again(
    query: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    port = free_port()
    sender = threading.Thread(target=send_all, args=(port, QUERY))
    sender.start()
    url = f"udp://127.0.0.1:{port}?sequence=yes"
    options = ["--query", str(query), "--input", "Feed", "--log", str(tmp_path / "log"), "--ends", "1"]
    assert run(["receive", url, *options, "--bad", str(tmp_path / "bad.jsonl")]) == 0
    sender.join()
    counters = json.loads(capsys.readouterr().out)
    assert (counters["tuples"], counters["malformed"], counters["unknown"]) == (25, 1, 1)
    assert json.loads((tmp_path / "bad.jsonl").read_text())["length"] == 11
    quotes = pa.Table.from_batches(list(LogReader(tmp_path / "log" / "Quotes")))
    assert quotes.column("Bid").to_pylist() == [1, 2, 3, 4, 5]
    assert quotes.column_names == ["Kind", "Bid", "__arrival"]

    pq.write_table(quotes.select(["Kind", "Bid"]), tmp_path / "quotes.parquet")
    again = threading.Thread(target=lambda: told.append(_receive(url, query, tmp_path / "again")))
    told: list[Any] = []
    again.start()
    wait_until(lambda: listening(port))
    assert (
        run(
            [
                "send",
                str(tmp_path / "quotes.parquet"),
                url,
                "--query",
                str(query),
                "--input",
                "Quotes",
                "--offload",
            ]
        )
        == 0
    )
    again.join()
    assert told == [[1, 2, 3, 4, 5]]


def _receive(url: str, query: Path, folder: Path) -> list[int]:
    from handshake.io.udp.receive import receiver_for, record

    with receiver_for(url, parse_query(query.read_text()), "Feed") as receiver:
        record(receiver, folder, ends=1, idle=30)
    return [n for batch in LogReader(folder / "Quotes") for n in batch.column("Bid").to_pylist()]


def test_what_cannot_be_received(query: Path, capsys: pytest.CaptureFixture[str]) -> None:
    port = free_port()
    given = ["run", str(query), "--input", f"Feed=udp://127.0.0.1:{port}?sequnce=yes"]
    assert run(given) == 2
    assert "has the unknown option 'sequnce'" in capsys.readouterr().err
    text = "CREATE INPUT STREAM S (x string, y int); SELECT x FROM S INTO A"
    query.write_text(text)
    assert run(["run", str(query), "--input", f"S=udp://127.0.0.1:{port}"]) == 2
    assert "field 'x' is a string without a width" in capsys.readouterr().err
    two = (
        "CREATE INPUT STREAM A (x int); CREATE INPUT STREAM B (x int); SELECT x FROM A UNION SELECT x FROM B"
    )
    query.write_text(two)
    assert run(["run", str(query), "--input", f"A=udp://127.0.0.1:{port}", "--input", "B=b.csv"]) == 2
    assert "stream A comes over UDP and B from a file, which have no common order" in capsys.readouterr().err


def test_streams_of_an_input_are_told_apart_as_declared() -> None:
    plan = parse_query(QUERY)
    streams, field = streams_for(plan, "Feed")
    assert [(s.name, s.types, s.layout.width) for s in streams] == [
        ("Trades", (84,), 17),
        ("Quotes", (81, 82), 5),
    ]
    assert field == "Kind"
    assert [source.name for source in direct(plan).inputs] == ["Trades", "Quotes"]


def test_the_benchmark_accounts_for_every_datagram(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "udp", "--rates", "2000", "--seconds", "0.2", "--modes", "plain,both"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert re.fullmatch(r"RESULT plain_lossless=\d+ both_lossless=\d+ accounted=true", last)
    assert run(["bench", "udp", "--modes", "plane"]) == 2
    assert "no mode 'plane'; there are plain, offload, both; did you mean 'plain'?" in capsys.readouterr().err
    assert run(["bench", "udp", "--rates", "many"]) == 2
    assert "'many' is not a list of whole numbers from 1 up" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("short", "long", "found"),
    [(9e9, 9e9, 1_000_000), (700_000, 700_000, 687_500), (700_000, 600_000, 550_000), (0, 0, 0)],
    ids=["all", "found by halving", "less for longer", "none"],
)
def test_the_highest_rate_is_searched_for(short: float, long: float, found: int) -> None:
    """A network that keeps rates up to `short` for a second and up to `long` for three, of a million."""

    def trial(rate: float | None, seconds: float) -> dict[str, Any]:
        sent = 1_000_000 if rate is None else rate
        return {"rate": sent, "lost": int(sent > (long if seconds > 1 else short))}

    assert udp._search(trial, 1.0) == found


def test_ctrl_c_finishes_what_has_come(
    query: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    port, pushed = free_port(), []
    push_together = Query.push_together

    def count_rows(self: Query, given: dict[str, Any]) -> Any:
        found = push_together(self, given)
        pushed.extend(len(rows) for rows, _ in given.values())
        return found

    monkeypatch.setattr(Query, "push_together", count_rows)

    def interrupt() -> None:
        send_all(port, QUERY)
        wait_until(lambda: sum(pushed) == 25, what="the last of 25 rows")
        os.kill(os.getpid(), signal.SIGINT)

    sender = threading.Thread(target=interrupt)
    sender.start()
    given = ["--input", f"Feed=udp://127.0.0.1:{port}?sequence=yes"]
    assert run(["run", str(query), *given, "--output", f"Totals={tmp_path / 'totals.csv'}"]) == 130
    sender.join()
    assert "Ctrl-C, after the rows above" in capsys.readouterr().out
    assert len((tmp_path / "totals.csv").read_text().splitlines()) == 5
