"""Compiled loops on disk: taken from there by the next process, and never wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from handshake.kernels.ondisk import CompiledFiles, kernel, made_for

_COUNT = """
import numpy as np
from handshake.kernels.panes import count_rows
out = np.zeros(2, np.int64)
count_rows(np.array([0, 1, 1]), np.empty(0, np.bool_), out)
print(out.tolist(), sum(count_rows.stats.cache_hits.values()), sum(count_rows.stats.cache_misses.values()))
"""


def counted(folder: Path) -> str:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(folder)}
    done = subprocess.run([sys.executable, "-c", _COUNT], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_next_process_takes_it_from_the_disk_unless_it_is_damaged(tmp_path: Path) -> None:
    assert counted(tmp_path) == "[1, 2] 0 1"
    assert counted(tmp_path) == "[1, 2] 1 0"
    (kept,) = tmp_path.rglob("*.nbc")
    kept.write_bytes(kept.read_bytes()[:-7])
    assert counted(tmp_path) == "[1, 2] 0 1"


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


def joined(folder: Path, *arguments: str) -> list[str]:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(folder)}
    command = [sys.executable, "-c", _JOIN, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("method", ["scan", pytest.param("band", marks=pytest.mark.soak)])
def test_loops_of_several_processes_are_told_apart(tmp_path: Path, method: str) -> None:
    """Each was the first of its process, so Numba has given them the same name and number."""
    one, two = ("-2", "3"), ("5", "9")
    assert joined(tmp_path, method, *one) == ["796 True"]
    assert joined(tmp_path, method, *two) == ["579 True"]
    before = set(tmp_path.rglob("*.nbc"))
    assert joined(tmp_path, method, *one, *two) == ["796 True", "579 True"]
    assert joined(tmp_path, method, *two, *one) == ["579 True", "796 True"]
    assert set(tmp_path.rglob("*.nbc")) == before  # nothing was compiled


def test_of_too_many_files_the_oldest_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("handshake.kernels.ondisk._MOST", 8)
    files = CompiledFiles(tmp_path, twice)
    (tmp_path / "other.nbc").write_bytes(b"not ours")
    for key in range(8):
        files.save(key, key)
        path = files._path(key)
        os.utime(path, (key, key))
    assert files.load(0) == 0  # used again, so that it stays
    files.save(8, 8)
    assert [files.load(key) for key in range(9)] == [0, None, None, 3, 4, 5, 6, 7, 8]
    assert (tmp_path / "other.nbc").exists()


def test_what_a_loop_is_made_for_is_part_of_its_name(tmp_path: Path) -> None:
    with made_for("l.x < 1"):
        one = kernel(twice)
    with made_for("l.x < 2"):
        two = kernel(twice)
    assert one.py_func.__qualname__ != two.py_func.__qualname__ != kernel(twice).py_func.__qualname__
    CompiledFiles(tmp_path, twice, "l.x < 1").save("int", 1)
    assert CompiledFiles(tmp_path, twice, "l.x < 2").load("int") is None


def test_each_key_has_its_own_file_and_a_full_disk_keeps_nothing(tmp_path: Path) -> None:
    files = CompiledFiles(tmp_path, twice)
    files.save("int", 1)
    files.save("float", 2)
    assert (files.load("int"), files.load("float"), files.load("text")) == (1, 2, None)
    CompiledFiles(tmp_path / "missing", twice).save("int", 3)
    assert not (tmp_path / "missing").exists()
    files.flush()
    assert files.load("int") is None
    assert not list(tmp_path.iterdir())


def test_without_a_folder_to_write_it_is_compiled_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere(function: Any) -> Any:
        raise RuntimeError("cannot cache function: no locator available")

    monkeypatch.setattr("handshake.kernels.ondisk.FunctionCache", nowhere)
    assert kernel(twice)(np.array([3])).tolist() == [6]
