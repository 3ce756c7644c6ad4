"""Which options are for which back ends: what was typed and would be left aside is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import typer

from handshake.errors import UnsupportedError

__all__ = ["OPTIONS", "Use", "check_options", "typed"]


@dataclass(frozen=True)
class Use:
    """Who an option is for, and why it says nothing to others."""

    backends: tuple[str, ...]
    why: str
    same: str | None = None
    """A value that says no more than leaving the option out, so that anyone may spell it out."""


_LOCAL, _SPARK, _CIRCUIT, _SOFTWARE = ("local",), ("spark",), ("circuit",), ("local", "spark")
_BACKENDS = _SOFTWARE + _CIRCUIT

_PACE = "it alone lets rows wait for their times"
_THREADS = "it alone has its cores in threads of this machine"
_BOUNDS: Mapping[str, Use] = {
    "groups": Use(_CIRCUIT, "it alone has places for a fixed number of groups"),
    "text": Use(_CIRCUIT, "it alone has wires, on which a string has a fixed length"),
    "join": Use(_CIRCUIT, "it alone has joins that are arranged in one of these ways"),
    "window_tuples": Use(_CIRCUIT, "it alone has places for a fixed number of tuples"),
    "divider": Use(_CIRCUIT, "it alone has a unit that divides"),
    "without": Use(_CIRCUIT, "these rules are about circuits"),
}

OPTIONS: Mapping[str, Mapping[str, Use]] = {
    "run": {
        **_BOUNDS,
        "buffer": Use(_CIRCUIT, "it alone has join cores with buffers of a fixed size"),
        "simulator": Use(_CIRCUIT, "it alone is simulated"),
        "vcd": Use(_CIRCUIT, "it alone has a waveform"),
        "pace": Use(_LOCAL, _PACE),
    },
    "join": {
        "algorithm": Use(_LOCAL, "it alone arranges its cores by one of these algorithms", "low_latency"),
        "method": Use(_SOFTWARE, "a circuit compares every pair in its windows", "auto"),
        "pace": Use(_LOCAL, _PACE),
        "overload": Use(_LOCAL, _PACE, "block"),
        "room": Use(_LOCAL, _PACE),
        "adapt": Use(_LOCAL, _THREADS),
        "pin": Use(_LOCAL, _THREADS),
        "master": Use(_SPARK, "it alone runs on a cluster"),
        "state_dir": Use(_SPARK, "it alone has executors that share a folder"),
        "text_bytes": Use(_CIRCUIT, "it alone has wires, on which a text has a fixed length"),
    },
    "explain": {
        **_BOUNDS,
        "cores": Use(_CIRCUIT, "a plan has no cores"),
        "dot_file": Use(_LOCAL, "graphs for Graphviz show the plan and nothing else"),
        "svg_file": Use(("local", "circuit"), "what is said of Spark is text, and no part of a drawing"),
        "optimised": Use(_SOFTWARE, "a circuit has rules of its own, all in use unless --without names them"),
    },
    "demo": {"ui": Use(_SPARK, "it alone has such pages")},
}
"""By command, the options that not every back end uses."""


def check_options(context: typer.Context, backend: str) -> None:
    """Refuse the first option that was typed and is not for `backend`."""
    if backend not in _BACKENDS:  # which is told of where it is looked for
        return
    for name, use in OPTIONS[context.command.name or ""].items():
        idle = backend not in use.backends and context.params[name] != use.same
        if idle and typed(context, name):
            raise UnsupportedError(_message(context, name, use, backend))


def typed(context: typer.Context, name: str) -> bool:
    """Whether an option stands on the command line, be it with its default."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _message(context: typer.Context, name: str, use: Use, backend: str) -> str:
    option = next(each.opts[0] for each in context.command.params if each.name == name)
    owners, given = _called(context, *use.backends), _called(context, backend)
    return f"{option} is for {owners}, not for {given}: {use.why}; leave it out, or use {owners}"


def _called(context: typer.Context, *backends: str) -> str:
    """How a command is asked for back ends."""
    if context.command.name != "explain":
        return f"--backend {' or '.join(backends)}"
    return " or ".join("--circuit" if each == "circuit" else f"--backend {each}" for each in backends)
