"""The directories of a join: of its windows, of the files of a batch join, and those that the user names."""

from __future__ import annotations

import atexit
import os
import tempfile
import uuid
from dataclasses import replace
from functools import cache
from typing import Any

from pyspark.sql import SparkSession

from handshake.engines.spark.joins.definition import Definition
from handshake.engines.spark.private import is_connect
from handshake.engines.spark.state.reached import ReachedStore
from handshake.errors import HandshakeError, InputError, UnsupportedError
from handshake.options import Options

_STATE = "spark.handshake.stateDir"
_FOLDERS = ("late_to", "results_to")
"""The options that name folders which segments write to."""
_SCRATCH = f"handshake-batch-{uuid.uuid4().hex}"
"""The folder of all batch joins of this process, in the directory of each."""


def new_scratch() -> str:
    """Return the folder of a batch join under its root."""
    return f"{_SCRATCH}/{uuid.uuid4().hex}"


def check_root(definition: Definition) -> None:
    """Raise if there is no directory for the rows of a join."""
    if not definition.root and definition.options.state == "directory":
        raise UnsupportedError(
            "a join on a cluster needs a directory for its windows that every executor reaches; "
            f'pass state_dir="s3://…" (or a shared mount), or set {_STATE}'
        )


def with_folders(session: SparkSession, options: Options, *, streams: bool) -> Options:
    """Return options for tasks: folders are absolute paths or URIs, and there is no function."""
    if callable(options.late_to):
        if streams and is_connect(session):
            raise UnsupportedError(
                "a client of Spark Connect cannot read the late rows that a function for late_to gets; name "
                "a folder, and read it as a stream: spark.readStream.schema(…).parquet(late_to + '/left')"
            )
        options = replace(options, late_to=None)
    folders: dict[str, Any] = {name: given_folder(session, name, getattr(options, name)) for name in _FOLDERS}
    return replace(options, **folders)


def root_of(session: SparkSession, given: str | None, lasting: bool) -> str:
    """Return the directory of a join; empty if there is none."""
    names = (_STATE, "spark.sql.streaming.checkpointLocation", "spark.master")
    configured, checkpoints, master = (session.conf.get(name, None) for name in names)
    return state_root(given_folder(session, "state_dir", given), configured, checkpoints, master, lasting)


def state_root(
    given: str | None, configured: str | None, checkpoints: str | None, master: str | None,
    lasting: bool = True,
) -> str:  # fmt: skip
    """Return the directory of windows: given, configured, next to the checkpoints or local; else empty.

    Files that do not outlast the process are local in the directory for temporary files.

    >>> state_root(None, None, "s3://bucket/checkpoints/", "yarn")
    's3://bucket/checkpoints/handshake-state'
    """
    root = given or configured
    if root is None and checkpoints is not None:
        root = f"{checkpoints.rstrip('/')}/handshake-state"
    if root is None and (master or "").startswith("local"):
        root = "handshake-state" if lasting else tempfile.gettempdir()
    return "" if root is None else _absolute(root)


def given_folder(session: SparkSession, option: str, given: str | None) -> str | None:
    """Return the folder that an option names as an absolute path or URI; None if it names none."""
    if given is None:
        return None
    if not given:
        raise UnsupportedError(f"{option}='' is empty; give the path or URI of a folder, or leave it out")
    if is_connect(session) and _absolute(given) != given:
        raise UnsupportedError(
            f"{option}='{given}' is relative, and the server of Spark Connect may run in another directory; "
            "give an absolute path or a URI"
        )
    return _absolute(given)


def _absolute(path: str) -> str:
    return path if "://" in path else os.path.abspath(path)


def with_directory(session: SparkSession, definition: Definition, runs: str) -> Definition:
    """Create the directory of a join; remove those of batch joins when this process ends.

    A marker in it shows executors that they see the same directory.
    """
    store = ReachedStore(session, definition.root)
    if runs != "streaming":
        _remove_at_exit(session, definition.root)
    return replace(definition, marker=store.mark("" if runs == "streaming" else _SCRATCH))


@cache
def _remove_at_exit(session: SparkSession, root: str) -> None:
    atexit.register(ReachedStore(session, root).remove_at_exit, _SCRATCH)


def prepare_folders(session: SparkSession, definition: Definition) -> None:
    """Create the folders of late rows and of results; raise if one cannot be written."""
    for option in _FOLDERS:
        folder = getattr(definition.options, option)
        if folder is None:
            continue
        try:
            ReachedStore(session, folder).probe()
        except (HandshakeError, OSError) as error:
            raise InputError(f"{option}='{folder}' cannot be written: {error}") from error
