"""Circuits on the command line, and the example of their page."""

from __future__ import annotations

import contextlib
import io
import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pyarrow as pa
import pyarrow.csv
import pytest

import handshake as hs
from handshake.cli.app import run
from handshake.cli.compile import compile_query
from handshake.engines.circuit.nets.rules import PLAN_RULES, RULES

SVG = "{http://www.w3.org/2000/svg}"
DOCS = Path(__file__).parents[2] / "docs"
QUERY = """CREATE INPUT STREAM Trades (Symbol string(4), Price int, Ts int) TIMESTAMP BY Ts;
SELECT Symbol, count() AS n, max(Price) AS high FROM Trades [SIZE 4 ADVANCE 2 TIME]
GROUP BY Symbol INTO Highs"""
TRADES = "Symbol,Price,Ts\nUBSN,5,0\nABBN,,1\nUBSN,7,2\nNESN,1,2\nUBSN,9,5\n"


@pytest.fixture
def query(tmp_path: Path) -> Path:
    (tmp_path / "trades.csv").write_text(TRADES)
    (tmp_path / "query.sql").write_text(QUERY)
    return tmp_path / "query.sql"


def test_run_gives_what_the_local_back_end_gives(query: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = query.parent
    common = ["run", str(query), "--input", f"Trades={folder / 'trades.csv'}"]
    assert run([*common, "--output", str(folder / "local.csv")]) == 0
    circuit = [
        "--backend",
        "circuit",
        "--simulator",
        "amaranth",
        "--groups",
        "3",
        "--vcd",
        str(folder / "w.vcd"),
    ]
    metrics = ["--metrics", str(folder / "m.json")]
    assert run([*common, *circuit, *metrics, "--output", str(folder / "circuit.csv")]) == 0
    assert "cycles" in capsys.readouterr().out
    local, wires = (pa.csv.read_csv(folder / f"{name}.csv").to_pylist() for name in ("local", "circuit"))
    assert sorted(map(str, local)) == sorted(map(str, wires))
    assert len(local) == 8
    assert json.loads((folder / "m.json").read_text())["overflow"] == 0
    assert (folder / "w.vcd").stat().st_size > 1000


def test_a_group_too_many_is_reported(query: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--input", f"Trades={query.parent / 'trades.csv'}", "--groups", "2"]
    assert run(["run", str(query), *given, "--backend", "circuit", "--simulator", "amaranth"]) == 0
    assert re.search(
        r"overflow +\d+ rows of groups beyond 2 were dropped; allow more groups", capsys.readouterr().out
    )


def test_compile_and_explain(query: Path, capsys: pytest.CaptureFixture[str]) -> None:
    verilog, picture = query.with_suffix(".v"), query.with_suffix(".svg")
    assert run(["compile", str(query), "-o", str(verilog), "--groups", "2"]) == 0
    assert "module query(" in verilog.read_text()
    assert run(["explain", str(query), "--circuit", "--groups", "2", "--svg", str(picture)]) == 0
    root = ElementTree.fromstring(picture.read_text())
    texts = [each.text for each in root.iter(f"{SVG}text")]
    assert "group by Symbol: CAM of 2" in texts
    assert "sub-plan, 3 windows by 2 groups" in texts
    assert run(["explain", str(query), "--circuit", "--groups", "2"]) == 0
    assert re.search(r"Highs +latency 5 cycles", capsys.readouterr().out)


JOIN = """CREATE INPUT STREAM R (k int, v int, t int) TIMESTAMP BY t;
CREATE INPUT STREAM S (k int, w int, t int) TIMESTAMP BY t;
SELECT R.k, v, w FROM R [SIZE 4 TUPLES], S [SIZE 3 TUPLES] WHERE R.k = S.k AND v > w INTO Pairs"""


@pytest.fixture
def join(tmp_path: Path) -> Path:
    (tmp_path / "r.csv").write_text("k,v,t\n" + "".join(f"{n % 3},{7 * n % 11},{2 * n}\n" for n in range(20)))
    (tmp_path / "s.csv").write_text("k,w,t\n" + "".join(f"{n % 2},{5 * n % 7},{3 * n}\n" for n in range(15)))
    (tmp_path / "join.sql").write_text(JOIN)
    return tmp_path / "join.sql"


def _inputs(query: Path) -> list[str]:
    return ["--input", f"R={query.parent / 'r.csv'}", "--input", f"S={query.parent / 's.csv'}"]


@pytest.mark.parametrize("arrangement", ["auto", "ordered"])
def test_run_joins_files_as_the_local_back_end_does(join: Path, arrangement: str) -> None:
    common, folder = ["run", str(join), *_inputs(join)], join.parent
    assert run([*common, "--output", str(folder / "local.csv")]) == 0
    circuit = ["--backend", "circuit", "--simulator", "amaranth", "--cores", "2", "--join", arrangement]
    assert run([*common, *circuit, "--output", str(folder / "circuit.csv")]) == 0
    local, wires = ((folder / f"{name}.csv").read_text().splitlines() for name in ("local", "circuit"))
    assert len(local) > 10
    if arrangement == "auto":  # a handshake join: results come as tuples meet
        local, wires = sorted(local), sorted(wires)
    assert wires == local


def test_callers_in_python_are_warned_of_lost_rows() -> None:
    text = """CREATE INPUT STREAM S (a int, b int);
              SELECT a, sum(b) AS c FROM S [SIZE 4 ADVANCE 4 TUPLES] GROUP BY a INTO T"""
    rows = {"S": {"a": [1, 2, 3, 4], "b": [1, 1, 1, 1]}}
    with pytest.warns(RuntimeWarning, match="^in the circuit, 2 rows of groups beyond 2 were dropped; allow"):
        hs.run(text, rows, engine="circuit", groups=2)


def test_rows_that_leave_a_window_early_are_reported(join: Path, capsys: pytest.CaptureFixture[str]) -> None:
    join.write_text(JOIN.replace("[SIZE 4 TUPLES]", "[SIZE 30 TIME]"))
    circuit = ["--backend", "circuit", "--simulator", "amaranth", "--window-tuples", "2"]
    assert run(["run", str(join), *_inputs(join), *circuit]) == 0
    assert re.search(
        r"evicted +\d+ rows had to leave their window before their time; results may be missing: "
        r"allow more rows in it than 2",
        capsys.readouterr().out,
    )


def test_compile_and_explain_a_join(join: Path, capsys: pytest.CaptureFixture[str]) -> None:
    verilog, picture = join.with_suffix(".v"), join.with_suffix(".svg")
    assert run(["compile", str(join), "-o", str(verilog), "--cores", "3"]) == 0
    text = verilog.read_text()
    assert "module query(" in text
    assert text.count("\nmodule join_core") == 2  # three cores, segments of two lengths
    assert run(["explain", str(join), "--circuit", "--cores", "3", "--svg", str(picture)]) == 0
    texts = [each.text for each in ElementTree.fromstring(picture.read_text()).iter(f"{SVG}text")]
    assert {"handshake join, 3 cores", "R: 4 tuples held", "sequence"} <= set(texts)
    assert texts.count("sequence") == 1
    assert run(["compile", str(join)]) == 0
    assert re.search(r"Pairs +latency at least 14 cycles\n", capsys.readouterr().out)


def test_averages_are_divided_by_whom_one_chooses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "q.sql"
    file.write_text(
        "CREATE INPUT STREAM S (a int, d decimal(9, 2)); "
        "SELECT avg(a) AS m, avg(d) AS n FROM S [SIZE 3 ADVANCE 1 TUPLES] INTO T"
    )
    (tmp_path / "s.csv").write_text("a,d\n1,0.10\n2,0.10\n2,0.50\n-7,1.25\n,\n,\n,\n")
    common = ["run", str(file), "--input", f"S={tmp_path / 's.csv'}", "--output", str(tmp_path / "out.csv")]
    assert run(common) == 0
    wanted = (tmp_path / "out.csv").read_text()
    for divider in ("pipelined", "serial", "host"):
        assert run([*common, "--backend", "circuit", "--simulator", "amaranth", "--divider", divider]) == 0
        assert (tmp_path / "out.csv").read_text() == wanted
        assert run(["compile", str(file), "--divider", divider]) == 0
    shown = re.findall(r"T +latency (\d+) cycles", capsys.readouterr().out)
    assert [int(n) for n in shown] == [59, 59, 2]


def test_odd_names_of_columns_are_no_trouble(tmp_path: Path) -> None:
    file = tmp_path / "q.sql"
    file.write_text(
        "CREATE INPUT STREAM S (`my key` string(2), `my-key` int, t int) TIMESTAMP BY t; SELECT `my key`, "
        "max(`my-key`) AS `the most` FROM S [SIZE 2 ADVANCE 1 TIME] GROUP BY `my key` INTO T"
    )
    assert run(["compile", str(file), "--groups", "2", "-o", str(tmp_path / "q.v")]) == 0
    assert "module query(" in (tmp_path / "q.v").read_text()
    (tmp_path / "s.csv").write_text("my key,my-key,t\na,1,0\nb,2,1\n")
    given = ["--input", f"S={tmp_path / 's.csv'}", "--output", str(tmp_path / "out.csv"), "--groups", "2"]
    assert run(["run", str(file), *given, "--backend", "circuit"]) == 0
    assert len((tmp_path / "out.csv").read_text().splitlines()) == 5


def test_the_report_counts_cells(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "q.sql"
    file.write_text("CREATE INPUT STREAM S (a int, b int); SELECT a FROM S WHERE a > b INTO T")
    assert run(["compile", str(file), "--report"]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"T +latency 1 cycle\n", shown)
    assert re.search(r"registers +34\n", shown)  # 32 bits, valid and eos


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "GROUP BY Symbol has no bound on the number of groups"),
        (
            ["--groups", "2", "--without", "unnest"],
            "no rule 'unnest'; there are narrow_joins, unnest_group_in_window",
        ),
        (["--groups", "2", "--nullable", "Price"], "--nullable 'Price' is no field; write STREAM.FIELD"),
        (
            ["--groups", "2", "-o", "/nowhere/x.v"],
            "'/nowhere/x.v' cannot be written: No such file or directory",
        ),
    ],
)
def test_compile_refuses(
    query: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["compile", str(query), *arguments]) != 0
    assert message in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            "--pace 2",
            "--pace is only supported by --backend local",
        ),
        (
            "--input Trades=udp://127.0.0.1:9",
            "a circuit simulates what has come, and 'udp://127.0.0.1:9' comes live; give a file, or "
            "use --backend local",
        ),
        ("--groups 5000", "5,000 groups are more than a circuit has, which is 4,096; give fewer"),
    ],
)
def test_run_refuses(query: Path, capsys: pytest.CaptureFixture[str], options: str, text: str) -> None:
    given = [] if "--input" in options else ["--input", f"Trades={query.parent / 'trades.csv'}"]
    assert run(["run", str(query), *given, "--backend", "circuit", *options.split()]) == 2
    assert capsys.readouterr().err == f"handshake: {text}\n"


