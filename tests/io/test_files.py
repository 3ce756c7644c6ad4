"""Files and folders read as streams: every format, every refusal, and nothing lost on the way."""

from __future__ import annotations

import gzip
import math
import os
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import csv, feather, ipc, parquet

from handshake.errors import InputError
from handshake.io import format_of, read
from handshake.io.frames import plain_table

KNOWN = (
    "known are .parquet, .pq, .arrow, .feather, .arrows, .ipc, .csv, .tsv, .jsonl, .ndjson, .jsonlines, "
    ".json-lines, .json, and .gz, .bz2, .zst after a text format"
)
ROWS = pa.table({"x": [1, 2, 3], "name": ["a", None, ""], "y": [0.5, float("inf"), None]})


def write(path: Path, data: bytes | str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def refusal(path: Path | str, stream: str = "left") -> str:
    with pytest.raises(InputError) as caught:
        read(path, stream)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# Formats


def write_stream(table: pa.Table, path: Path) -> None:
    with ipc.new_stream(str(path), table.schema) as writer:
        writer.write_table(table)


def write_file(table: pa.Table, path: Path) -> None:
    with ipc.new_file(str(path), table.schema) as writer:
        writer.write_table(table)


WRITERS: list[tuple[str, Callable[[pa.Table, Path], Any]]] = [
    ("t.parquet", parquet.write_table),
    ("t.pq", parquet.write_table),
    ("t.arrow", write_file),
    ("t.arrow", write_stream),
    ("t.arrows", write_stream),
    ("t.ipc", write_file),
    ("t.feather", feather.write_feather),
    ("T.CSV", csv.write_csv),
]


@pytest.mark.parametrize(("name", "writer"), WRITERS)
def test_every_format_is_read(tmp_path: Path, name: str, writer: Callable[[pa.Table, Path], Any]) -> None:
    writer(ROWS, tmp_path / name)
    assert read(tmp_path / name).equals(ROWS)
    assert read(str(tmp_path / name)).equals(ROWS)


@pytest.mark.parametrize("name", ["t.jsonl", "t.ndjson", "t.jsonlines", "t.json-lines", "t.json"])
def test_json_lines(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, '{"x": 1, "s": "a"}\n\n{"x": 2.5}\n')
    assert read(path).to_pylist() == [{"x": 1.0, "s": "a"}, {"x": 2.5, "s": None}]


def test_tab_separated(tmp_path: Path) -> None:
    assert read(write(tmp_path / "t.tsv", "x\ty\n1\ta,b\n")).to_pylist() == [{"x": 1, "y": "a,b"}]


@pytest.mark.parametrize(("name", "text"), [("t.csv.gz", "x,y\n1,2\n"), ("t.jsonl.gz", '{"x":1,"y":2}\n')])
def test_compressed_text(tmp_path: Path, name: str, text: str) -> None:
    assert read(write(tmp_path / name, gzip.compress(text.encode()))).to_pylist() == [{"x": 1, "y": 2}]


def test_a_gzip_file_of_several_members_is_read_to_its_end(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv.gz", gzip.compress(b"x,y\n1,2\n") + gzip.compress(b"3,4\n"))
    assert read(path)["x"].to_pylist() == [1, 3]


def test_partition_folders_on_the_way_add_no_columns(tmp_path: Path) -> None:
    path = tmp_path / "day=1" / "t.parquet"
    path.parent.mkdir()
    parquet.write_table(ROWS, path)
    assert read(path).column_names == ROWS.column_names


def test_notes_of_other_programs_are_dropped(tmp_path: Path) -> None:
    parquet.write_table(ROWS.replace_schema_metadata({"pandas": "{}"}), tmp_path / "t.parquet")
    table = read(tmp_path / "t.parquet")
    assert table.schema.metadata is None
    assert all(field.metadata is None for field in table.schema)


def test_types_whose_rows_arrow_cannot_pick(tmp_path: Path) -> None:
    kinds = [pa.string_view(), pa.binary_view(), pa.run_end_encoded(pa.int32(), pa.int8()), pa.string()]
    arrays = [pa.array(["a"], kinds[0]), pa.array([b"b"], kinds[1]), pa.array([1], kinds[2]), pa.array(["c"])]
    write_file(pa.table(arrays, names=list("abcd")), tmp_path / "t.arrow")
    table = plain_table(read(tmp_path / "t.arrow"), longest=0)
    assert table.schema.types == [pa.large_string(), pa.large_binary(), pa.int8(), pa.large_string()]
    assert table.to_pylist() == [{"a": "a", "b": b"b", "c": 1, "d": "c"}]
    path = tmp_path / "u.arrow"
    write_file(pa.table({"x": pa.nulls(1, pa.list_(pa.string_view()))}), path)
    assert refusal(path) == (
        f"left input: column 'x' of '{path}' is list<item: string_view>, whose rows cannot be picked; "
        "leave the column out or cast it"
    )


@pytest.mark.parametrize(
    ("name", "kind", "compression"),
    [("a.csv", "CSV", None), ("a.b.PARQUET", "Parquet", None), ("a.jsonl.zst", "JSON lines", "zstd")],
)
def test_format_of(name: str, kind: str, compression: str | None) -> None:
    form, found = format_of(name)
    assert (form.kind, found) == (kind, compression)


# CSV


def test_csv_of_a_header_alone_has_columns_without_a_type(tmp_path: Path) -> None:
    for text in ("x,y\n", "x,y"):
        table = read(write(tmp_path / "t.csv", text))
        assert (table.num_rows, table.column_names) == (0, ["x", "y"])
        assert table.schema.types == [pa.null(), pa.null()]


def test_csv_null_nan_and_empty_text_are_three_things(tmp_path: Path) -> None:
    table = read(write(tmp_path / "t.csv", 'x,s\nnan,a\n,\n1,""\n-inf,NA\n'))
    x = table["x"].to_pylist()
    assert math.isnan(x[0])
    assert x[1:] == [None, 1.0, -math.inf]
    assert table["s"].to_pylist() == ["a", None, "", "NA"]


def test_csv_blank_lines_are_rows_only_where_there_is_one_column(tmp_path: Path) -> None:
    assert read(write(tmp_path / "t.csv", "x\n1\n\n3\n"))["x"].to_pylist() == [1, None, 3]
    assert read(write(tmp_path / "t.csv", "x,y\n1,2\n\n3,4\n"))["x"].to_pylist() == [1, 3]


def test_csv_times_dates_and_zones(tmp_path: Path) -> None:
    text = "t,d,z\n2024-01-01 00:00:00,2024-01-02,2024-01-01T00:00:00+01:00\n"
    types = read(write(tmp_path / "t.csv", text)).schema.types
    assert types[:2] == [pa.timestamp("s"), pa.date32()]
    assert types[2].tz == "UTC"


def test_csv_line_breaks_inside_quotes_survive_block_borders(tmp_path: Path) -> None:
    rows = 30_000
    text = "x,s\n" + "".join(f'{i},"line\nand line {i} of a text, long enough"\n' for i in range(rows))
    table = read(write(tmp_path / "t.csv", text))
    assert table["x"].to_pylist() == list(range(rows))


def test_csv_row_longer_than_a_block(tmp_path: Path) -> None:
    table = read(write(tmp_path / "t.csv", "x,s\n1," + "a" * 3_000_000 + "\n2,b\n"))
    assert [len(s) for s in table["s"].to_pylist()] == [3_000_000, 1]


def test_csv_types_come_from_all_rows(tmp_path: Path) -> None:
    text = "x\n" + "1\n" * 600_000 + "2.5\n"
    assert read(write(tmp_path / "t.csv", text)).schema.field("x").type == pa.float64()


def test_whole_numbers_beyond_64_bits_stay_exact(tmp_path: Path) -> None:
    text = "u,d,f\n18446744073709551615,99999999999999999999999,1e300\n1,-1,0.5\n"
    table = read(write(tmp_path / "t.csv", text))
    assert table.schema.types == [pa.uint64(), pa.decimal128(38, 0), pa.float64()]
    assert table["u"].to_pylist() == [18446744073709551615, 1]
    assert table["d"].to_pylist() == [Decimal("99999999999999999999999"), Decimal(-1)]
    json_table = read(write(tmp_path / "t.jsonl", '{"u": 18446744073709551615}\n'))
    assert json_table["u"].to_pylist() == [18446744073709551615]


@pytest.mark.parametrize(("row", "fields"), [("3", "1 field"), ("3,4,5", "3 fields")])
def test_csv_row_of_wrong_length_is_named(tmp_path: Path, row: str, fields: str) -> None:
    path = write(tmp_path / "t.csv", f"x,y\n1,2\n{row}\n5,6\n")
    assert refusal(path) == (
        f"left input: '{path}', row 2: {fields} where the header has 2; "
        "correct the row, or quote a field that holds the delimiter"
    )


def test_csv_that_is_not_utf8(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", b"x,y\nf\xe9,2\n")
    assert refusal(path) == f"left input: column 'x' of '{path}' is not UTF-8 text; convert the file to UTF-8"
    path = write(tmp_path / "u.csv", b"f\xe9,y\n1,2\n")
    assert refusal(path) == f"left input: '{path}' is not UTF-8 text; convert the file to UTF-8"


# JSON lines


def test_json_times_keep_their_zone_and_fraction(tmp_path: Path) -> None:
    text = '{"b": 1, "z": "2024-01-01T00:00:00+02:00", "f": "2024-01-01 00:00:00.25", "d": "2024-01-01"}\n'
    table = read(write(tmp_path / "t.jsonl", text))
    assert table.column_names == ["b", "z", "f", "d"]
    expected = [pa.int64(), pa.timestamp("ns", "UTC"), pa.timestamp("ns"), pa.date32()]
    assert table.schema.types == expected
    assert table["z"].cast(pa.timestamp("s", "UTC")).cast(pa.int64()).to_pylist() == [1704060000]
    assert table["d"].to_pylist() == [date(2024, 1, 1)]


def test_json_text_that_is_only_sometimes_a_time_stays_text(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", '{"t": "2024-01-01 00:00:00"}\n{"t": "later"}\n')
    assert read(path)["t"].to_pylist() == ["2024-01-01 00:00:00", "later"]


def test_json_types_come_from_all_rows(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", '{"x": 1}\n' * 300_000 + '{"x": 2.5, "late": true}\n')
    table = read(path)
    assert table.schema.types == [pa.float64(), pa.bool_()]
    assert table["x"].to_pylist()[-2:] == [1.0, 2.5]


def test_json_row_longer_than_a_block(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", '{"s": "' + "a" * 3_000_000 + '"}\n')
    assert read(path).num_rows == 1


JSON_REFUSALS = [
    ('{"x": 1}\n{"x":\n', "'{path}', line 2 is not a JSON object; write one object per line"),
    ('[{"x": 1}]\n', "'{path}', line 1 is not a JSON object; write one object per line"),
    ('{"x": 1}\n7\n', "'{path}', line 2 is not a JSON object; write one object per line"),
    ('{"x": 1, "x": 2}\n', "'{path}' has a line with the key 'x' twice; rename one of them"),
    (
        '{"x": 1}\n{"x": "a"}\n',
        "column 'x' of '{path}' changes from number to string; a column has values of one type",
    ),
    (b'{"x": "f\xe9"}\n', "'{path}' is not UTF-8 text; convert the file to UTF-8"),
    ("\n", "'{path}' has no columns"),
]


@pytest.mark.parametrize(("text", "message"), JSON_REFUSALS)
def test_json_refusals(tmp_path: Path, text: str | bytes, message: str) -> None:
    path = write(tmp_path / "t.jsonl", text)
    assert refusal(path, "right") == "right input: " + message.format(path=path)


# Files that cannot be read


@pytest.mark.parametrize("name", ["t.parquet", "t.arrow", "t.csv", "t.jsonl", "t.csv.gz"])
def test_empty_file(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, b"")
    assert refusal(path) == (
        f"left input: '{path}' is empty (0 bytes); it needs at least the names of its columns"
    )


def test_csv_of_blank_lines(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "\n\n")
    assert refusal(path) == f"left input: '{path}' is empty: it has no header line"
    path = write(tmp_path / "t.csv.gz", gzip.compress(b""))
    assert refusal(path) == f"left input: '{path}' is empty: it has no header line"


def test_missing_file(tmp_path: Path) -> None:
    write(tmp_path / "trades.csv", "x\n1\n")
    path = tmp_path / "trads.csv"
    assert refusal(path) == f"left input: no file or folder '{path}'; did you mean 'trades.csv'?"
    assert refusal(tmp_path / "no" / "such.csv") == (
        f"left input: no file or folder '{tmp_path / 'no' / 'such.csv'}'"
    )


def test_unknown_extension(tmp_path: Path) -> None:
    path = write(tmp_path / "t.xlsx", "1")
    assert refusal(path) == f"left input: '{path}' has the unknown extension '.xlsx'; {KNOWN}"
    path = write(tmp_path / "t", "1")
    assert refusal(path) == f"left input: '{path}' has no extension; {KNOWN}"
    path = write(tmp_path / "t.parquet.gz", "1")
    assert refusal(path) == f"left input: '{path}' has the unknown extension '.parquet.gz'; {KNOWN}"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_file_without_permission(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "x\n1\n")
    path.chmod(0)
    assert refusal(path) == f"left input: '{path}' cannot be read: Permission denied"


def test_link_that_leads_nowhere(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.symlink_to(path)
    assert refusal(path) == f"left input: '{path}' cannot be read: Too many levels of symbolic links"


def test_neither_file_nor_folder() -> None:
    assert refusal("/dev/null") == ("left input: '/dev/null' is not a file; give a file or a folder of files")


def test_damaged_parquet(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"x": range(10_000)}), tmp_path / "t.parquet")
    whole = (tmp_path / "t.parquet").read_bytes()
    path = write(tmp_path / "t.parquet", whole[:-100])
    assert refusal(path).startswith(
        f"left input: '{path}' cannot be read as Parquet: Parquet magic bytes not found in footer"
    )
    path = write(tmp_path / "t.parquet", whole[:100] + b"\xff" * 2000 + whole[2100:])
    assert refusal(path).startswith(f"left input: '{path}' cannot be read as Parquet: ")


@pytest.mark.parametrize("writer", [write_file, write_stream])
def test_cut_off_arrow(tmp_path: Path, writer: Callable[[pa.Table, Path], Any]) -> None:
    writer(pa.table({"x": range(10_000)}), tmp_path / "t.arrow")
    path = write(tmp_path / "t.arrow", (tmp_path / "t.arrow").read_bytes()[:-1000])
    assert refusal(path).startswith(f"left input: '{path}' cannot be read as Arrow: ")


def test_cut_off_gzip(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv.gz", gzip.compress(b"x,y\n1,2\n")[:-9])
    assert refusal(path) == f"left input: '{path}' cannot be read as CSV: Truncated compressed stream"


def test_text_under_a_binary_name(tmp_path: Path) -> None:
    for name in ("t.parquet", "t.arrow", "t.feather"):
        path = write(tmp_path / name, "x,y\n1,2\n3,4\n5,6\n")
        assert refusal(path).startswith(f"left input: '{path}' cannot be read as ")


def test_doubled_column_names(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "x,y,x\n1,2,3\n")
    assert refusal(path) == (
        f"left input: '{path}' has more than one column named 'x' (x, y, x); rename one of them"
    )
    doubled = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["x", "x"])
    parquet.write_table(doubled, tmp_path / "t.parquet")
    assert "more than one column named 'x' (x, x)" in refusal(tmp_path / "t.parquet")


# Folders


def test_folder_is_read_in_the_order_of_names(tmp_path: Path) -> None:
    for name, text in (
        ("b.csv", "x,y\n3,4\n"),
        ("a.csv", "x,y\n1,2\n"),
        ("_SUCCESS", ""),
        (".a.csv.crc", ""),
    ):
        write(tmp_path / name, text)
    assert read(tmp_path).to_pylist() == [{"x": 1, "y": 2}, {"x": 3, "y": 4}]


def test_folder_columns_may_come_in_any_order(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", "x,y\n1,a\n")
    write(tmp_path / "b.csv", "y,x\nb,2\n")
    assert read(tmp_path).to_pylist() == [{"x": 1, "y": "a"}, {"x": 2, "y": "b"}]


WIDER = [
    ("x\n1\n", "x\n0.5\n", pa.float64(), [1.0, 0.5]),
    ("x\n", "x\n7\n", pa.int64(), [7]),
    ("x,y\n,1\n", "x,y\nb,1\n", pa.string(), [None, "b"]),
    (
        "x\n1\n",
        "x\n18446744073709551615\n",
        pa.decimal128(38, 0),
        [Decimal(1), Decimal(18446744073709551615)],
    ),
    (
        "x\n2024-01-01\n",
        "x\n2024-01-02 00:00:01\n",
        pa.timestamp("s"),
        [datetime(2024, 1, 1), datetime(2024, 1, 2, 0, 0, 1)],
    ),
]


@pytest.mark.parametrize(("first", "second", "kind", "values"), WIDER)
def test_folder_widens_types(
    tmp_path: Path, first: str, second: str, kind: pa.DataType, values: list[Any]
) -> None:
    write(tmp_path / "a.csv", first)
    write(tmp_path / "b.csv", second)
    table = read(tmp_path)
    assert table.schema.field("x").type == kind
    assert table["x"].to_pylist() == values


def test_folder_times_take_the_finest_unit(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", "t\n2024-01-01 00:00:00\n")
    write(tmp_path / "b.csv", "t\n2024-01-01 00:00:00.5\n")
    assert read(tmp_path).schema.field("t").type == pa.timestamp("ns")


def test_folder_of_typed_files(tmp_path: Path) -> None:
    words = pa.array(["a", "b"])
    parts = {
        "a": (pa.int32(), words.dictionary_encode(), pa.float32()),
        "b": (pa.int64(), words.cast(pa.large_string()), pa.float64()),
        "c": (pa.int8(), pa.array(["c", "b"]).dictionary_encode(), pa.float32()),
    }
    for name, (whole, text, real) in parts.items():
        table = pa.table({"n": pa.array([1, 2], whole), "s": text, "f": pa.array([0.5, 1], real)})
        parquet.write_table(table, tmp_path / f"{name}.parquet")
    table = read(tmp_path)
    assert table.schema.types == [pa.int64(), pa.large_string(), pa.float64()]
    assert table["s"].to_pylist() == ["a", "b", "a", "b", "c", "b"]


def test_dictionaries_become_one(tmp_path: Path) -> None:
    for name, words in (("a", ["x", "y"]), ("b", ["z", "x"])):
        parquet.write_table(
            pa.table({"s": pa.array(words).dictionary_encode()}), tmp_path / f"{name}.parquet"
        )
    column = read(tmp_path)["s"]
    assert column.to_pylist() == ["x", "y", "z", "x"]
    assert all(chunk.dictionary.equals(column.chunk(0).dictionary) for chunk in column.chunks)


def test_folder_type_that_changes(tmp_path: Path) -> None:
    a, b = write(tmp_path / "a.csv", "x,y\n1,2\n"), write(tmp_path / "b.csv", "x,y\n1,two\n")
    assert refusal(tmp_path) == (
        f"left input: column 'y' is int64 in '{a}' but string in '{b}'; "
        "all files of a folder must have the same columns"
    )


def test_folder_type_that_changes_names_the_file_that_set_it(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", "x\n")
    b, c = write(tmp_path / "b.csv", "x\n1\n"), write(tmp_path / "c.csv", "x\ntrue\n")
    assert refusal(tmp_path).startswith(f"left input: column 'x' is int64 in '{b}' but bool in '{c}'")


def test_folder_number_that_would_be_rounded(tmp_path: Path) -> None:
    a = write(tmp_path / "a.csv", "x\n9007199254740993\n")
    b = write(tmp_path / "b.csv", "x\n0.5\n")
    assert refusal(tmp_path) == (
        f"left input: column 'x' of '{a}' is int64 with values that do not fit double, its type in '{b}'; "
        "all files of a folder must have the same columns"
    )


def test_folder_column_that_is_missing(tmp_path: Path) -> None:
    a, b = write(tmp_path / "a.csv", "x,price\n1,2\n"), write(tmp_path / "b.csv", "x,prise\n1,2\n")
    assert refusal(tmp_path) == (
        f"left input: column 'price' is in '{a}' but not in '{b}' (x, prise); did you mean 'prise'?; "
        "all files of a folder must have the same columns"
    )
    write(tmp_path / "b.csv", "x,price,z\n1,2,3\n")
    assert refusal(tmp_path) == (
        f"left input: column 'z' is in '{b}' but not in '{a}' (x, price); "
        "all files of a folder must have the same columns"
    )


def test_folder_of_mixed_formats(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", "x\n1\n")
    write(tmp_path / "b.jsonl", '{"x": 1}\n')
    assert refusal(tmp_path) == (
        f"left input: '{tmp_path}' mixes formats: 'a.csv' is CSV and 'b.jsonl' is JSON lines; "
        "put each format in a folder of its own"
    )


def test_folder_without_data(tmp_path: Path) -> None:
    write(tmp_path / "_SUCCESS", "")
    assert refusal(tmp_path) == f"left input: folder '{tmp_path}' holds no data files; {KNOWN}"


def test_folder_with_something_else_in_it(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", "x\n1\n")
    write(tmp_path / "b" / "c.csv", "x\n1\n")
    assert refusal(tmp_path) == (
        f"left input: folder '{tmp_path}' holds the folder 'b'; give a folder whose files lie directly in it"
    )
    (tmp_path / "b" / "c.csv").rename(tmp_path / "c.cvs")
    (tmp_path / "b").rmdir()
    assert refusal(tmp_path) == (
        f"left input: '{tmp_path / 'c.cvs'}' has the unknown extension '.cvs'; {KNOWN}"
    )
