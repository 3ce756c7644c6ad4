# ruff: noqa: E501 - texts to mutate, and errors to look at
"""Mutated options of joins, and mutated command lines."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import handshake as hs
from cli_runs import write_inputs
from fuzz.mutate import mutate_text, odd_value
from fuzz.run import refusal
from handshake.cli import app as cli
from handshake.errors import HandshakeError
from handshake.options import OPTIONS

__all__ = ["check_command", "check_options", "make_command", "make_options"]

LEFT: dict[str, list[Any]] = {"x": [1, 5, 9, None], "t": [1, 2, 3, 4]}
RIGHT: dict[str, list[Any]] = {"a": [1, 4, 9, 9], "u": [1, 2, 3, 4]}
PAIRS = sorted((x, a) for x in LEFT["x"] for a in RIGHT["a"] if x is not None and abs(x - a) <= 1)
LOCAL = sorted(name for name, option in OPTIONS.items() if "local" in option.engines)
OTHERS = ("window", "left_window", "right_window", "time", "left_time", "right_time", "how", "suffix", "aliases",
          "ordered", "engine", "on")  # fmt: skip
LIKELY: dict[str, tuple[Any, ...]] = {
    "cores": (1, 2, 3, None), "room": (1, 10, None), "pace": (None, 1000.0), "adapt": (True, False),
    "pin": (True, False), "optimised": (True, False), "window": ("1000 tuples", "1 hour", None),
    "left_window": ("1000 tuples", None), "how": ("inner", "INNER"), "suffix": ("_r", "_right"),
    "ordered": (True, False), "engine": ("local", None), "aliases": (("p", "q"), ("l", "r"), None),
    "device": ("auto", "cpu"),
}  # fmt: skip


def make_options(rng: Random) -> dict[str, Any]:
    """Make odd options of a join."""
    given: dict[str, Any] = {}
    for name in rng.sample([*LOCAL, *OTHERS], rng.choice((1, 1, 2, 3))):
        likely = (*LIKELY.get(name, ()), *(OPTIONS[name].choices if name in OPTIONS else ()))
        given[name] = rng.choice(likely) if likely and rng.random() < 0.6 else odd_value(rng)
    return given


def check_options(given: dict[str, Any], rng: Random, folder: Path) -> bool | str:
    """Join four rows with odd options: the option is refused, or the pairs are those of a double loop."""
    given = {"on": "ABS(l.x - r.a) <= 1", **given}
    own = {"cores": 1, **given}
    try:
        table = hs.join(LEFT, RIGHT, **own)
    except HandshakeError as error:
        return refusal(error)
    plain = given["on"] == "ABS(l.x - r.a) <= 1" and str(given.get("how", "inner")).lower() == "inner"
    windows = {given.get(name) for name in ("window", "left_window", "right_window")} <= {None, "1000 tuples"}
    if plain and windows and given.get("overload") != "shed":
        found = sorted(zip(table.column(0).to_pylist(), table.column(2).to_pylist(), strict=True))
        assert found == PAIRS, (given, found)
        return "compared"
    return True


LINES = (
    ("join", "left.csv", "right.csv", "--on", "ABS(l.x - r.x) <= 1"),
    (
        "join",
        "left.csv",
        "right.csv",
        "--time",
        "t",
        "--window",
        "5 seconds",
        "--on",
        "l.x = r.x",
        "--how",
        "left",
    ),
    ("join", "left.csv", "right.csv", "--on", "l.x < r.a", "--output", "out.csv", "--cores", "1"),
    ("multijoin", "a=left.csv", "b=right.csv", "--on", "a.x = b.x", "--window", "10 tuples"),
    ("run", "query.sql", "--input", "R=left.csv"),
    ("explain", "query.sql"),
    ("why", "left.csv", "right.csv", "0", "1", "--on", "l.x = r.x"),
    ("state", "show", "nowhere"),
    ("options",),
)
WORDS = (
    "--on", "--how", "--time", "--window", "--cores", "--method", "--format", "--explain", "--metrics", "--input",
    "--bad", "--strict", "--order", "--pace", "--overload", "--room", "-1", "0", "1", "1e9", "nan", "", " ", "é", "\0",
    "left", "full", "asof", "json", "csv", "hash", "scan", "band", "x", "t", "l.x = r.x", "R=", "=", "a=left.csv",
    "missing.csv", "left.csv", "5 seconds", "3 tuples", "--help", "--version", "-", "--", "--x", "10 hours",
)  # fmt: skip


@lru_cache(maxsize=8)
def _inputs(folder: str) -> None:
    write_inputs(Path(folder))
    text = (
        "CREATE INPUT STREAM R (x int, s string, t timestamp) TIMESTAMP BY t; SELECT x, s FROM R WHERE x > 1;"
    )
    (Path(folder) / "query.sql").write_text(text)


def make_command(rng: Random) -> list[str]:
    """Make the arguments of a mutated command line."""
    arguments = list(rng.choice(LINES))
    for _ in range(rng.choice((1, 1, 2, 3))):
        at = rng.randrange(1, len(arguments) + 1)
        match rng.randrange(5):
            case 0 if at < len(arguments):
                del arguments[at]
            case 1 if at < len(arguments):
                arguments[at] = rng.choice(WORDS)
            case 2 if at < len(arguments):
                arguments[at] = mutate_text(rng, arguments[at], WORDS)
            case 3:
                arguments.insert(at, rng.choice(WORDS))
            case _:
                arguments[at:at] = [f"--{rng.choice(list(OPTIONS)).replace('_', '-')}", rng.choice(WORDS)]
    return arguments


def check_command(arguments: list[str], rng: Random, folder: Path) -> bool | str:
    """Run a command line: status 0, or status 2 and one line that says why."""
    if {"--live", "--master", "--backend", "--engine", "spark"} & set(arguments) or "-" in arguments:
        return "left out"
    _inputs(str(folder))
    out, err, before = io.StringIO(), io.StringIO(), os.getcwd()
    os.chdir(folder)
    try:
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            patch.object(sys, "stdin", io.StringIO()),
        ):
            status = cli.run(arguments)
    finally:
        os.chdir(before)
    complaint = err.getvalue()
    assert status in (0, 2), (arguments, status, complaint)
    if status == 2:
        assert complaint.startswith("handshake: "), (arguments, complaint)
        lines = complaint.count("\n")  # an error in a query shows its line and a caret
        assert lines == 1 or (lines == 3 and complaint.endswith("^\n")), (arguments, complaint)
    return status == 0