def test_circuits_of_absurd_size_are_refused(join: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["compile", str(join), "--buffer", "1000000"]) == 2
    told = "1,000,000 results in a core's buffer are more than a circuit has, which is 4,096; give fewer"
    assert capsys.readouterr().err == f"handshake: {told}\n"
    windows = "CREATE INPUT STREAM S (v int, t int) TIMESTAMP BY t LATENESS 3600; SELECT sum(v) FROM S "
    join.write_text(f"{windows}[SIZE 3 ADVANCE 2 TIME]")
    assert run(["compile", str(join)]) == 2
    assert capsys.readouterr().err == (
        "handshake: of the window (SIZE 3 ADVANCE 2 TIME) 1,802 are open at once, and each has a copy of "
        "what is computed on it; a circuit has at most 1,024: give a longer ADVANCE, or less LATENESS\n"
    )
    join.write_text(
        "CREATE INPUT STREAM S (v int); SELECT a.v FROM S a [SIZE 99999999 TUPLES], S b [SIZE 2 TUPLES]"
    )
    assert run(["compile", str(join)]) == 2
    assert capsys.readouterr().err == (
        "handshake: 99,999,999 tuples in the window of a are more than a circuit has, which is 1,048,576; "
        "give fewer\n"
    )


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("Trads.Price", "the query has no input 'Trads' (Trades); did you mean 'Trades'?"),
        ("Trades.Prise", "Trades has no field 'Prise' (Symbol, Price, Ts); did you mean 'Price'?"),
    ],
)
def test_fields_that_may_be_null_are_those_of_inputs(
    query: Path, capsys: pytest.CaptureFixture[str], field: str, text: str
) -> None:
    assert run(["compile", str(query), "--groups", "1", "--nullable", field]) == 2
    assert capsys.readouterr().err == f"handshake: --nullable '{field}': {text}\n"
    assert run(["compile", str(query), "--groups", "1", "--nullable", "trades.PRICE"]) == 0
    assert "97 wires in" in capsys.readouterr().out


