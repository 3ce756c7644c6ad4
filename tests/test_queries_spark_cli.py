"""`handshake run --backend spark`, and the finance example: files, datagrams and formats of Spark's."""

from __future__ import annotations

import importlib.util
import json
import threading
from pathlib import Path
from typing import Any

import pyarrow.csv as csv
import pytest

from cli_runs import run_here
from spark_session import spark
from test_udp_cli import QUERY, free_port, send_all

__all__ = ["spark"]

pytest.importorskip("pyspark")
from handshake.cli_query_spark import Where, parse_input

TRADES = """CREATE INPUT STREAM Trades (Symbol string(4), Price int, Ts timestamp) TIMESTAMP BY Ts;
SELECT Symbol, Price + 1 AS More FROM Trades WHERE Price > 10 INTO Some;
SELECT Symbol, max(Price) AS High FROM Trades [SIZE 60 ADVANCE 30 TIME] GROUP BY Symbol INTO Highs;
SELECT wsum(Price, [1, .5]) AS W FROM Trades [SIZE 2 ADVANCE 1 TUPLES] INTO Weighted"""


def rows(path: Path) -> list[dict[str, Any]]:
    return sorted(csv.read_csv(path).to_pylist(), key=str)


def test_files_give_the_same_as_in_process(
    spark: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "q.sql").write_text(TRADES)
    lines = [
        f"{'UBSN' if n % 3 else 'ROG'},{n * 7 % 23},2024-01-01 00:0{n // 10}:{n % 10 * 6:02}"
        for n in range(40)
    ]
    (tmp_path / "t.csv").write_text(
        "\n".join(["Symbol,Price,Ts", *lines, "UBSN,many,2024-01-01 00:09:00", ""])
    )
    for backend in ("local", "spark"):
        outputs = [f"--output={n}={tmp_path / f'{backend}-{n}.csv'}" for n in ("Some", "Highs", "Weighted")]
        told = run_here(
            capfd, "run", tmp_path / "q.sql", "--input", f"Trades={tmp_path / 't.csv'}", "--backend", backend,
            "--metrics", tmp_path / "metrics.json", *outputs,
        )  # fmt: skip
        assert told.status == 0, told.err
        assert json.loads((tmp_path / "metrics.json").read_text())["bad"] == 1
    for name in ("Some", "Highs", "Weighted"):
        assert rows(tmp_path / f"spark-{name}.csv") == rows(tmp_path / f"local-{name}.csv") != []


def test_datagrams_go_through_the_log(spark: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "q.sql").write_text(QUERY)
    port = free_port()
    sender = threading.Thread(target=send_all, args=(port, QUERY))
    sender.start()
    told = run_here(
        capfd, "run", tmp_path / "q.sql", "--input", f"Feed=udp://127.0.0.1:{port}?sequence=yes&ends=1",
        "--backend", "spark", f"--output=Totals={tmp_path / 'totals.csv'}",
        f"--output=Bids={tmp_path / 'bids.csv'}",
        "--bad", tmp_path / "bad.jsonl", "--metrics", tmp_path / "metrics.json",
    )  # fmt: skip
    sender.join()
    assert told.status == 0, told.err
    assert [row["Bid"] for row in rows(tmp_path / "bids.csv")] == [3, 4, 5]
    closed = [{"Symbol": "ROG", "Total": 25}, {"Symbol": "UBSN", "Total": 20}]
    assert rows(tmp_path / "totals.csv") == closed  # the second window is still open
    counters = json.loads((tmp_path / "metrics.json").read_text())["datagrams"]["Feed"]
    assert (counters["tuples"], counters["malformed"], counters["unknown"]) == (25, 1, 1)
    assert (tmp_path / "bad.jsonl").read_text().count("\n") == 1


def test_the_finance_example(spark: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = Path(__file__).parent.parent / "examples" / "finance.py"
    spec = importlib.util.spec_from_file_location("example_finance", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.run(tmp_path, rate=1000, seconds=3, speed=600, port=free_port())
    out = capfd.readouterr().out
    assert "sent 3,000 datagrams" in out
    assert "PriceAverages" in out


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("trades.parquet", Where("file", "trades.parquet")),
        ("/a/b:c.csv", Where("file", "/a/b:c.csv")),
        ("udp://127.0.0.1:5?sequence=yes", Where("udp", "udp://127.0.0.1:5?sequence=yes")),
        ("rate", Where("rate")),
        (
            "kafka:kafka.bootstrap.servers=h:9092,subscribe=t",
            Where("kafka", "", {"kafka.bootstrap.servers": "h:9092", "subscribe": "t"}),
        ),
        (
            "delta:/lake/trades,maxFilesPerTrigger=1",
            Where("delta", "/lake/trades", {"maxFilesPerTrigger": "1"}),
        ),
    ],
)
def test_where_inputs_come_from(text: str, wanted: Where) -> None:
    assert parse_input(text) == wanted


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--input", "Trades=nosuch:x=1"], "Spark cannot read 'nosuch' for stream Trades: "),
        (["--input", "Trades=-"], "--backend spark does not read standard input; give a file"),
        (["--input", "Trades=t.csv", "--pace", "1"], "--pace is for --backend local"),
        (
            ["--input", "Trades=rate:a,b"],
            "'b' in --input 'rate:a,b' is no option; write FORMAT:PATH,option=value",
        ),
    ],
)
def test_inputs_that_spark_cannot_read(
    spark: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str], given: list[str], message: str
) -> None:
    (tmp_path / "q.sql").write_text(TRADES)
    told = run_here(capfd, "run", tmp_path / "q.sql", "--backend", "spark", *given)
    assert told.status == 2
    assert message in told.err
