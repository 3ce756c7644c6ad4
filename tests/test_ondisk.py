"""Compiled loops on disk: taken from there by the next process, and never wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from handshake.kernels.ondisk import CompiledFiles, kernel

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
