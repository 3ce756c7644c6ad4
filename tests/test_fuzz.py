"""Mutated inputs of every kind that the package reads. `make fuzz` runs many more."""

from __future__ import annotations

import json
import struct
import zlib
from collections import Counter
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

import handshake as hs
from fuzz.mutate import Mutant
from fuzz.run import Target, run_target
from fuzz.state import _log, _manifests, check_log
from fuzz.targets import TARGETS
from fuzz.texts import _value
from handshake.cli.app import run
from handshake.engines.spark.state.manifest import Manifest
from handshake.engines.spark.state.store import StateError, Store
from handshake.io.declared import BadRows
from handshake.io.files import read, read_declared
from handshake.io.udp.sockets import Endpoint
from handshake.io.udp.wire import Layout
from handshake.plan.query import parse_query
from handshake.schema import Schema

ROOT = Path(__file__).parent.parent
SLOW = {"commands": 40, "options": 60, "queries": 150}
"""Inputs of targets that take milliseconds each."""


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_mutants_are_accepted_or_refused(name: str, tmp_path: Path) -> None:
    count = SLOW.get(name, 200)
    found = run_target(TARGETS[name], name, 0, range(count), tmp_path)
    assert found.faults == []
    assert sum(found.counts.values()) == count
    assert found.counts["accepted"] + found.counts["compared"] > 0


def test_a_fault_is_found_and_named(tmp_path: Path) -> None:
    def check(given: object, rng: object, folder: Path) -> bool:
        raise KeyError("gone")

    target = Target(lambda _: ("é\0", b"\xff" * 2_000), check)
    found = run_target(target, "none", 7, range(3, 4), tmp_path)
    assert found.counts == {"faults": 1}
    (fault,) = found.faults
    assert str(fault) == "--target none --seed 7 --only 3: check: KeyError: 'gone'"
    assert fault.input.startswith(r"('\xe9\x00', b'\xff\xff")
    assert fault.input.endswith(r"\xff\xff')")
    assert len(fault.input) < 640


def test_a_mutant_shows_where_it_differs() -> None:
    assert repr(Mutant(b"abcabc", b"abbc")) == "b'' instead of b'ca' at byte 2 of 6"
    assert repr(Mutant(b"aaa", b"aaaa")) == "b'a' instead of b'' at byte 3 of 3"
    assert repr(Mutant(b"abc", b"aBc")) == "b'B' instead of b'b' at byte 1 of 3"


def test_inputs_are_the_same_in_each_run() -> None:
    assert _manifests.__wrapped__() == _manifests()
    assert _log.__wrapped__() == _log()


# Faults that mutants found. Names of cases are the seed and the number of the input.


def test_each_fault_of_the_tally_has_a_test() -> None:
    tally = json.loads((ROOT / "bench" / "results" / "fuzz.json").read_text())
    listed = Counter(fault["target"] for fault in tally["faults"])
    assert listed == {
        name: entry["outcomes"]["faults"]
        for name, entry in tally["targets"].items()
        if "faults" in entry["outcomes"]
    }
    for fault in tally["faults"]:
        assert fault["test"], f"enter the test that covers it into the tally: {fault}"
        file, _, test = fault["test"].partition("::")
        name, _, case = test.rstrip("]").partition("[")
        text = (ROOT / file).read_text()
        assert f"\ndef {name}(" in text, fault
        assert case in text, fault


@pytest.mark.parametrize("url", ["udp://[:1]:5000", "udp://[::1:5000", "udp://ho\nst"])
def test_addresses_that_are_none(url: str) -> None:
    with pytest.raises(
        hs.InputError, match=r"^'.*' is not an address for UDP; write it as udp://127.0.0.1:5000$"
    ):
        Endpoint.parse(url)


