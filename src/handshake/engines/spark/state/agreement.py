"""Agreement of writers on the content of a file, where files cannot be created on condition.

Object stores replace a file that exists, and pyarrow has no way to ask them not to. Writers therefore vote by
adding files to a folder and listing it. Votes take turns. In each turn, a writer proposes a content. If it
sees no other proposal, it votes *sure*, else *unsure*. If it then sees no vote that is unsure, its content is
chosen. Otherwise it goes on with the content of a vote that is sure, if there is one: that may be chosen.

Two writers are never sure of different contents, because the second one to propose sees both. A writer that
chooses was sure before the first vote that is unsure. Writers that are unsure therefore see its vote, and go
on with its content. A writer that dies leaves votes; the others do not wait for it.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Any, Protocol

import pyarrow as pa

from handshake.errors import HandshakeError

_TURNS = 64
"""Turns after which writers give up; two that keep step agree in the second one."""


class _Files(Protocol):
    def write(self, name: str, parts: Iterable[Any]) -> None: ...

    def read(self, name: str) -> pa.Buffer: ...

    def list(self, folder: str) -> list[str]: ...


def publish_agreed(files: _Files, name: str, data: pa.Buffer) -> pa.Buffer:
    """Write a file; return its content, which is the same for all writers.

    Args:
        files: The place of the file, which lists every file that has been written.
        name: The name of the file. The folder for votes is called `<name>.votes`.
        data: The content that this writer proposes.
    """
    folder, own = f"{name}.votes", uuid.uuid4().hex
    files.write(f"{folder}/{_vote(0, 'proposed', own)}", [data])
    chosen = _choose(files, folder, own)
    if chosen != own:
        data = files.read(f"{folder}/{_vote(0, 'proposed', chosen)}")
    files.write(name, [data])
    return data


def _choose(files: _Files, folder: str, value: str) -> str:
    """Return the value that all writers choose; the own one has been proposed."""
    for turn in range(_TURNS):
        if turn:
            files.write(f"{folder}/{_vote(turn, 'proposed', value)}", [])
        alone = _values(files.list(folder), turn, "proposed") == {value}
        files.write(f"{folder}/{_vote(turn, 'sure' if alone else 'unsure', value)}", [])
        names = files.list(folder)
        sure, unsure = (_values(names, turn, word) for word in ("sure", "unsure"))
        if not unsure:
            return value
        value = min(sure or unsure)
    raise HandshakeError(f"writers of '{folder}' do not agree; restart the query")


def _vote(turn: int, word: str, value: str) -> str:
    return f"{turn}-{word}-{value}"


def _values(names: Iterable[str], turn: int, word: str) -> set[str]:
    """Return the values of which there are such votes."""
    start = _vote(turn, word, "")
    return {name.removeprefix(start) for name in names if name.startswith(start)}