def test_adapters_on_the_command_line(query: Path, capsys: pytest.CaptureFixture[str]) -> None:
    verilog, picture = query.with_suffix(".v"), query.with_suffix(".svg")
    adapters = ["--input-adapter", "udp", "--output-adapter", "cpu", "--udp-port", "7000", "--delay", "2"]
    assert run(["compile", str(query), "--groups", "2", *adapters, "-o", str(verilog)]) == 0
    assert all(f"\nmodule {name}(" in verilog.read_text() for name in ("udp_parser", "cpu_reader", "delay"))
    assert run(["compile", str(query), "--groups", "2", *adapters]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"Trades by UDP +port 7000, 12 bytes per tuple", shown)
    assert re.search(r"register 0 +read Highs.status", shown)
    assert run(["explain", str(query), "--circuit", "--groups", "2", *adapters, "--svg", str(picture)]) == 0
    texts = {each.text for each in ElementTree.fromstring(picture.read_text()).iter(f"{SVG}text")}
    assert {"network", "UDP port 7000", "to the CPU", "delay of 2 cycles"} <= texts
    assert run(["compile", str(query), "--groups", "2", "--input-adapter", "usb"]) == 2
    assert "unknown input adapter 'usb'; choose none, udp, cpu" in capsys.readouterr().err


