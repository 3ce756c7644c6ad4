"""Files by a declared schema: exact values, bad rows as they stood, and no row that depends on another."""

from __future__ import annotations

import datetime
import gzip
import json
import math
import tempfile
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from handshake.errors import HandshakeError, InputError, SchemaError
from handshake.io.declared import BadRows
from handshake.io.files import read_declared
from handshake.plan.query import parse_query
from handshake.schema import Schema

Read = tuple[list[dict[str, Any]], list[tuple[int, str, str]]]


def schema_of(fields: str) -> Schema:
    return parse_query(f"CREATE INPUT STREAM R ({fields}); SELECT * FROM R").inputs[0].fields


def read(path: Path, fields: str, data: bytes | str) -> Read:
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    bad = BadRows()
    rows = read_declared(path, schema_of(fields), bad).to_pylist()
    assert all(row["stream"] == "R" for row in bad.rows)
    return rows, [(row["row"], row["reason"], row["text"]) for row in bad.rows]


# Decimals

DECIMALS = st.from_regex(
    r"-?(0(\.[0-9]{1,40})?|[1-9][0-9]{0,40}(\.[0-9]{1,40})?(e[+-]?[0-9]{1,3})?)", fullmatch=True
)


@given(st.lists(DECIMALS, min_size=1, max_size=4), st.integers(1, 38), st.data())
@example(["-97330"], 38, None)
@settings(max_examples=100)
def test_decimals_are_exact_or_bad(texts: list[str], precision: int, data: st.DataObject | None) -> None:
    scale = 36 if data is None else data.draw(st.integers(0, precision))
    kind, expected = (
        f"decimal({precision},{scale})",
        [
            {"x": value}
            for value in (Fraction(text) for text in texts)
            if (value * 10**scale).denominator == 1 and abs(value) * 10**scale < 10**precision
        ],
    )
    with tempfile.TemporaryDirectory() as folder:
        for name, lines in (("t.csv", ["x", *texts]), ("t.jsonl", [f'{{"x": {text}}}' for text in texts])):
            rows, bad = read(Path(folder) / name, f"x {kind}", "\n".join(lines))
            assert [{"x": Fraction(row["x"])} for row in rows] == expected
            assert len(rows) + len(bad) == len(texts)


# JSON lines: values

BAD = object()
NEW_YEAR = datetime.datetime(2024, 1, 1)
VALUES: dict[str, dict[str, Any]] = {
    "int": {
        "1": 1, "1.0": 1, "1e3": 1000, "-0": 0, '"7"': 7, '"1.0"': 1, "null": None,
        "3.5": BAD, "true": BAD, '" 1"': BAD, '""': BAD, '"x"': BAD, "[1]": BAD, "NaN": BAD, "1e400": BAD,
        "2147483648": BAD, "1e999999999999999999999": BAD,
    },
    "uint8": {"255.0": 255, "-0": 0, "-1": BAD, "-1.0": BAD, "256": BAD},
    "long": {"9007199254740993": 9007199254740993, "9223372036854775808": BAD},
    "uint64": {"18446744073709551615": 18446744073709551615},
    "decimal(20,2)": {
        "1": Decimal("1.00"), '"1.10"': Decimal("1.10"), "1.5000000000000000000": Decimal("1.50"),
        "1234567890123456.78": Decimal("1234567890123456.78"), "2.675": BAD, "1e18": BAD, "true": BAD,
    },
    "decimal(38,0)": {"1" * 38: Decimal("1" * 38)},
    "double": {"1": 1.0, "0.1": 0.1, '"1.5"': 1.5, "-Infinity": -math.inf, "true": BAD, '"x"': BAD},
    "float": {"0.1": 0.10000000149011612},
    "string": {
        '"a"': "a", '"1.10"': "1.10", '"2024-01-01T00:00:00Z"': "2024-01-01T00:00:00Z",
        "7": BAD, "1.10": BAD, "true": BAD, '"\\ud800"': BAD,
    },
    "string(2)": {'"é"': "é", '"éé"': BAD},
    "bool": {"true": True, '"true"': True, "1": BAD},
    "date": {'"2024-01-01"': datetime.date(2024, 1, 1), '"2024-1-1"': BAD, "19000": BAD},
    "timestamp": {
        '"2024-01-01T02:00:00+02:00"': NEW_YEAR, '"2024-01-01"': NEW_YEAR, "1704067200000000": NEW_YEAR,
        "1.5": BAD, '"10000-01-01"': BAD,
    },
    "binary": {'"ab"': b"ab", "1": BAD},
}  # fmt: skip
CASES = [(kind, text, value) for kind, values in VALUES.items() for text, value in values.items()]


