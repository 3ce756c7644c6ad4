"""Tests of the cache of compiled loops, and of the plain path without private parts of Numba."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest

from handshake.kernels import numba_internals
from handshake.kernels.compile_cache import CodeFiles, building, cache_folder, compile_loop

_COUNT = """
import numpy as np
from handshake.kernels.panes import count_rows
out = np.zeros(2, np.int64)
count_rows(np.array([0, 1, 1]), np.empty(0, np.bool_), out)
print(out.tolist(), sum(count_rows.stats.cache_hits.values()), sum(count_rows.stats.cache_misses.values()))
"""


def count(folder: Path, **settings: str) -> str:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(folder), **settings}
    done = subprocess.run([sys.executable, "-c", _COUNT], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_next_process_loads_the_code_unless_it_is_damaged(tmp_path: Path) -> None:
    assert count(tmp_path) == "[1, 2] 0 1"
    assert count(tmp_path) == "[1, 2] 1 0"
    (kept,) = tmp_path.rglob("*.nbc")
    whole = kept.read_bytes()
    kept.write_bytes(whole[:-7])
    assert count(tmp_path) == "[1, 2] 0 1"
    kept.write_bytes(whole[:-7] + bytes([whole[-7] ^ 1]) + whole[-6:])
    assert count(tmp_path) == "[1, 2] 0 1"


def twice(values: Any) -> Any:
    return values * 2


_JOIN = """
import sys
import pyarrow as pa
from handshake import join
rows = {"v": list(range(200))}
method, *limits = sys.argv[1:]
for low, high in zip(map(int, limits[::2]), map(int, limits[1::2])):
    on = f"l.v - r.v > {low} AND l.v - r.v < {high}"
    left, right = pa.table(rows), pa.table(rows)
    found = join(left, right, on=on, window="1000 tuples", method=method, algorithm="three_step")
    pairs = sorted(zip(found["v"].to_pylist(), found["v_right"].to_pylist()))
    print(len(pairs), pairs == [(l, r) for l in rows["v"] for r in rows["v"] if low < l - r < high])
"""


def join(folder: Path, *arguments: str, **settings: str) -> list[str]:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(folder), **settings}
    command = [sys.executable, "-c", _JOIN, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("method", ["scan", pytest.param("band", marks=pytest.mark.soak)])
def test_loops_of_several_processes_are_kept_apart(tmp_path: Path, method: str) -> None:
    """Each loop was the first of its process, so Numba has given them the same name and number."""
    one, two = ("-2", "3"), ("5", "9")
    assert join(tmp_path, method, *one) == ["796 True"]
    assert join(tmp_path, method, *two) == ["579 True"]
    before = set(tmp_path.rglob("*.nbc"))
    assert join(tmp_path, method, *one, *two) == ["796 True", "579 True"]
    assert join(tmp_path, method, *two, *one) == ["579 True", "796 True"]
    assert set(tmp_path.rglob("*.nbc")) == before  # nothing was compiled


def test_the_least_recently_used_files_are_removed(tmp_path: Path) -> None:
    files = CodeFiles(tmp_path, twice, most=8)
    (tmp_path / "other.nbc").write_bytes(b"not ours")
    for key in range(8):
        files.save(key, key)
        path = files.path(key)
        os.utime(path, (key, key))
    assert files.load(0) == 0  # used again, so that it stays
    files.save(8, 8)
    assert [files.load(key) for key in range(9)] == [0, None, None, 3, 4, 5, 6, 7, 8]
    assert (tmp_path / "other.nbc").exists()


def test_the_predicate_is_part_of_the_name_of_a_loop(tmp_path: Path) -> None:
    with building("l.x < 1"):
        one = compile_loop()(twice)
    with building("l.x < 2"):
        two = compile_loop()(twice)
    assert one.py_func.__qualname__ != two.py_func.__qualname__ != compile_loop()(twice).py_func.__qualname__
    CodeFiles(tmp_path, twice, "l.x < 1").save("int", 1)
    assert CodeFiles(tmp_path, twice, "l.x < 2").load("int") is None


def test_each_key_has_its_own_file_and_a_full_disk_keeps_nothing(tmp_path: Path) -> None:
    files = CodeFiles(tmp_path, twice)
    files.save("int", 1)
    files.save("float", 2)
    assert (files.load("int"), files.load("float"), files.load("text")) == (1, 2, None)
    CodeFiles(tmp_path / "missing", twice).save("int", 3)
    assert not (tmp_path / "missing").exists()
    assert len(list(tmp_path.iterdir())) == 2


def test_without_a_writable_folder_every_process_compiles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(RuntimeError, match="no writable folder"):
        cache_folder(twice)
    assert compile_loop()(twice)(np.array([3])).tolist() == [6]


# The private parts of Numba, and the path without them.

PLAIN = {numba_internals.PLAIN: "1"}


@pytest.mark.skipif(bool(os.environ.get(numba_internals.PLAIN)), reason="switched off")
def test_this_release_of_numba_has_the_private_parts() -> None:
    """A new release of Numba must pass this, test_templates.py and the tests above to be supported."""
    assert numba_internals.is_available(), f"Numba {numba.__version__} lacks a private part"


def test_the_plain_path_uses_the_public_cache_of_numba(tmp_path: Path) -> None:
    assert count(tmp_path, **PLAIN) == "[1, 2] 0 1"
    assert count(tmp_path, **PLAIN) == "[1, 2] 1 0"
    assert list(tmp_path.rglob("*.nbi"))  # Numba's index
    assert not list(tmp_path.rglob("handshake.*"))


@pytest.mark.parametrize("method", ["scan", pytest.param("band", marks=pytest.mark.soak)])
def test_joins_on_the_plain_path(tmp_path: Path, method: str) -> None:
    """The second process does not take the first one's code for its own."""
    assert join(tmp_path, method, "-2", "3", **PLAIN) == ["796 True"]
    assert join(tmp_path, method, "5", "9", **PLAIN) == ["579 True"]