@pytest.mark.parametrize("data", [b"", b"\x00", b"hsm2" + bytes(12), b"hsm2" + b"\xff" * 40, b"\x78\x9c"])
def test_a_damaged_manifest_is_refused(data: bytes) -> None:
    with pytest.raises(StateError, match=r"^the join's state is damaged \(.*\); restore the checkpoint"):
        Manifest.parse(data)


def test_every_damaged_byte_of_a_manifest_is_noticed() -> None:
    for whole in _manifests():
        assert Manifest.parse(whole).dump() == whole
        for place in range(len(whole)):
            damaged = bytearray(whole)
            damaged[place] ^= 1 << place % 8
            with pytest.raises(StateError, match=r"^the join's state is damaged \("):
                Manifest.parse(bytes(damaged))


def test_a_manifest_of_the_first_version_is_read() -> None:
    """It has compressed fields alone, fewer than today, and no states of rows."""
    whole = _manifests()[0]
    size = struct.unpack_from("<4sIIII", whole)[2]
    fields = json.loads(zlib.decompress(whole[20 : 20 + size]))
    kept = {
        name: value for name, value in fields.items() if name not in ("guests", "timer", "clocks", "about")
    }
    old = Manifest.parse(zlib.compress(json.dumps({**kept, "version": 1}).encode()))
    now = Manifest.parse(whole)
    assert (old.windows, old.plan, old.router.epochs) == (now.windows, now.plan, now.router.epochs)
    assert (old.states, old.guests, old.timer) == ((None, None), ([], []), None)
    assert Manifest.parse(old.dump()).dump() == old.dump()


END = b"\x00@\x02\0\0\0\0\0\0\x80\xb6g\xf8\xa1k#}"
"""The middle of a record of an index: the last byte of its number of rows, its end, and a checksum."""


INDEX = "00000000000000000000.index"


def _damage(name: str, mutant: tuple[int, bytes, bytes]) -> Mutant:
    """Return a file of a log with other bytes at a place."""
    place, old, new = mutant
    whole = dict(_log())[name]
    assert whole[place : place + len(old)] == old
    return Mutant(whole, whole[:place] + new + whole[place + len(old) :])


def _with_own_sums(index: Mutant) -> Mutant:
    """Return the index with the right checksums of its records: a person can write them."""
    heads = (index.data[start : start + 20] for start in range(0, len(index.whole), 24))
    return Mutant(index.whole, b"".join(head + struct.pack("<I", zlib.crc32(head)) for head in heads))


@pytest.mark.parametrize(
    "mutant",
    [
        pytest.param((15, b"\x00", b"\x81"), id="201-302"),
        pytest.param((15, b"\x00\x80\xb6g\xf8\xa1k#", b"\xff" * 8), id="201-2823"),
        pytest.param((7, END, END[1:] + b"-"), id="201-3481"),
        pytest.param((8, END[1:9], b"\xff" * 8), id="202-82"),
        pytest.param((7, END, b"\x01@\x02\0\0\0\0\0\x80\xb6g\xf8\xa1k'#\x9a"), id="202-1825"),
        pytest.param((15, b"\x00", b"\x8a"), id="202-2126"),
        pytest.param((15, b"\x00\x80", b"\xff\xff"), id="202-2531"),
        pytest.param((15, b"\x00\x80", b"\xff\xff"), id="202-2701"),
    ],
)
def test_an_index_of_a_log_with_an_end_beyond_its_file_is_refused(
    mutant: tuple[int, bytes, bytes], tmp_path: Path
) -> None:
    index = _with_own_sums(_damage(INDEX, mutant))
    with pytest.raises(hs.InputError, match=r"\.arrows' is damaged at bytes 0 to \d{19,20}: their checksum"):
        check_log(("read", INDEX, index), Random(0), tmp_path)


def test_a_record_of_an_index_with_another_checksum_is_refused(tmp_path: Path) -> None:
    """An end of 0 and a checksum of 0 fit each other."""
    index = _damage(INDEX, (8, END[1:14], bytes(13)))
    with pytest.raises(hs.InputError, match=r"\.index' is damaged: the checksum of a record differs$"):
        check_log(("read", INDEX, index), Random(0), tmp_path)