@pytest.mark.parametrize(("kind", "text", "value"), CASES)
def test_a_json_value_is_exact_or_bad(tmp_path: Path, kind: str, text: str, value: Any) -> None:
    line = f'{{"x": {text}}}'
    rows, bad = read(tmp_path / "t.jsonl", f"x {kind}", line + "\n")
    assert (rows, [(row, raw) for row, _, raw in bad]) == (
        ([], [(1, line)]) if value is BAD else ([{"x": value}], [])
    )


@given(st.data())
@settings(max_examples=60)
def test_a_json_row_does_not_depend_on_other_lines(data: st.DataObject) -> None:
    kinds = data.draw(st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=3))
    values = [st.sampled_from([*VALUES[kind], "1", '"2024-01-01"', "{}"]) for kind in kinds]
    objects = st.tuples(*values).map(
        lambda texts: "{" + ", ".join(f'"c{n}": {text}' for n, text in enumerate(texts)) + "}"
    )
    odd = st.sampled_from(["", " ", "null", "7", '{"c0": 1}{"c0": 2}', '{"c0":', '{"c0": 1, "c0": 1}'])
    lines = data.draw(st.lists(objects | objects | odd, max_size=12))
    fields = ", ".join(f"c{n} {kind}" for n, kind in enumerate(kinds))
    names = json.dumps(dict.fromkeys((f"c{n}" for n in range(len(kinds))), None))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.jsonl"
        together = read(path, fields, "\n".join([names, *lines]))
        alone = [read(path, fields, f"{names}\n{line}") for line in lines]
    rows = [row for found, _ in alone for row in found[1:]]
    bad = [(n + row, reason, text) for n, (_, found) in enumerate(alone) for row, reason, text in found]
    assert together == ([dict.fromkeys(rows[0] if rows else together[0][0]), *rows], bad)


def test_a_long_json_file_is_read_in_pieces_with_bad_lines_in_some(tmp_path: Path) -> None:
    lines = [f'{{"x": {n}, "s": "{n}", "pad": "{"é" * (n % 50)}"}}' for n in range(30_000)]
    odd = {
        7: '{"x": 1.5, "s": ""}',
        20_000: "null",
        20_001: "",
        25_000: "[]",
        29_999: '{"s": "' + "a" * 2**21 + '"}',
    }
    for n, line in odd.items():
        lines[n] = line
    rows, bad = read(tmp_path / "t.jsonl", "x int, s string", "\n".join(lines))
    plain = [{"x": n, "s": str(n)} for n in range(30_000) if n not in odd]
    assert rows == [*plain[:19_999], {"x": None, "s": None}, *plain[19_999:], {"x": None, "s": "a" * 2**21}]
    assert bad == [
        (8, "1.5 in column 'x' is not int32", odd[7]), (25_001, "the line is not a JSON object", "[]"),
    ]  # fmt: skip


def test_a_carriage_return_is_white_space_of_json(tmp_path: Path) -> None:
    text = """{"x": \r1}\r\n{"x": true}\r\n{"x": 2}\r"""
    rows, bad = read(tmp_path / "t.jsonl", "x int", text)
    assert rows == [{"x": 1}, {"x": 2}]
    assert bad == [(2, "true in column 'x' is not int32", '{"x": true}')]


def test_reasons_of_bad_json_lines(tmp_path: Path) -> None:
    lines = [
        b'{"x": 1}', b'{"x": 1, "y": 1, "y": 2}', b'{"x": 1, "x": 1}', b'{"x": "caf\xe9"}',
        b'{"x": "\\ud800"}', b'{"x": ["a"]}', b'{"x": {"a": 1}}', b'{"x": 1.10}', b'{"x":',
        b'{"x": "' + b"9" * 200 + b'"}',
    ]  # fmt: skip
    rows, bad = read(tmp_path / "t.jsonl", "x long", b"\n".join(lines))
    assert rows == [{"x": 1}, {"x": 1}]
    assert bad == [
        (3, "the key 'x' comes twice", '{"x": 1, "x": 1}'),
        (4, "the line is not UTF-8 text", '{"x": "caf\\xe9"}'),
        (5, "'\\ud800' in column 'x' has half of a surrogate pair", '{"x": "\\ud800"}'),
        (6, "a list in column 'x' is not int64", '{"x": ["a"]}'),
        (7, "an object in column 'x' is not int64", '{"x": {"a": 1}}'),
        (8, "1.10 in column 'x' is not int64", '{"x": 1.10}'),
        (9, "the line is not a JSON object", '{"x":'),
        (10, f"'{'9' * 98}… in column 'x' is not int64", lines[9].decode()),
    ]


