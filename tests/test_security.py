"""The promises of docs/security.md. Those of the live page are tested in tests/page/test_live.py."""

from __future__ import annotations

import ast
import pickle
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import handshake as hs
from handshake.engines.spark.state.manifest import Manifest
from handshake.engines.spark.state.store import StateError
from handshake.io.files import read
from handshake.metrics.address import parse_address
from handshake.page.board import Board
from handshake.page.server import Server

SOURCES = sorted((Path(hs.__file__).parent).rglob("*.py"))
PICKLES = {
    "engines/spark/queries/panes.py",
    "engines/spark/queries/tasks.py",
    "kernels/compile_cache.py",
    "kernels/numba_internals.py",
}


class Payload:
    """Unpickling it creates a file."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.target,)


def _names(path: Path) -> set[str]:
    """Return the functions that a module calls by their plain name, and the modules that it imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            found.add(f"{node.func.id}()")
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


def test_no_text_is_evaluated_as_python() -> None:
    assert [path.name for path in SOURCES if {"eval()", "exec()"} & _names(path)] == []


def test_pickles_are_loaded_where_the_page_says() -> None:
    root = Path(hs.__file__).parent
    users = {
        str(path.relative_to(root)) for path in SOURCES if {"pickle", "cloudpickle", "marshal"} & _names(path)
    }
    assert users == PICKLES


@pytest.mark.parametrize(
    "text", ["__import__('os').getcwd()", "l.x.__class__ = 1", "open('/etc/passwd') = l.x"]
)
def test_texts_of_predicates_run_no_code(text: str) -> None:
    with pytest.raises(hs.HandshakeError):
        hs.join({"x": [1]}, {"x": [1]}, text)


LISTENING = """
import sys
sockets = []
sys.addaudithook(lambda event, told: sockets.append(event) if event.startswith("socket.") else None)
import handshake as hs
text = "CREATE INPUT STREAM R (k long, t long) TIMESTAMP BY t; SELECT k FROM R [SIZE 1 TIME] GROUP BY k"
rows = {"x": [1, 2], "t": [1, 2]}
join = hs.join(rows, rows, "l.x <= r.x", window="10 s", time="t", cores=2)
query = hs.run(text, {"R": {"k": [1, 2], "t": [1, 2]}})
print(join.num_rows, len(query), sockets)
"""


def test_nothing_listens_unless_asked() -> None:
    done = subprocess.run([sys.executable, "-c", LISTENING], capture_output=True, text=True, check=False)
    assert done.stdout == "3 1 []\n", done.stderr


@pytest.mark.parametrize("name", ["read_csv", "read_text", "load_file", "pg_read_file", "http_get", "getenv"])
def test_no_function_of_sql_opens_anything(name: str) -> None:
    with pytest.raises(hs.HandshakeError, match=f"(?i){name}"):
        hs.join({"x": ["a"]}, {"x": ["a"]}, f"{name}('/etc/hostname') = l.x")


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet", "arrow"])
def test_data_files_are_never_unpickled(suffix: str, tmp_path: Path) -> None:
    target, path = tmp_path / "ran", tmp_path / f"input.{suffix}"
    path.write_bytes(pickle.dumps(Payload(target)))
    with pytest.raises(hs.InputError):
        read(path)
    assert not target.exists()


def test_manifests_are_never_unpickled(tmp_path: Path) -> None:
    target = tmp_path / "ran"
    with pytest.raises(StateError):
        Manifest.parse(pickle.dumps(Payload(target)))
    assert not target.exists()


def test_pickled_columns_stay_bytes(tmp_path: Path) -> None:
    target = tmp_path / "ran"
    rows = pa.table({"x": [1], "raw": [pickle.dumps(Payload(target))]})
    assert hs.join(rows, {"a": [1]}, "l.x = r.a").num_rows == 1
    assert not target.exists()


def test_metrics_are_served_on_loopback_by_default() -> None:
    assert parse_address("9464") == ("127.0.0.1", 9464)


def test_a_live_page_for_other_machines_needs_a_token() -> None:
    with pytest.raises(hs.InputError, match="it needs a token"):
        Server(Board(), "0.0.0.0:0", None)