@pytest.mark.parametrize(
    "mutant",
    [
        pytest.param((75, b"\x03", b"\x13"), id="505-242"),
        pytest.param((160, b"\x07", b"\x10"), id="506-2112"),
    ],
)
def test_a_log_with_another_schema_than_its_segments_is_refused(
    mutant: tuple[int, bytes, bytes], tmp_path: Path
) -> None:
    schema = _damage("schema.arrow", mutant)
    with pytest.raises(hs.InputError, match=r"\.arrows' has other columns than its folder's schema\.arrow; "):
        check_log(("read", "schema.arrow", schema), Random(0), tmp_path)


@pytest.mark.parametrize("byte", [pytest.param(b"\xff", id="402-3080"), pytest.param(b"\xb5", id="405-2457")])
def test_a_log_with_a_column_whose_name_is_not_utf8_is_refused(byte: bytes, tmp_path: Path) -> None:
    mutant = _damage("schema.arrow", (140, b"s", byte))
    with pytest.raises(hs.InputError, match=r"is not a log of a stream: its schema\.arrow is damaged$"):
        check_log(("continue", "schema.arrow", mutant), Random(0), tmp_path)


@pytest.mark.parametrize("rows", [25_769_803_776, 71_776_119_061_217_282])
def test_a_manifest_whose_states_have_more_rows_than_bytes_is_refused(rows: int) -> None:
    """The checksum of the manifest is right: a person can write it."""
    head = struct.Struct("<4sIIII")
    mark, _, size, *_ = head.unpack_from(_manifests()[3])
    body = bytearray(_manifests()[3][8:])
    struct.pack_into("<q", body, 12 + size + 8, rows)
    with pytest.raises(StateError, match=f"ValueError: 1 bytes of states for {rows} rows"):
        Manifest.parse(struct.pack("<4sI", mark, zlib.crc32(body)) + body)


@pytest.mark.parametrize(
    ("url", "wrong"),
    [
        pytest.param("udp://host:9?ends=\xb2&idle=3&buffer=1024&no", "ends=\xb2", id="406-945"),
        pytest.param(
            "udp://host:9?ends=2&idle=3&buffer=102\xb2&coalesce=no", "buffer=102\xb2", id="406-4793"
        ),
    ],
)
def test_numbers_of_an_address_that_are_no_ascii_digits_are_refused(url: str, wrong: str) -> None:
    with pytest.raises(hs.InputError, match=rf"^{wrong} in '.*' is not a whole number from 1 up$"):
        Endpoint.parse(url)