def test_the_help_names_the_rules() -> None:
    assert all(name in str(compile_query.__doc__) for name in (*PLAN_RULES, *RULES))


def test_the_example_of_the_page_runs() -> None:
    page = (DOCS / "circuits.md").read_text("utf-8")
    code, shown = re.search(r"```python\n(.*?)```\n\n```\n(.*?)```", page, re.DOTALL).groups()
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, "docs/circuits.md", "exec"), {})
    assert out.getvalue() == shown


def test_the_pictures_of_the_page_are_there() -> None:
    page = (DOCS / "circuits.md").read_text("utf-8")
    for name in re.findall(r"\((\S+\.svg)\)", page):
        assert ElementTree.fromstring((DOCS / name).read_text("utf-8")).tag.endswith("svg")


LOADS = """CREATE INPUT STREAM R (k int, v int, t int) TIMESTAMP BY t;
CREATE INPUT STREAM S (k int, w int, t int) TIMESTAMP BY t;
SELECT a.k, a.v, w, b.v AS u FROM R [SIZE 4 TUPLES] a, S [SIZE 3 TUPLES], R [SIZE 9 TIME] b
WHERE a.k = S.k AND b.v > w INTO Loads"""


def test_a_join_of_three_on_the_command_line(join: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, verilog, picture = join.parent, join.with_suffix(".v"), join.with_suffix(".svg")
    join.write_text(LOADS)
    bounds = ["--cores", "2", "--window-tuples", "6"]
    common = ["run", str(join), *_inputs(join)]
    assert run([*common, "--output", str(folder / "local.csv")]) == 0
    circuit = ["--backend", "circuit", "--simulator", "amaranth", *bounds]
    assert run([*common, *circuit, "--output", str(folder / "circuit.csv")]) == 0
    local, wires = ((folder / f"{name}.csv").read_text().splitlines() for name in ("local", "circuit"))
    assert len(local) > 10
    assert wires == local
    assert run(["compile", str(join), "-o", str(verilog), *bounds]) == 0
    assert "\nmodule nested_scan(" in verilog.read_text()
    assert run(["explain", str(join), "--circuit", *bounds, "--svg", str(picture)]) == 0
    texts = {each.text for each in ElementTree.fromstring(picture.read_text()).iter(f"{SVG}text")}
    # A tuple of R takes the most, which is in both of its windows: of the first, three old ones each have the
    # new one behind three of S; the new one has three rows of its last six, and itself, behind three of S.
    assert {"nested scans, 2 at a time", "up to 38 cycles for an arrival", "b: 6 tuples held"} <= texts
    assert run(["explain", str(join), "--circuit", *bounds]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"join of a, S, b +up to 38 cycles for an arrival, and one for each further", shown)
    assert re.search(r"issue rate +at least 0\.0263158 tuples per cycle", shown)
