"""Writers agree on the content of a file, in any order of their steps, and if any of them die."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from handshake.engines.spark.state.agreement import publish_agreed
from handshake.engines.spark.state.pack import record_once
from handshake.engines.spark.state.store import Store


class _Died(Exception):
    pass


class _Steps:
    """Writers in threads of their own, of which one takes a step at a time."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files
        self.turns: list[tuple[threading.Semaphore, threading.Semaphore]] = []
        self.dead: set[int] = set()
        self.found: dict[int, bytes] = {}
        self.running: list[int] = []

    def start(self, content: bytes) -> None:
        """Begin a writer, which stops before its first step."""
        number = len(self.turns)
        self.turns.append((threading.Semaphore(0), threading.Semaphore(0)))
        self.running.append(number)
        threading.Thread(target=self._run, args=(number, content), daemon=True).start()
        self.turns[number][1].acquire()

    def step(self, number: int, dies: bool = False) -> None:
        """Let a writer read or write once, or die before."""
        if dies:
            self.dead.add(number)
        go, stopped = self.turns[number]
        go.release()
        stopped.acquire()

    def _run(self, number: int, content: bytes) -> None:
        def pause() -> None:
            go, stopped = self.turns[number]
            stopped.release()
            go.acquire()
            if number in self.dead:
                raise _Died

        try:
            found = publish_agreed(_Watched(self.files, pause), "record", pa.py_buffer(content))
            self.found[number] = found.to_pybytes()
        except _Died:
            pass
        self.running.remove(number)
        self.turns[number][1].release()


class _Watched:
    """Files in memory, with a pause before each access."""

    def __init__(self, files: dict[str, bytes], pause: Callable[[], None]) -> None:
        self.files, self.pause = files, pause

    def write(self, name: str, parts: Any) -> None:
        self.pause()
        self.files[name] = b"".join(map(bytes, parts))

    def read(self, name: str) -> pa.Buffer:
        self.pause()
        return pa.py_buffer(self.files[name])

    def list(self, folder: str) -> list[str]:
        self.pause()
        start = f"{folder}/"
        return [name.removeprefix(start) for name in list(self.files) if name.startswith(start)]


@pytest.mark.parametrize("writers", [2, 3])
def test_writers_agree_in_every_order_of_their_steps(writers: int) -> None:
    contents = set()
    for seed in range(250):
        rng, files = Random(f"{writers} {seed}"), {}
        steps = _Steps(files)
        waiting = [f"writer {k}".encode() for k in range(writers)]
        steps.start(waiting.pop())
        while steps.running or waiting:
            if waiting and (not steps.running or rng.random() < 0.3):
                steps.start(waiting.pop())
            else:
                steps.step(rng.choice(steps.running), dies=rng.random() < 0.02)
        steps.start(b"a later attempt")
        while steps.running:
            steps.step(steps.running[0])
        assert len(set(steps.found.values())) == 1, seed
        assert files["record"] in steps.found.values()
        contents |= {*steps.found.values()}
    assert len(contents) > writers - 1


def _references(name: str) -> Iterator[pa.RecordBatch]:
    yield pa.RecordBatch.from_pydict({"name": [name]})


def test_attempts_at_a_partition_agree_on_an_object_store() -> None:
    store = Store("mock://bucket")

    def names(found: Iterator[pa.RecordBatch]) -> list[str]:
        return [name for batch in found for name in batch.column(0).to_pylist()]

    first: list[str] = []

    def slow() -> Iterator[pa.RecordBatch]:
        first.extend(names(record_once(store, "record", _references("first"))))
        yield from _references("second")

    second = names(record_once(store, "record", slow()))
    later = names(record_once(store, "record", _references("third")))
    assert first == second == later == ["first"]


def test_attempts_agree_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*paths: str) -> None:
        raise PermissionError("no hard links there")

    monkeypatch.setattr(os, "link", refuse)
    store = Store(str(tmp_path))
    found = [store.publish("record", pa.py_buffer(text)).to_pybytes() for text in (b"first", b"second")]
    assert found == [b"first", b"first"]


def test_the_draft_of_a_vote_is_no_vote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that is killed in a vote leaves its draft; others do not take that for a proposal."""
    store, names = Store(str(tmp_path)), iter("abc")
    ids = SimpleNamespace(uuid4=lambda: SimpleNamespace(hex=next(names)))
    monkeypatch.setattr("handshake.engines.spark.state.agreement.uuid", ids)
    replace, unlink = os.replace, os.unlink

    def die(draft: str, target: str) -> None:
        if "unsure" in target:
            monkeypatch.setattr(os, "unlink", lambda path: None)
            raise _Died
        replace(draft, target)

    publish_agreed(store, "record", pa.py_buffer(b"first"))
    (tmp_path / "record.votes" / "0-sure-a").unlink()  # as if this writer had died, too
    monkeypatch.setattr(os, "replace", die)
    with pytest.raises(_Died):
        publish_agreed(store, "record", pa.py_buffer(b"second"))
    monkeypatch.setattr(os, "replace", replace)
    monkeypatch.setattr(os, "unlink", unlink)
    assert len([name for name in store.list("record.votes") if name.endswith(".part")]) == 1
    assert publish_agreed(store, "record", pa.py_buffer(b"third")).to_pybytes() == b"third"
