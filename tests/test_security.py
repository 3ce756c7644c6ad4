"""The promises of docs/security.md, in its order. The page names the files that test the others."""

from __future__ import annotations

import ast
import pickle
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import handshake as hs
from fuzz.datagrams import datagrams
from handshake.engines.spark.state.chunks import ChunkRef, read_parts
from handshake.engines.spark.state.manifest import Manifest
from handshake.engines.spark.state.store import StateError, Store
from handshake.io.files import read
from handshake.io.udp.demux import Demux, Stream
from handshake.io.udp.mmsg import open_receiver
from handshake.io.udp.wire import Layout
from handshake.metrics.address import parse_address
from handshake.page import server
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


QUERY = "CREATE INPUT STREAM R (x long, s string); SELECT {} FROM R"
CODE = (
    "__import__('pathlib').Path('{}').touch()",
    "l.x.__class__ = 1 OR __import__('os').system('touch {}')",
    "open('{}', 'w') = l.x",
    "(lambda: __import__('pathlib').Path('{}').touch())()",
)


ROWS = {"x": [1], "s": ["a"]}
TEXTS: dict[str, Callable[[str], object]] = {
    "predicate": lambda text: hs.join(ROWS, ROWS, text),
    "query": lambda text: hs.run(QUERY.format(text), {"R": ROWS}),
    "window": lambda text: hs.join(ROWS, ROWS, "l.x = r.x", window=text),
    "layout": lambda text: Layout.parse(f"x int, {text}"),
}


@pytest.mark.parametrize("code", CODE)
@pytest.mark.parametrize("kind", TEXTS)
def test_texts_run_no_code(kind: str, code: str, tmp_path: Path) -> None:
    target = tmp_path / "ran"
    with pytest.raises(hs.HandshakeError):
        TEXTS[kind](code.format(target))
    assert not target.exists()


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
    with pytest.raises(hs.HandshakeError, match=f"(?i){name}"):
        hs.run(QUERY.format(f"{name}('/etc/hostname') AS y"), {"R": ROWS})


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


def test_chunk_files_are_never_unpickled(tmp_path: Path) -> None:
    target, pickled = tmp_path / "ran", pickle.dumps(Payload(tmp_path / "ran"))
    (tmp_path / "one.chunk").write_bytes(pickled)
    ref = ChunkRef("one.chunk", rows=1, bytes=len(pickled), check=zlib.crc32(pickled), newest=0)
    with pytest.raises(StateError):
        read_parts(Store(str(tmp_path)), ref)
    assert not target.exists()


def test_datagrams_are_never_unpickled(tmp_path: Path) -> None:
    target = tmp_path / "ran"
    pickled = pickle.dumps(Payload(target))
    demux = Demux((Stream("R", Layout.parse(f"x binary({len(pickled)})"), ()),), None, False)
    taken = demux.take(datagrams([pickled, pickled[:-1]]))
    assert taken["R"].column("x").to_pylist() == [pickled]
    assert demux.counters.malformed == 1
    assert not target.exists()


def test_pickled_columns_stay_bytes(tmp_path: Path) -> None:
    target = tmp_path / "ran"
    rows = pa.table({"x": [1], "raw": [pickle.dumps(Payload(target))]})
    assert hs.join(rows, {"a": [1]}, "l.x = r.a").num_rows == 1
    assert not target.exists()


def test_metrics_are_served_on_loopback_by_default() -> None:
    assert parse_address("9464") == ("127.0.0.1", 9464)


def test_a_live_page_is_served_on_loopback_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "PORT", 0)
    opened = Server(Board(), None, None)
    opened.close()
    assert opened.url.startswith("http://127.0.0.1:")


def test_datagrams_are_received_at_the_address_that_is_written_alone() -> None:
    with open_receiver("127.0.0.1", 0, 1 << 16, False) as receiver:
        assert receiver.getsockname()[0] == "127.0.0.1"


def test_a_live_page_for_other_machines_needs_a_token() -> None:
    with pytest.raises(hs.InputError, match="it needs a token"):
        Server(Board(), "0.0.0.0:0", None)
