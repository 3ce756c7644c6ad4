# ruff: noqa: E501 - commands in one line
"""`handshake run` and `handshake explain`: files in and out, bad rows, mistakes, Ctrl-C."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import csv, feather, parquet

from handshake.cli.app import run

QUERY = """CREATE INPUT STREAM Trades (Symbol string(4), Price int, Ts timestamp(0)) TIMESTAMP BY Ts;
SELECT Price FROM Trades WHERE Symbol = "UBSN" INTO UBS;
SELECT Symbol, count() AS n, window_end() AS at FROM Trades [SIZE 60 ADVANCE 60 TIME] GROUP BY Symbol INTO Counts;
"""
ROWS = """Symbol,Price,Ts
UBSN,10,2024-01-01 00:00:00
CSGN,11,2024-01-01 00:00:30
UBSN,12,2024-01-01 00:01:00
"""
BAD = ROWS + "UBSNX,1,2024-01-01 00:02:00\nUBSN,x,2024-01-01 00:02:00\nUBSN,3\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "q.sql").write_text(QUERY)
    (tmp_path / "t.csv").write_text(ROWS)
    (tmp_path / "bad.csv").write_text(BAD)
    return tmp_path


def test_results_are_shown(folder, capsys):
    assert run(["run", str(folder / "q.sql"), "--input", f"Trades={folder / 't.csv'}"]) == 0
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert lines[:4] == ["UBS", "Price", "   10", "   12"]
    at = lines.index("Counts")
    assert [line.split()[:2] for line in lines[at + 1 : at + 4]] == [
        ["Symbol", "n"],
        ["UBSN", "1"],
        ["CSGN", "1"],
    ]
    assert "Trades  3 rows" in out
    assert "Counts  3 results" in out


@pytest.mark.parametrize("ending", ["parquet", "arrow", "csv", "jsonl"])
def test_all_formats_in_and_out(folder, ending):
    table = csv.read_csv(folder / "t.csv")
    given = folder / f"in.{ending}"
    if ending == "parquet":
        parquet.write_table(table, given)
    elif ending == "arrow":
        feather.write_feather(table, given, compression="uncompressed")
    elif ending == "csv":
        csv.write_csv(table, given)
    else:
        rows = [{**row, "Ts": row["Ts"].isoformat()} for row in table.to_pylist()]
        given.write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = folder / f"out.{ending}"
    assert run(["run", str(folder / "q.sql"), "--input", f"Trades={given}", "--output", f"UBS={out}"]) == 0
    text = out.read_bytes()
    if ending == "parquet":
        assert parquet.read_table(out).to_pylist() == [{"Price": 10}, {"Price": 12}]
    elif ending == "csv":
        assert text == b'"Price"\n10\n12\n'
    elif ending == "jsonl":
        assert text == b'{"Price": 10}\n{"Price": 12}\n'


def test_standard_input_and_output(folder):
    done = subprocess.run(
        [sys.executable, "-m", "handshake.cli", "run", str(folder / "q.sql"), "--input", "Trades=-", "--output", "UBS=-"],
        input=ROWS, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout == '"Price"\n10\n12\n'
    assert "Trades  3 rows" in done.stderr


def test_bad_rows_are_counted_and_kept(folder, capsys):
    kept = folder / "kept.csv"
    status = run(
        [
            "run",
            str(folder / "q.sql"),
            "--input",
            f"Trades={folder / 'bad.csv'}",
            "--bad",
            str(kept),
            "--metrics",
            str(folder / "m.json"),
        ]
    )
    assert status == 0
    assert "bad     3 rows" in capsys.readouterr().out
    rows = {row["row"]: row["reason"] for row in csv.read_csv(kept).to_pylist()}
    assert rows == {
        4: "'UBSNX' in column 'Symbol' is not string(4)",
        5: "'x' in column 'Price' is not int32",
        6: "2 fields where the header has 3",
    }
    figures = json.loads((folder / "m.json").read_text())
    assert (figures["bad"], figures["rows"]) == (3, {"Trades": 3})


@pytest.mark.parametrize("given", ["file", "pipe"])
def test_bad_rows_have_their_numbers_among_all(folder, given):
    text = "Symbol,Price,Ts\nA,1,2024-01-01 00:00:01\nA,2\nB,x,2024-01-01 00:00:02\nC,3,2024-01-01 00:00:03,9\n\nB,y,2024-01-01 00:00:02\n"
    (folder / "ragged.csv").write_text(text)
    path = folder / "ragged.csv" if given == "file" else "-"
    command = [
        sys.executable,
        "-m",
        "handshake.cli",
        "run",
        str(folder / "q.sql"),
        "--bad",
        str(folder / "kept.csv"),
        "--input",
        f"Trades={path}",
    ]
    subprocess.run(command, input=text, capture_output=True, text=True, check=True)
    rows = {row["row"]: row["reason"] for row in csv.read_csv(folder / "kept.csv").to_pylist()}
    assert rows == {
        2: "2 fields where the header has 3", 3: "'x' in column 'Price' is not int32",
        4: "4 fields where the header has 3", 5: "'y' in column 'Price' is not int32",
    }  # fmt: skip


def test_a_header_without_an_end_is_a_header(folder, capsys):
    (folder / "none.csv").write_text("Symbol,Price,Ts")
    assert run(["run", str(folder / "q.sql"), "--input", f"Trades={folder / 'none.csv'}"]) == 0
    assert "Trades  0 rows" in capsys.readouterr().out


def test_a_header_without_rows_has_the_declared_columns(folder, capsys):
    (folder / "none.csv").write_text("Symbol,Prize,Ts\n")
    assert run(["run", str(folder / "q.sql"), "--input", f"Trades={folder / 'none.csv'}"]) == 2
    assert capsys.readouterr().err == (
        "handshake: Trades input has no column 'Price' (Symbol, Prize, Ts); did you mean 'Prize'?\n"
    )


def test_late_rows_are_kept(tmp_path, capsys):
    late = tmp_path / "late"
    rows = "Symbol,Price,Ts\nUBSN,1,2024-01-01 00:05\nUBSN,2,2024-01-01 00:03\nUBSN,3,\n"
    (tmp_path / "q.sql").write_text(
        "CREATE INPUT STREAM Trades (Symbol string, Price int, Ts timestamp) TIMESTAMP BY Ts LATENESS 60;"
        "SELECT count(*) AS n FROM Trades [SIZE 60 ADVANCE 60 TIME] INTO T"
    )
    command = [sys.executable, "-m", "handshake", "run", str(tmp_path / "q.sql"), "--input", "Trades=-"]
    done = subprocess.run([*command, "--late-to", str(late)], input=rows, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    kept = parquet.read_table(late / "Trades").to_pylist()
    assert [(row["Price"], row["late_by"] and row["late_by"].total_seconds()) for row in kept] == [
        (2, 60.0),
        (3, None),
    ]
    (tmp_path / "a.csv").write_text("t,x\n1,1\n,2\n")
    command = ["join", str(tmp_path / "a.csv"), str(tmp_path / "a.csv"), "--on", "l.x = r.x", "--time", "t"]
    assert run([*command, "--window", "5 s", "--late-to", str(late)]) == 0
    assert parquet.read_table(late / "left")["x"].to_pylist() == [2]
    capsys.readouterr()


def test_strict_stops_at_a_bad_row(folder, capsys):
    assert run(["run", str(folder / "q.sql"), "--input", f"Trades={folder / 'bad.csv'}", "--strict"]) == 2
    told = "handshake: Trades input, row 4: 'UBSNX' in column 'Symbol' is not string(4)\n"
    assert capsys.readouterr().err == told
    (folder / "bad.csv").write_text(ROWS + "UBSN,x,2024-01-01 00:02:00\n")
    assert run(["run", str(folder / "q.sql"), "--input", f"Trades={folder / 'bad.csv'}", "--strict"]) == 2
    assert capsys.readouterr().err == "handshake: Trades input, row 4: 'x' in column 'Price' is not int32\n"


def test_lines_that_are_no_json_are_bad_rows(folder, capsys):
    good = '{"Symbol": "UBSN", "Price": %s, "Ts": "2024-01-01 00:00:01"}\n'
    (folder / "j.jsonl").write_text(good % "1" + '{"Symbol":\n\n[1]\n' + good % 2**40 + good % "3")
    asked = ["run", str(folder / "q.sql"), "--input", f"Trades={folder / 'j.jsonl'}"]
    assert run([*asked, "--bad", str(folder / "kept.csv")]) == 0
    assert "Trades  2 rows" in capsys.readouterr().out
    rows = {row["row"]: row["reason"] for row in csv.read_csv(folder / "kept.csv").to_pylist()}
    broken = "the line is not a JSON object"
    assert rows == {2: broken, 4: broken, 5: "1099511627776 in column 'Price' is not int32"}
    assert run([*asked, "--strict"]) == 2
    assert capsys.readouterr().err == f"handshake: Trades input, row 2: {broken}\n"


OBJECT = '{"Symbol": "UBSN", "Price": %s, "Ts": "2024-01-01 00:00:01"}\n'


def _folder_run(folder: Path, *options: str) -> list[str]:
    asked = ["run", str(folder / "q.sql"), "--input", f"Trades={folder / 'many'}"]
    return [*asked, "--bad", str(folder / "kept.csv"), *options]


def _reasons(folder: Path) -> dict[int, str]:
    return {row["row"]: row["reason"] for row in csv.read_csv(folder / "kept.csv").to_pylist()}


@pytest.mark.parametrize("backend", ["local", "circuit"])
def test_lines_that_are_no_json_are_bad_rows_in_a_folder_too(folder, capsys, backend):
    (folder / "many").mkdir()
    (folder / "many" / "a.jsonl").write_text(OBJECT % "1" + OBJECT % "2")
    (folder / "many" / "b.jsonl").write_text(OBJECT % "3" + '{"Symbol":\n' + OBJECT % 2**40)
    (folder / "many" / "c.jsonl").write_text(OBJECT % "5")
    asked = _folder_run(folder, "--backend", backend, *(["--groups", "4"] if backend == "circuit" else []))
    assert run(asked) == 0
    told = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["Trades", "4", "rows"] in told
    assert ["bad", "2", "rows"] in told
    assert _reasons(folder) == {
        4: "the line is not a JSON object (row 2 of 'b.jsonl')",
        5: "1099511627776 in column 'Price' is not int32 (row 3 of 'b.jsonl')",
    }
    assert run([*asked, "--strict"]) == 2
    assert capsys.readouterr().err == (
        "handshake: Trades input, row 4: the line is not a JSON object (row 2 of 'b.jsonl')\n"
    )


def test_rows_of_a_folder_of_csv_files_are_read_by_their_declaration(folder, capsys):
    (folder / "many").mkdir()
    (folder / "many" / "a.csv").write_text(ROWS)
    (folder / "many" / "b.csv").write_text(BAD)
    (folder / "many" / "c.csv").write_text("Ts,Price,Symbol")
    (folder / "many" / "d.csv").write_text("Ts,Price,Symbol\n2024-01-01 00:00:01,x,UBSN\n")
    assert run(_folder_run(folder)) == 0
    assert "Trades  6 rows" in capsys.readouterr().out
    assert _reasons(folder) == {
        7: "'UBSNX' in column 'Symbol' is not string(4) (row 4 of 'b.csv')",
        8: "'x' in column 'Price' is not int32 (row 5 of 'b.csv')",
        9: "2 fields where the header has 3 (row 6 of 'b.csv')",
        10: "'x' in column 'Price' is not int32 (row 1 of 'd.csv')",
    }


def test_a_folder_says_which_file_lacks_a_column(folder, capsys):
    (folder / "many").mkdir()
    (folder / "many" / "a.csv").write_text(ROWS)
    (folder / "many" / "b.csv").write_text("Symbol,Prize,Ts\n")
    assert run(_folder_run(folder)) == 2
    assert capsys.readouterr().err == (
        "handshake: Trades input has no column 'Price' (Symbol, Prize, Ts); did you mean 'Prize'? "
        f"(in '{folder / 'many' / 'b.csv'}')\n"
    )


def test_values_of_several_kinds_in_json_lines_are_bad_rows_where_they_do_not_fit(folder, capsys):
    lines = [
        OBJECT % each for each in ("1", '"x"', '"7"', "true", "[1]", "2.5", "3.0", "null", '4, "Price": 4')
    ]
    (folder / "j.jsonl").write_text("".join(lines) + '{"Symbol": "UBSN", "Ts": null}\nnull\n')
    asked = ["run", str(folder / "q.sql"), "--input", f"Trades={folder / 'j.jsonl'}"]
    assert run([*asked, "--bad", str(folder / "kept.csv"), "--output", f"UBS={folder / 'o.csv'}"]) == 0
    assert _reasons(folder) == {
        2: "'x' in column 'Price' is not int32",
        4: "true in column 'Price' is not int32",
        5: "a list in column 'Price' is not int32",
        6: "2.5 in column 'Price' is not int32",
        9: "the key 'Price' comes twice",
    }
    assert (folder / "o.csv").read_text().split() == ['"Price"', "1", "7", "3"]


@pytest.mark.parametrize("text", ["null\n", " null\nnull\n", "\n\n  null\n" * 9])
def test_a_file_of_null_alone_has_no_columns(folder, capsys, text):
    (folder / "j.jsonl").write_text(text)
    assert run(["run", str(folder / "q.sql"), "--input", f"Trades={folder / 'j.jsonl'}"]) == 2
    assert capsys.readouterr().err == f"handshake: Trades input: '{folder / 'j.jsonl'}' has no columns\n"


def test_a_line_that_is_null_has_no_values(folder, capsys):
    (folder / "j.jsonl").write_text("null\n" + OBJECT % "1" + "\n null\n")
    assert run(["run", str(folder / "q.sql"), "--input", f"Trades={folder / 'j.jsonl'}"]) == 0
    assert "Trades          3 rows\n" in capsys.readouterr().out


def test_times_with_an_offset_are_instants(folder, capsys):
    moments = ["2024-01-01T00:00:01Z", "2024-01-01 02:00:01+02:00", "2024-01-01 00:00:01", "never"]
    (folder / "z.csv").write_text("Symbol,Price,Ts\n" + "".join(f"UBSN,1,{moment}\n" for moment in moments))
    query = f"{(folder / 'q.sql').read_text().split(';')[0]}; SELECT Ts FROM Trades INTO Times"
    (folder / "z.sql").write_text(query)
    asked = ["--input", f"Trades={folder / 'z.csv'}", "--output", f"Times={folder / 'o.parquet'}"]
    assert run(["run", str(folder / "z.sql"), *asked]) == 0
    assert "bad     1 row" in capsys.readouterr().out
    assert {str(row["Ts"]) for row in parquet.read_table(folder / "o.parquet").to_pylist()} == {
        "2024-01-01 00:00:01"
    }


def test_typed_files_have_bad_rows_too(folder, capsys):
    table = pa.table(
        {"Symbol": ["UBSN", "UBSN"], "Price": pa.array([1, 2**40]), "Ts": pa.array([0, 1], pa.timestamp("s"))}
    )
    parquet.write_table(table, folder / "t.parquet")
    assert run(["run", str(folder / "q.sql"), "--input", f"Trades={folder / 't.parquet'}"]) == 0
    out = capsys.readouterr().out
    assert "Trades  1 row" in out
    assert "bad     1 row; --bad FILE keeps them" in out


WRONG = {
    "--input Trades=t.csv --input Trades=t.csv": "--input is given twice for 'Trades'; give it once",
    "": "no input for stream Trades; give --input Trades=PATH",
    "--input Trads=t.csv": "--input 'Trads=t.csv': the query has no input 'Trads' (Trades); did you mean 'Trades'?",
    "--input t.csv": "--input 't.csv' has no name; write NAME=PATH",
    "--input Trades=no.csv": "Trades input: no file or folder 'no.csv'; did you mean 't.csv'?",
    "--input Trades=t.csv --output x=y.csv": "--output 'x=y.csv': the query has no output 'x' (UBS, Counts)",
    "--input Trades=t.csv --output UBS=y.csv --output Counts=./y.csv": "UBS and Counts both go to './y.csv'; give each a file of its own",
    "--input Trades=t.csv --output UBS=y.csv --bad y.csv": "UBS and --bad both go to 'y.csv'; give each a file of its own",
    "--input Trades=t.csv --output UBS=y.csv --metrics ./y.csv": "UBS and --metrics both go to './y.csv'; give each a file of its own",
    "--input Trades=t.csv --output UBS=./t.csv": "UBS would replace the input of Trades, './t.csv'; give it another file",
    "--input Trades=t.csv --bad t.csv": "--bad would replace the input of Trades, 't.csv'; give it another file",
    "--input Trades=t.csv --metrics q.sql": "--metrics would replace the query, 'q.sql'; give it another file",
    "--input Trades=. --metrics t.csv": "--metrics would replace the input of Trades, 't.csv'; give it another file",
    "--input Trades=t.csv --backend quantum": "unknown backend 'quantum'; choose local, spark, circuit",
    "--input Trades=t.csv --pace 0": "pace is a number above 0; 0.0 was given",
    "--input Trades=t.csv --pace nan": "pace is a number above 0; nan was given",
}


def test_standard_input_is_the_query_or_a_stream(folder, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO((folder / "q.sql").read_text()))
    assert run(["run", "-", "--input", "Trades=-"]) == 2
    told = "standard input has the query, so no stream can be there; give it a file"
    assert capsys.readouterr().err == f"handshake: {told}\n"


@pytest.mark.parametrize("options", WRONG)
def test_mistakes(folder, capsys, monkeypatch, options):
    monkeypatch.chdir(folder)
    assert run(["run", "q.sql", *options.split()]) == 2
    assert capsys.readouterr().err == f"handshake: {WRONG[options]}\n"


def test_a_missing_column(folder, capsys):
    (folder / "t.csv").write_text(ROWS.replace("Price", "Prize"))
    assert run(["run", str(folder / "q.sql"), "--input", f"Trades={folder / 't.csv'}"]) == 2
    text = "handshake: Trades input has no column 'Price' (Symbol, Prize, Ts); did you mean 'Prize'?\n"
    assert capsys.readouterr().err == text


def test_a_syntax_error_has_a_caret(folder, capsys):
    (folder / "q.sql").write_text("SELECT\n  FROM [")
    assert run(["explain", str(folder / "q.sql")]) == 2
    assert capsys.readouterr().err.splitlines()[1:] == ["    FROM [", "         ^"]


def test_explain_as_text_graph_and_drawing(folder, capsys):
    assert run(["explain", str(folder / "q.sql")]) == 0
    assert capsys.readouterr().out.startswith("UBS (Price int32)\n└─ π Price\n")
    assert run(["explain", str(folder / "q.sql"), "--optimised"]) == 0
    assert "panes of 1 minute" in capsys.readouterr().out
    assert run(["explain", str(folder / "q.sql"), "--dot", "-", "--svg", str(folder / "p.svg")]) == 0
    assert capsys.readouterr().out.startswith("digraph plan {")
    assert (folder / "p.svg").read_text().startswith("<svg ")


def test_explain_says_what_spark_runs_in_one_task(tmp_path, capsys):
    fields = "(k int, t timestamp) TIMESTAMP BY t"
    (tmp_path / "q.sql").write_text(
        f"""CREATE INPUT STREAM R {fields}; CREATE INPUT STREAM S {fields};
        SELECT R.k FROM R [SIZE 5 TIME], S [SIZE 5 TIME] WHERE R.k < S.k INTO Pairs;
        SELECT wsum(k, [1, 2]) AS w FROM Pairs [SIZE 9 ADVANCE 3 TIME] INTO Sums"""
    )
    assert run(["explain", str(tmp_path / "q.sql"), "--backend", "spark"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == (
        "Sums: on Spark in one task, since wsum needs an order, which results of a join have in one task only"
    )
    assert run(["explain", str(tmp_path / "q.sql"), "--backend", "circuit"]) == 2
    assert capsys.readouterr().err == (
        "handshake: a plan is explained for --backend local or spark, not 'circuit'; --circuit shows the "
        "circuit\n"
    )


def test_a_pace_lets_rows_wait_for_their_times(folder, capsys):
    began = time.perf_counter()
    assert run(["run", str(folder / "q.sql"), "--input", f"Trades={folder / 't.csv'}", "--pace", "200"]) == 0
    assert time.perf_counter() - began >= 0.29
    assert "Trades  3 rows" in capsys.readouterr().out


def start_query(folder, *outputs):
    command = [sys.executable, "-m", "handshake.cli", "run", str(folder / "q.sql"), "--input", "Trades=-"]
    pipe = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([*command, *outputs], **pipe)


def test_rows_of_standard_input_are_taken_as_they_come(folder):
    with start_query(folder, "--output", "UBS=-") as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(ROWS.encode())
        process.stdin.flush()
        assert [process.stdout.readline() for _ in range(3)] == [b'"Price"\n', b"10\n", b"12\n"]
        process.stdin.write(b"UBSN,15,2024-01-01 00:03")
        process.stdin.flush()
        process.stdin.write(b":00\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"15\n"
        process.communicate(timeout=400)
    assert process.returncode == 0


@pytest.mark.parametrize("ends_too", [False, True])
def test_ctrl_c_finishes_what_has_come(folder, ends_too):
    out = folder / "counts.csv"
    with start_query(folder, "--output", "UBS=-", "--output", f"Counts={out}") as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(ROWS.encode())
        process.stdin.flush()
        assert [process.stdout.readline() for _ in range(2)] == [b'"Price"\n', b"10\n"]
        process.send_signal(signal.SIGINT)
        if ends_too:
            process.stdin.close()
            process.stdin = None
        else:  # it ends by itself, with a thread that still waits for input
            assert process.wait(timeout=400) == 130
        _, errors = process.communicate(timeout=400)
    assert process.returncode == 130, errors
    assert "Ctrl-C, after the rows above" in errors.decode()
    assert [row["n"] for row in csv.read_csv(out).to_pylist()][:2] == [1, 1]