def test_json_columns_are_found_by_the_keys_of_all_lines(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    assert read(path, "Price int", '{"PRICE": 1}\n{"PRICE": 2}\n')[0] == [{"Price": 1}, {"Price": 2}]
    assert read(path, "Price int", '{"PRICE": 1}\n{"Price": 2}\n')[0] == [{"Price": None}, {"Price": 2}]
    with pytest.raises(SchemaError, match=r"^R input has no column 'Price' \(PRICE, price\)"):
        read(path, "Price int", '{"PRICE": 1}\n{"price": 2}\n')
    with pytest.raises(
        SchemaError, match=r"^R input has no column 'Price' \(Prise, x\); did you mean 'Prise'"
    ):
        read(path, "Price int", '{"Prise": 1}\n{"x": 2, "x": 2}\nno\n')


# CSV


def test_bad_csv_rows_stand_in_order_and_as_they_were(tmp_path: Path) -> None:
    text = 'x,s\n1,"a"\n1\n\n+5,"b ""c""\nd"\n2,"e"\n3,f,g\r\n 7,h\n8\n'
    assert read(tmp_path / "t.csv", "x int, s string", text) == (
        [{"x": 1, "s": "a"}, {"x": 2, "s": "e"}],
        [
            (2, "1 field where the header has 2", "1"),
            (3, "'+5' in column 'x' is not int32", '+5,"b ""c""\nd"'),
            (5, "3 fields where the header has 2", "3,f,g"),
            (6, "' 7' in column 'x' is not int32", " 7,h"),
            (7, "1 field where the header has 2", "8"),
        ],
    )


def test_bad_csv_rows_of_a_long_file(tmp_path: Path) -> None:
    lines = [f"{n},{'s' * (n % 90)}" for n in range(60_000)]
    lines[100], lines[30_000], lines[59_998], lines[59_999] = "x,y", "1", '"z', 'q",1'
    rows, bad = read(tmp_path / "t.csv", "x int, s string", "\n".join(["x,s", *lines]))
    assert [row["x"] for row in rows] == [n for n in range(59_998) if n not in (100, 30_000)]
    assert [(row, text) for row, _, text in bad] == [(101, "x,y"), (30_001, "1"), (59_999, '"z\nq",1')]


def test_csv_rows_that_are_not_utf8_are_bad(tmp_path: Path) -> None:
    data = "s,x,u\na,x,\né,2,\n".encode() + b"caf\xe9,1,a\nb,2,\xe9\nc\xe9\nd,3,\ne,,,\n"
    rows, bad = read(tmp_path / "t.csv", "x int, s string", data)
    assert rows == [{"x": 2, "s": "é"}, {"x": 3, "s": "d"}]
    assert bad == [
        (1, "'x' in column 'x' is not int32", "a,x,"),
        (3, "the row is not UTF-8 text", "caf\\xe9,1,a"),
        (4, "the row is not UTF-8 text", "b,2,\\xe9"),
        (5, "the row is not UTF-8 text", "c\\xe9"),
        (7, "4 fields where the header has 3", "e,,,"),
    ]


def test_csv_columns_without_a_declaration_are_not_read(tmp_path: Path) -> None:
    rows, bad = read(tmp_path / "t.csv", "x int", "x,u\n" + "1,2\n" * 300_000 + "1,text\n")
    assert (len(rows), bad) == (300_001, [])


def test_csv_decimals_have_all_their_digits(tmp_path: Path) -> None:
    rows, bad = read(tmp_path / "t.tsv", "x decimal(38,0), y int", f"y\tx\n1\t{'1' * 38}\n2\t1.5\n")
    assert rows == [{"x": Decimal("1" * 38), "y": 1}]
    assert bad == [(2, "'1.5' in column 'x' is not decimal(38, 0)", "2\t1.5")]


@pytest.mark.parametrize(
    ("name", "text", "kind"), [("csv", "x\n1\n", "CSV"), ("jsonl", '{"x": 1}\n', "JSON lines")]
)
def test_a_compressed_file_that_is_cut_off(tmp_path: Path, name: str, text: str, kind: str) -> None:
    path = tmp_path / f"t.{name}.gz"
    with pytest.raises(InputError) as caught:
        read(path, "x int", gzip.compress(text.encode() * 1000)[:-9])
    assert str(caught.value) == f"R input: '{path}' cannot be read as {kind}: Truncated compressed stream"


def test_a_csv_file_without_a_header(tmp_path: Path) -> None:
    with pytest.raises(HandshakeError, match=r"^R input is empty: it has no header line$"):
        read(tmp_path / "t.csv", "x int", "\n\n")


# Typed files


def test_bad_rows_of_typed_files_are_json(tmp_path: Path) -> None:
    table = pa.table(
        {"x": pa.array([1, 2**40]), "t": pa.array([0, 1], pa.timestamp("ns")), "b": [b"", b"\xff"]}
    )
    parquet.write_table(table, tmp_path / "t.parquet")
    bad = BadRows()
    read_declared(tmp_path / "t.parquet", schema_of("x int, t timestamp"), bad)
    assert [(row["reason"], row["text"]) for row in bad.rows] == [
        (
            "1099511627776 in column 'x' is not int32",
            '{"x": 1099511627776, "t": "1970-01-01 00:00:00.000000001", "b": "/w=="}',
        )
    ]