def test_a_string_wider_than_any_datagram_is_refused() -> None:
    with pytest.raises(
        hs.SchemaError, match=r"^field 'Symbol' is wider than a datagram, which has at most 65507"
    ):
        Layout.parse(f"Seqnr int, Symbol string({'1' * 400}), Price int, Volume int")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        pytest.param(
            b"x\0\0\0\0\0\xe7" + bytes(68) + b'""hi""",,\n300\xac,-0.0,2024-',
            "is not UTF-8 text",
            id="405-2456",
        ),
        pytest.param(
            b'x,s,f,t,"say ""hi"""1e999,,\n300,,-0.0,2024-02-29T12:00:02036854775\x1807,'
            b"Z\xc3\xbcrich,nan,1970",
            "has more than one column named '' ",
            id="405-3715",
        ),
    ],
)
def test_csv_columns_without_names_are_refused(data: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "input.csv"
    path.write_bytes(data)
    with pytest.raises(hs.InputError, match=message):
        read(path)


def test_an_engine_that_is_no_text_is_refused() -> None:
    with pytest.raises(hs.UnsupportedError, match=r"^no engine '1e\+300' \("):
        hs.join({"x": [1]}, {"a": [1]}, "l.x = r.a", engine=1e300)  # type: ignore[call-overload]


def test_a_pace_that_is_no_number_is_refused() -> None:
    with pytest.raises(hs.UnsupportedError, match=r"^pace is a number above 0; \{\} was given$"):
        hs.join({"x": [1]}, {"a": [1]}, "l.x = r.a", pace={}, order="arrival")  # type: ignore[call-overload]


@pytest.mark.parametrize("precision", [1, 5, 20, 38])
def test_rows_made_for_queries_fit_narrow_decimals(precision: int) -> None:
    for scale in range(precision + 1):
        kind = pa.decimal128(precision, scale)
        made = [_value(Random(seed), kind) for seed in range(100)]
        assert len(set(pa.array(made, kind).to_pylist())) > 1


def _schema() -> Schema:
    return parse_query("CREATE INPUT STREAM R (x long, s string); SELECT * FROM R").inputs[0].fields


@pytest.mark.parametrize("data", [b"x,s\xff", b"x,s,\xff\n1,a,b\n", b"x,s\xff\n1,a\n"])
def test_a_header_that_is_not_utf8_is_refused(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "input.csv"
    path.write_bytes(data)
    with pytest.raises(hs.InputError, match="R input is not UTF-8 text; convert it to UTF-8"):
        read_declared(path, _schema(), BadRows())


def test_json_lines_of_which_none_fits(tmp_path: Path) -> None:
    path = tmp_path / "input.jsonl"
    path.write_text('{"x": "one", "s": "a"}\n{"x": \n')
    bad = BadRows()
    assert read_declared(path, _schema(), bad).num_rows == 0
    assert bad.count == 2


def test_options_of_another_type_are_refused() -> None:
    tables = {"x": [1], "t": [1]}, {"a": [1], "t": [1]}
    with pytest.raises(
        hs.UnsupportedError, match="cores=4294967296 is too many; a join runs on at most 4096"
    ):
        hs.join(*tables, "l.x = r.a", cores=2**32)
    with pytest.raises(hs.SchemaError, match="a column of the left input is named by a text, not by 5"):
        hs.join(*tables, "l.x = r.a", window="1 second", time=5)  # type: ignore[arg-type]
    with pytest.raises(hs.ExpressionError, match="aliases are two different names, left and right, not 1"):
        hs.join(*tables, "l.x = r.a", aliases=1)  # type: ignore[arg-type]
    with pytest.raises(hs.SchemaError, match=r"^no column 'a b' in the left input"):
        hs.join(*tables, "l.x = r.a", window="1 second", time="a\nb")


def test_values_with_line_breaks_leave_a_message_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(hs.WindowError, match=r"^cannot read 'fifteen minutes' as a length of time"):
        hs.join({"x": [1]}, {"x": [1]}, "l.x = r.x", window="fifteen\nminutes")
    path = tmp_path / "input.csv"
    path.write_bytes(b'"x\r,s\n')
    with pytest.raises(hs.InputError, match=r"^R input cannot be read as CSV: "):
        read_declared(path, _schema(), BadRows())


@pytest.mark.parametrize(
    "arguments", [["explain", "\0"], ["run", "q\0.sql"], ["why", "a.csv", "b.csv", "0", "\0"]]
)
def test_arguments_with_a_nul_are_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 2
    wrong = next(argument for argument in arguments if "\0" in argument)
    assert capsys.readouterr().err == f"handshake: argument {wrong!r} has a NUL character; remove it\n"


def test_folders_with_a_nul_are_refused() -> None:
    with pytest.raises(hs.InputError, match=r"^late_to: cannot make the folder '\\x00': embedded null byte$"):
        hs.join({"x": [1]}, {"a": [1]}, "l.x = r.a", late_to="\0")
    with pytest.raises(hs.InputError, match=r"^folder 'state\\x00' has a NUL character; remove it$"):
        Store("state\0")
