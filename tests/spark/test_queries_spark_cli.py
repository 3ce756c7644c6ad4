"""`handshake run --backend spark`, and the finance example: files, datagrams and formats of Spark's."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any

import pyarrow.csv as csv
import pytest

from cli_runs import COMMAND, run_here
from spark_processes import environment, family
from spark_session import spark
from udp_feed import QUERY, free_port, send_all
from waiting import wait_until

__all__ = ["spark"]

pytest.importorskip("pyspark")
from handshake.engines.spark.queries.runs import Where, parse_input

pytestmark = pytest.mark.classic("commands start or take a session with a JVM")

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
            "--metrics", tmp_path / "metrics.json", "--bad", tmp_path / f"{backend}-bad.csv", *outputs,
        )  # fmt: skip
        assert told.status == 0, told.err
        assert json.loads((tmp_path / "metrics.json").read_text())["bad"] == 1
    for name in ("Some", "Highs", "Weighted", "bad"):
        assert rows(tmp_path / f"spark-{name}.csv") == rows(tmp_path / f"local-{name}.csv") != []


MIXED = """CREATE INPUT STREAM Mux (kind byte, v int, t int) TIMESTAMP BY t;
CREATE INPUT STREAM A (kind byte, v int, t int) FROM Mux WHERE kind = 1 TIMESTAMP BY t;
SELECT sum(v) AS s FROM A [SIZE 2 ADVANCE 2 TIME] INTO Sums;
SELECT sum(v) AS s FROM A [SIZE 2 ADVANCE 1 TUPLES] INTO Pairs"""


def test_files_in_any_order_are_replayed_by_time_and_told_apart(
    spark: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "q.sql").write_text(MIXED)
    lines = [f"{1 if n % 4 else 7},{n},{'' if n == 9 else n * 7 % 11}" for n in range(20)]
    (tmp_path / "m.csv").write_text("\n".join(["kind,v,t", *lines, ""]))
    told = {}
    for backend in ("local", "spark"):
        outputs = [f"--output={n}={tmp_path / f'{backend}-{n}.csv'}" for n in ("Sums", "Pairs")]
        command = ["run", tmp_path / "q.sql", "--input", f"Mux={tmp_path / 'm.csv'}", "--backend", backend]
        done = run_here(capfd, *command, "--metrics", tmp_path / "metrics.json", *outputs)
        assert done.status == 0, done.err
        assert re.search(r"^of no stream +5 rows$", done.out, re.MULTILINE)
        told[backend] = json.loads((tmp_path / "metrics.json").read_text())
    for name in ("Sums", "Pairs"):
        assert rows(tmp_path / f"spark-{name}.csv") == rows(tmp_path / f"local-{name}.csv") != []
    wanted = {"unknown": 5, "late": 0, "no_time": 1}
    assert wanted.items() <= told["local"].items()
    assert wanted.items() <= told["spark"].items()


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
    assert json.loads((tmp_path / "bad.jsonl").read_text())["stream"] == "Feed"


def test_the_finance_example(spark: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = Path(__file__).parents[2] / "examples" / "finance.py"
    spec = importlib.util.spec_from_file_location("example_finance", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.run(tmp_path, rate=1000, seconds=3, speed=600, port=free_port())
    out = capfd.readouterr().out
    assert "sent 3,000 datagrams" in out
    assert "PriceAverages" in out


ENDLESS = """CREATE INPUT STREAM Rate (timestamp timestamp, value long) TIMESTAMP BY timestamp;
CREATE INPUT STREAM Few (timestamp timestamp, value long) FROM Rate WHERE value IN (0, 1, 150)
TIMESTAMP BY timestamp;
SELECT value FROM Few INTO Some;
SELECT window_start() AS start, count() AS n FROM Rate [SIZE 1 ADVANCE 1 TIME] INTO Seconds"""


def test_ctrl_c_drains_and_reports(tmp_path: Path) -> None:
    (tmp_path / "q.sql").write_text(ENDLESS)
    command = [
        *COMMAND, "run", str(tmp_path / "q.sql"), "--input", "Rate=rate:rowsPerSecond=100,numPartitions=2",
        "--backend", "spark", "--cores", "2", "--metrics", str(tmp_path / "metrics.json"),
        "--output", f"Some={tmp_path / 'some.csv'}", "--output", f"Seconds={tmp_path / 'seconds.csv'}",
    ]  # fmt: skip
    told = tmp_path / "err.txt"
    with (
        open(told, "w") as err,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=err, text=True, env=environment(), start_new_session=True
        ) as running,
    ):
        try:
            wait_until(
                lambda: running.poll() is not None or re.search(r"Some 3, Seconds [1-9]", told.read_text()),
                240,
            )
            assert running.poll() is None, told.read_text()
            below = family(running.pid)
            os.killpg(running.pid, signal.SIGINT)  # as a terminal does: to all processes of the group
            out, _ = running.communicate(timeout=240)
        finally:
            running.kill()  # if it has not ended by itself
    assert running.returncode == 130, told.read_text()
    assert re.search(r"^ended by +Ctrl-C, after the rows above$", out, re.MULTILINE)
    figures = json.loads((tmp_path / "metrics.json").read_text())
    assert figures["results"] == {n: len(rows(tmp_path / f"{n.lower()}.csv")) for n in ("Some", "Seconds")}
    assert sorted(row["value"] for row in rows(tmp_path / "some.csv")) == [0, 1, 150]
    seconds = [row["n"] for row in rows(tmp_path / "seconds.csv")]
    assert seconds[1:] == [100] * (len(seconds) - 1)  # the first one began within a second
    assert figures["unknown"] >= sum(seconds) - 3 > 0
    assert re.search(rf"^of no stream +{figures['unknown']:,} rows$", out, re.MULTILINE)
    assert len(below) >= 2  # the JVM and Python workers
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in below), 240)


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
            "kafka:kafka.bootstrap.servers=a:1,b:2,subscribe=t,u",
            Where("kafka", "", {"kafka.bootstrap.servers": "a:1,b:2", "subscribe": "t,u"}),
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
        (
            ["--input", "Trades=kafka:kafka.bootstrap.servers=h:9092,subscribe=t"],
            "Spark has no format 'kafka' here, from which stream Trades is to come; it is in a package of "
            'its own: set PYSPARK_SUBMIT_ARGS="--packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.',
        ),
        (
            ["--input", "Trades=delta:/lake/trades"],
            "Spark has no format 'delta' here, from which stream Trades is to come; it is in a package of "
            'its own: set PYSPARK_SUBMIT_ARGS="--packages io.delta:delta-spark_2.13:VERSION --conf ',
        ),
        (["--input", "Trades=-"], "Spark does not read standard input; give a file"),
        (["--input", "Trades=t.csv", "--pace", "1"], "--pace is only supported by --backend local"),
        (
            ["--input", "Trades=rate:a,b"],
            "'b' in input 'rate:a,b' is no option; write FORMAT:PATH,option=value",
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
