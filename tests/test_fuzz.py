"""Mutated inputs of every kind that the package reads. `make fuzz` runs many more."""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path

import pytest

import handshake as hs
from fuzz.run import run_target
from fuzz.state import _manifests
from fuzz.targets import TARGETS
from handshake.engines.spark.state.manifest import Manifest
from handshake.engines.spark.state.store import StateError
from handshake.io.declared import BadRows
from handshake.io.files import read_declared
from handshake.io.udp.sockets import Endpoint
from handshake.plan.query import parse_query
from handshake.schema import Schema

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
    def check(rng: object, folder: Path) -> bool:
        raise KeyError("gone")

    found = run_target(check, "none", 7, range(3, 4), tmp_path)
    assert found.faults == ["--target none --seed 7 --only 3: check: KeyError: 'gone'"]
    assert found.counts == {"faults": 1}


# Faults that mutants found


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


@pytest.mark.parametrize(
    ("name", "number"), [("logs", 302), ("logs", 2823), ("manifests", 1737), ("manifests", 1857)]
)
def test_lengths_beyond_the_file_are_refused(name: str, number: int, tmp_path: Path) -> None:
    found = run_target(TARGETS[name], name, 201, range(number, number + 1), tmp_path)
    assert found.counts == {"refused": 1}


@pytest.mark.parametrize(
    ("name", "seed", "number"),
    [
        ("logs", 402, 3080),  # columns whose names are not UTF-8
        ("options", 403, 1),  # pace={}
        ("options", 404, 419),  # engine=1e300
        ("commands", 403, 268),  # run --pace nan
        ("csv", 405, 2456),  # two columns without a name
        ("addresses", 406, 945),  # ends=²
        ("declarations", 406, 7532),  # string(111…)
    ],
)
def test_mutants_that_once_failed_are_refused(name: str, seed: int, number: int, tmp_path: Path) -> None:
    found = run_target(TARGETS[name], name, seed, range(number, number + 1), tmp_path)
    assert found.faults == []
    assert found.counts == {"refused": 1}


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
