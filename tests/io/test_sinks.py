"""Results on their way out: every format, every refusal, and never half a file."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from handshake.errors import InputError
from handshake.io import read, sink_for
from handshake.io.csv_files import CsvWriter

KNOWN = (
    "known are .parquet, .pq, .arrow, .feather, .arrows, .ipc, .csv, .tsv, .jsonl, .ndjson, .jsonlines, "
    ".json-lines, .json, and .gz, .bz2, .zst after a text format"
)
ROWS = pa.table({"x": [1, 2, 3], "name": ["a", None, ""], "y": [0.5, float("inf"), None]})


def deliver(path: Path | str, table: pa.Table) -> None:
    with sink_for(path, table.schema) as sink:
        for batch in table.to_batches(max_chunksize=2):
            sink.write(batch)


RICH = pa.table(
    {
        "n": pa.array([1, None, 3], pa.int32()),
        "f": [0.1, float("nan"), -0.0],
        "g": pa.array([0.1, None, 2], pa.float32()),
        "s": ["a,b", "", 'c"d\ne'],
        "b": [True, None, False],
        "t": pa.array([0, 1, None], pa.timestamp("us")),
        "z": pa.array([0, 1, None], pa.timestamp("us", "Europe/Zurich")),
        "d": pa.array([0, 1, None], pa.date32()),
        "m": pa.array([Decimal("1.50"), None, Decimal("-0.01")], pa.decimal128(10, 2)),
        "c": pa.array(["x", "y", "x"]).dictionary_encode(),
    }
)


@pytest.mark.parametrize("name", ["t.parquet", "t.pq", "t.arrow", "t.feather", "t.ipc"])
def test_typed_files_come_back_as_they_were(tmp_path: Path, name: str) -> None:
    deliver(tmp_path / name, RICH)
    assert os.listdir(tmp_path) == [name]
    back = read(tmp_path / name)
    assert back.schema.equals(RICH.schema)
    assert str(back.to_pylist()) == str(RICH.to_pylist())


def test_batches_are_gathered_into_large_row_groups(tmp_path: Path) -> None:
    deliver(tmp_path / "t.parquet", pa.table({"x": range(1000)}))
    assert parquet.ParquetFile(tmp_path / "t.parquet").num_row_groups == 1


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.tsv", "t.jsonl", "t.jsonl.gz"])
def test_text_files_come_back_with_their_values(tmp_path: Path, name: str) -> None:
    deliver(tmp_path / name, RICH)
    assert os.listdir(tmp_path) == [name]
    back = read(tmp_path / name)
    for column in ("n", "s", "b", "d"):
        assert back[column].to_pylist() == RICH[column].to_pylist(), column
    assert str(back["f"].to_pylist()) == "[0.1, nan, -0.0]"
    assert back["g"].to_pylist() == [0.1, None, 2.0]
    for column in ("t", "z"):
        assert back[column].cast(pa.int64()).to_pylist() == [0, 1000, None], column
    assert [None if m is None else float(m) for m in back["m"].to_pylist()] == [1.5, None, -0.01]
    assert back["c"].to_pylist() == ["x", "y", "x"]


def test_csv_text(tmp_path: Path) -> None:
    deliver(tmp_path / "t.csv", ROWS)
    assert (tmp_path / "t.csv").read_text() == '"x","name","y"\n1,"a",0.5\n2,,inf\n3,"",\n'


def test_json_text(tmp_path: Path) -> None:
    nested = pa.table(
        {
            "é": pa.array([[1, 2], None]),
            "s": [{"a": b"\xff", "d": Decimal("0.5")}, None],
            "f": [1e300, float("-inf")],
            "k": pa.array([5, None], pa.duration("s")),
        }
    )
    deliver(tmp_path / "t.jsonl", nested)
    assert (tmp_path / "t.jsonl").read_text().splitlines() == [
        '{"é": [1, 2], "s": {"a": "/w==", "d": "0.5"}, "f": 1e+300, "k": 5}',
        '{"é": null, "s": null, "f": -Infinity, "k": null}',
    ]


@pytest.mark.parametrize("name", ["t.parquet", "t.arrow", "t.csv"])
def test_no_results_still_make_a_file_with_columns(tmp_path: Path, name: str) -> None:
    deliver(tmp_path / name, ROWS.slice(0, 0))
    back = read(tmp_path / name)
    assert (back.num_rows, back.column_names) == (0, ROWS.column_names)


def test_standard_output_is_csv(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    deliver("-", ROWS)
    assert capfdbinary.readouterr().out == b'"x","name","y"\n1,"a",0.5\n2,,inf\n3,"",\n'


def test_bytes_in_csv_are_text_or_an_error(tmp_path: Path) -> None:
    deliver(tmp_path / "t.csv", pa.table({"z": pa.array([b"ab", None], pa.binary(2))}))
    assert (tmp_path / "t.csv").read_text() == '"z"\n"ab"\n\n'
    with pytest.raises(InputError) as caught:
        deliver(tmp_path / "u.csv", pa.table({"z": [b"\xff"]}))
    assert str(caught.value) == (
        "output: column 'z' (binary) holds bytes that are not UTF-8 text, which CSV cannot hold; "
        "use .parquet or .arrow"
    )
    assert os.listdir(tmp_path) == ["t.csv"]


def test_nested_columns_in_csv(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        deliver(tmp_path / "t.csv", pa.table({"x": [[1]]}))
    assert str(caught.value) == (
        "output: column 'x' (list<item: int64>) cannot be written as CSV, which has no nested values; "
        "use .parquet or .arrow"
    )
    assert os.listdir(tmp_path) == []


def test_type_that_the_format_lacks(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"output: '.*t.parquet' cannot be written: Unhandled type"):
        deliver(tmp_path / "t.parquet", pa.table({"x": pa.nulls(1, pa.month_day_nano_interval())}))
    assert os.listdir(tmp_path) == []


def place_refusal(path: Path | str) -> str:
    with pytest.raises(InputError) as caught:
        deliver(path, ROWS)
    return str(caught.value)


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    folder = tmp_path / "folder.csv"
    folder.mkdir()
    assert place_refusal(folder) == f"output: '{folder}' is a folder; give the name of a file"
    missing = tmp_path / "no" / "t.csv"
    assert place_refusal(missing) == f"output: '{missing}' cannot be written: no folder '{tmp_path / 'no'}'"
    assert place_refusal(tmp_path / "t.xls") == (
        f"output: '{tmp_path / 't.xls'}' has the unknown extension '.xls'; {KNOWN}"
    )
    os.mkfifo(tmp_path / "pipe.csv")
    assert place_refusal(tmp_path / "pipe.csv") == (
        f"output: '{tmp_path / 'pipe.csv'}' is not a file; give the name of a file"
    )


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_folder_without_permission(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    path = tmp_path / "t.csv"
    assert place_refusal(path) == f"output: '{path}' cannot be written: Permission denied"


def test_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    path = tmp_path / "t.csv"
    assert place_refusal(path) == f"output: '{path}' cannot be written: No space left on device"
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["t.parquet", "t.arrow", "t.csv", "t.csv.gz", "t.jsonl"])
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_a_failure_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, name: str, error: type[BaseException]
) -> None:
    (tmp_path / name).write_text("old")

    def fail() -> None:
        with sink_for(tmp_path / name, ROWS.schema) as sink:
            sink.write(ROWS.to_batches()[0])
            raise error

    with pytest.raises(error):
        fail()
    assert os.listdir(tmp_path) == [name]
    assert (tmp_path / name).read_bytes() == b"old"


@pytest.mark.parametrize("fails", [False, True])
def test_a_writer_is_closed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool) -> None:
    closed: list[str] = []
    close = CsvWriter.close

    def note(self: CsvWriter) -> None:
        closed.append("once")
        close(self)

    monkeypatch.setattr(CsvWriter, "close", note)
    with contextlib.suppress(RuntimeError), sink_for(tmp_path / "t.csv", ROWS.schema) as sink:
        sink.write(ROWS.to_batches()[0])
        if fails:
            raise RuntimeError
    assert closed == ["once"]


def test_a_file_keeps_its_permissions_and_a_link_its_place(tmp_path: Path) -> None:
    real = tmp_path / "real.csv"
    real.write_text("old")
    real.chmod(0o640)
    (tmp_path / "link.csv").symlink_to(real)
    deliver(tmp_path / "link.csv", ROWS)
    assert (tmp_path / "link.csv").is_symlink()
    assert real.stat().st_mode & 0o777 == 0o640
    assert read(real).equals(ROWS)


def test_nothing_is_visible_before_the_end(tmp_path: Path) -> None:
    with sink_for(tmp_path / "t.csv", ROWS.schema) as sink:
        sink.write(ROWS.to_batches()[0])
        assert not (tmp_path / "t.csv").exists()
        assert [name for name in os.listdir(tmp_path) if not name.startswith(".")] == []
    assert (tmp_path / "t.csv").exists()


def test_a_killed_reader_shows_as_a_broken_pipe() -> None:
    program = """
        import pyarrow as pa
        from handshake.io import sink_for
        batch = pa.record_batch({"x": list(range(10_000))})
        try:
            with sink_for("-", batch.schema) as sink:
                while True:
                    sink.write(batch)
        except BrokenPipeError:
            import os
            os._exit(7)
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b'"x"\n'
        process.stdout.close()
        assert process.wait(60) == 7


def test_an_interrupted_process_leaves_nothing(tmp_path: Path) -> None:
    program = f"""
        import pyarrow as pa
        from handshake.io import sink_for
        batch = pa.record_batch({{"x": list(range(100_000))}})
        with sink_for({str(tmp_path / "t.parquet")!r}, batch.schema) as sink:
            print("started", flush=True)
            while True:
                sink.write(batch)
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"started\n"
        process.send_signal(signal.SIGINT)
        process.wait(60)
    assert os.listdir(tmp_path) == []
