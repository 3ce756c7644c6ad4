"""The options of runs: one entry per option, from which signatures, flags, checks and the table derive.

To add an option, add a field to `Options`, the same name to `GivenOptions` (or to the typed dict above it of
options for join cores), and use it in an engine.
"""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from numbers import Integral, Real
from pathlib import Path
from typing import Annotated, Any, TypedDict, get_args, get_origin, get_type_hints

from handshake.errors import UnsupportedError, suggest

ENGINES = ("local", "spark", "circuit")
_LOCAL, _SPARK, _CIRCUIT, _SOFTWARE = ("local",), ("spark",), ("circuit",), ("local", "spark")
_QUERY_CIRCUIT = ("compile", "run", "explain")


@dataclass(frozen=True)
class Option:
    """The description of an option: everything but its type and its default."""

    help: str
    engines: tuple[str, ...]
    commands: tuple[str, ...] = ()
    """Commands that have a flag for it."""
    choices: tuple[str, ...] = ()
    metavar: str | None = None
    least: int | None = None
    neutral: tuple[Any, ...] = ()
    """Values that every engine accepts, since they ask for nothing special."""
    flags: Mapping[str, str] | None = None
    """The flag in commands where it is not `--` and the name."""
    only: Mapping[str, tuple[str, ...]] | None = None
    """The engines that take it in commands where that is not `engines`."""
    noun: str = ""
    """The word for a value of it in messages."""
    frames: str = ""
    """The DataFrames whose joins alone take it on Spark; empty if joins of tables or queries do, too."""

    def flag(self, name: str, command: str) -> str:
        """Return the flag of the option called `name` in a command."""
        return (self.flags or {}).get(command, f"--{name.replace('_', '-')}")

    def engines_in(self, command: str) -> tuple[str, ...]:
        """Return the engines that take the option in a command."""
        return (self.only or {}).get(command, self.engines)

    def check(self, value: Any) -> None:
        """Raise `UnsupportedError` if a value is none of the choices."""
        if self.choices and value not in self.choices:
            choose = f"choose {(' or ' if len(self.choices) < 3 else ', ').join(self.choices)}"
            hint = suggest(str(value), self.choices)
            raise UnsupportedError(f"unknown {self.noun} '{value}'; {choose}{hint}")


class CoreOptions(TypedDict, total=False):
    """The options of join cores in process, for any number of streams; see `Options`."""

    cores: int | None
    overload: str
    room: int | None
    adapt: bool
    pin: bool


class PairOptions(CoreOptions, total=False):
    """The options of join cores in process, for two streams; see `Options`."""

    method: str
    algorithm: str
    device: str


class GivenOptions(PairOptions, total=False):
    """The options that `handshake.run`, `join` and `explain` take by name; see `Options`."""

    order: str
    pace: float | None
    on_shed: Callable[[str, Any], None] | None
    optimised: bool
    segments: int | None
    state_dir: str | None
    state: str
    master: str | None
    name: str | None
    result_time: str | None
    idle: str | None
    late_to: str | Path | Callable[[str, Any], None] | None
    results_to: str | None
    refresh: str | None
    groups: int | None
    text: int | None
    join: str
    buffer: int
    window_tuples: int | None
    divider: str
    nullable: Sequence[str]
    input_adapter: str
    output_adapter: str
    udp_port: int
    delay: int
    without: Sequence[str]
    simulator: str
    vcd: str | None


class NearestOptions(TypedDict, total=False):
    """The options that `handshake.nearest` takes by name; see `Options`."""

    cores: int | None
    segments: int | None
    state_dir: str | None
    name: str | None


class AsOfOptions(NearestOptions, total=False):
    """The options that `handshake.asof` takes by name; see `Options`."""

    state: str
    result_time: str | None


@dataclass(frozen=True)
class Options:
    """The options of one run. Each field has its help text, its default and the engines that take it.

    Raises:
        UnsupportedError: A value has the wrong type, is too small, or is none of the choices.

    >>> Options(cores=2).cores
    2
    >>> Options(cores=0)
    Traceback (most recent call last):
    handshake.errors.UnsupportedError: cores is a whole number from 1 up; 0 was given
    >>> Options(pace=2.0).check("spark")
    Traceback (most recent call last):
    handshake.errors.UnsupportedError: pace=2.0 is only supported by the local engine
    """

    cores: Annotated[
        int | None,
        Option(
            "Join cores. Default: all for joins, 1 for queries, 4 in a circuit.",
            ENGINES, ("join", "multijoin", "compile", "run", "explain"), metavar="N", least=1,
            only={"explain": _CIRCUIT},
        ),
    ] = None  # fmt: skip
    method: Annotated[
        str,
        Option(
            "The access method; auto picks one.", _SOFTWARE, ("join",), ("auto", "scan", "hash", "band"),
            neutral=("auto",), noun="access method",
        ),
    ] = "auto"  # fmt: skip
    algorithm: Annotated[
        str,
        Option(
            "The arrangement of the join cores.", _LOCAL, ("join",),
            ("three_step", "cell", "handshake", "low_latency"), neutral=("low_latency",), noun="algorithm",
        ),
    ] = "low_latency"  # fmt: skip
    device: Annotated[
        str,
        Option(
            "Where the windows of a join are held and searched: the processor, or an NVIDIA GPU.", _LOCAL,
            ("join", "run"), ("cpu", "gpu"), neutral=("cpu",), noun="device",
        ),
    ] = "cpu"  # fmt: skip
    order: Annotated[
        str,
        Option(
            "The order of results: by arrival (queries), any (joins, the fastest), or by time.", _LOCAL,
            choices=("arrival", "any", "time"), neutral=("any",), noun="order",
        ),
    ] = "arrival"  # fmt: skip
    pace: Annotated[
        float | None,
        Option(
            "Let rows arrive X times as fast as their times say. Default: as fast as they are read.", _LOCAL,
            ("join", "multijoin", "run"), metavar="X",
        ),
    ] = None  # fmt: skip
    overload: Annotated[
        str,
        Option(
            "When the join is behind: block (hold rows back) or shed (drop and count them).", _LOCAL,
            ("join", "multijoin"), ("block", "shed"), neutral=("block",), noun="overload",
        ),
    ] = "block"  # fmt: skip
    room: Annotated[
        int | None,
        Option(
            "Rows of an input that may wait for the join.", _LOCAL, ("join", "multijoin"), metavar="N",
            least=1,
        ),
    ] = None  # fmt: skip
    on_shed: Annotated[
        Callable[[str, Any], None] | None,
        Option("Called with the stream and each batch that is shed.", _LOCAL),
    ] = None
    adapt: Annotated[
        bool,
        Option(
            "Start with one core and use more as the load grows (algorithm cell).", _LOCAL,
            ("join", "multijoin"),
        ),
    ] = False  # fmt: skip
    pin: Annotated[
        bool,
        Option("Keep each join core on a processor of its own (Linux).", _LOCAL, ("join", "multijoin")),
    ] = False
    optimised: Annotated[bool, Option("Apply the optimiser's rules to the plan.", _SOFTWARE)] = True
    segments: Annotated[
        int | None, Option("Join cores that the rows of a join are spread over.", _SPARK, least=1)
    ] = None
    state_dir: Annotated[
        str | None,
        Option("A folder or URI that every executor of Spark reaches.", _SPARK, ("join",), metavar="DIR"),
    ] = None
    state: Annotated[
        str,
        Option(
            "Where windows of two streams live: directory, or store for Spark's own state store.",
            _SPARK,
            choices=("directory", "store"),
            noun="state",
            frames="streaming DataFrames",
        ),
    ] = "directory"
    master: Annotated[
        str | None,
        Option(
            "The Spark cluster, such as spark://host:7077. Default: this machine.",
            _SPARK,
            ("join",),
            metavar="URL",
        ),
    ] = None
    name: Annotated[
        str | None, Option("The name of a join in the progress of Spark's query, and of its folder.", _SPARK)
    ] = None
    result_time: Annotated[
        str | None,
        Option("Add a column of this name with the later time of both rows.", _SPARK, frames="DataFrames"),
    ] = None
    idle: Annotated[
        str | None,
        Option(
            "Leave a stream that is silent for this long, such as 5 minutes, out of the watermark.",
            _SPARK,
            frames="streaming DataFrames",
        ),
    ] = None
    late_to: Annotated[
        str | Path | Callable[[str, Any], None] | None,
        Option(
            "Keep late rows, and rows dropped without a time: a folder for Parquet files, in a folder per "
            "stream, or a function of a stream's name and a batch. Spark writes each row once.",
            _SOFTWARE, ("join", "run"), metavar="DIR", only={"join": _LOCAL, "run": _LOCAL},
            frames="streaming DataFrames",
        ),
    ] = None  # fmt: skip
    results_to: Annotated[
        str | None,
        Option(
            "Write results to Parquet files in this folder, exactly once; the join of two streams then has a "
            "row per file.", _SPARK, frames="streaming DataFrames",
        ),
    ] = None  # fmt: skip
    refresh: Annotated[
        str | None,
        Option(
            "Read a batch DataFrame that a stream joins again: in every micro-batch (batch), or after a time "
            "such as 10 minutes. Default: it is read once.", _SPARK, frames="streaming DataFrames",
        ),
    ] = None  # fmt: skip
    groups: Annotated[
        int | None,
        Option("Circuit: the most groups of a window.", _CIRCUIT, _QUERY_CIRCUIT, metavar="N", least=1),
    ] = None
    text: Annotated[
        int | None,
        Option(
            "Circuit: the most bytes of a string that is declared without a length.", _CIRCUIT,
            ("join", *_QUERY_CIRCUIT), metavar="BYTES", least=1, flags={"join": "--text-bytes"},
        ),
    ] = None  # fmt: skip
    join: Annotated[
        str,
        Option(
            "Circuit: join cores in a line (handshake), or results in order; auto picks one.", _CIRCUIT,
            _QUERY_CIRCUIT, ("auto", "handshake", "ordered"), noun="arrangement of joins",
        ),
    ] = "auto"  # fmt: skip
    buffer: Annotated[
        int,
        Option(
            "Circuit: results that the buffer of a join core holds.", _CIRCUIT, ("compile", "run"),
            metavar="N", least=1,
        ),
    ] = 8  # fmt: skip
    window_tuples: Annotated[
        int | None,
        Option(
            "Circuit: the most rows in the time window of a joined stream.", _CIRCUIT, _QUERY_CIRCUIT,
            metavar="N", least=1,
        ),
    ] = None  # fmt: skip
    divider: Annotated[
        str,
        Option(
            "Circuit: averages are divided by a pipeline, by a small serial unit, or by the host.", _CIRCUIT,
            _QUERY_CIRCUIT, ("pipelined", "serial", "host"), noun="divider",
        ),
    ] = "pipelined"  # fmt: skip
    nullable: Annotated[
        Sequence[str],
        Option(
            "Circuit: a field that may be NULL; can be repeated.", _CIRCUIT, ("compile",),
            metavar="STREAM.FIELD",
        ),
    ] = ()  # fmt: skip
    input_adapter: Annotated[
        str,
        Option(
            "Circuit: inputs as streams, in Ethernet frames or in CPU registers.", _CIRCUIT,
            ("compile", "explain"), ("none", "udp", "cpu"), noun="input adapter",
        ),
    ] = "none"  # fmt: skip
    output_adapter: Annotated[
        str,
        Option(
            "Circuit: results as streams or in CPU registers.", _CIRCUIT, ("compile", "explain"),
            ("none", "cpu"), noun="output adapter",
        ),
    ] = "none"  # fmt: skip
    udp_port: Annotated[
        int,
        Option(
            "Circuit: UDP port of the first input; others follow.", _CIRCUIT, ("compile", "explain"),
            metavar="N", least=1,
        ),
    ] = 5001  # fmt: skip
    delay: Annotated[
        int,
        Option(
            "Circuit: cycles by which results are delayed.", _CIRCUIT, ("compile", "explain"), metavar="N",
            least=0,
        ),
    ] = 0  # fmt: skip
    without: Annotated[
        Sequence[str],
        Option(
            "Circuit: an optimisation to leave out; can be repeated.", _CIRCUIT, _QUERY_CIRCUIT,
            metavar="RULE",
        ),
    ] = ()  # fmt: skip
    simulator: Annotated[
        str,
        Option(
            "Circuit: the simulator in Python, or a compiled one; auto goes by the rows.",
            _CIRCUIT, ("run",), ("auto", "amaranth", "cxxrtl"), noun="simulator",
        ),
    ] = "auto"  # fmt: skip
    vcd: Annotated[
        str | None, Option("Circuit: write the waveform to this file.", _CIRCUIT, ("run",), metavar="FILE")
    ] = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, os.PathLike):
                value = os.fspath(value)
                object.__setattr__(self, field.name, value)
            if value is not field.default:
                _check_value(field.name, value)

    def pick(self, group: type) -> dict[str, Any]:
        """Return the options of a group by name.

        Args:
            group: The typed dict that names them, such as `CoreOptions`.

        >>> Options(cores=2).pick(CoreOptions)["cores"]
        2
        """
        return {name: getattr(self, name) for name in group.__annotations__}

    def check(self, engine: str) -> None:
        """Raise `UnsupportedError` at the first option that an engine does not take.

        Args:
            engine: The name of the engine.
        """
        for field in fields(self):
            option, value = OPTIONS[field.name], getattr(self, field.name)
            if engine not in option.engines and value not in (field.default, *option.neutral):
                engines = " or ".join(option.engines)
                raise UnsupportedError(f"{field.name}={value!r} is only supported by the {engines} engine")


def _entries() -> Iterator[tuple[str, Option]]:
    for name, hint in get_type_hints(Options, include_extras=True).items():
        yield name, next(each for each in hint.__metadata__ if isinstance(each, Option))


OPTIONS: dict[str, Option] = dict(_entries())
"""The entry of each option by its name."""
_TYPES = get_type_hints(Options)


def _check_value(name: str, value: Any) -> None:
    """Raise `UnsupportedError` if an option cannot have a value."""
    option, optional = OPTIONS[name], type(None) in get_args(_TYPES[name])
    if value is None and optional:
        return
    option.check(value)
    types = get_args(_TYPES[name])[:-1] if optional else (_TYPES[name],)
    kinds = [_KINDS[get_origin(kind) or kind] for kind in types]
    if not any(fits(value) for fits, _ in kinds) or (option.least is not None and value < option.least):
        wanted = " or ".join(word for _, word in kinds)
        least = "" if option.least is None else f" from {option.least} up"
        raise UnsupportedError(f"{name} is {wanted}{least}; {value!r} was given")


def _is_above_0(value: Any) -> bool:
    number = isinstance(value, Real) and not isinstance(value, bool)
    return number and value > 0 and math.isfinite(value)


def _is_texts(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(isinstance(each, str) for each in value)


_KINDS: Mapping[Any, tuple[Callable[[Any], bool], str]] = {
    bool: (lambda value: isinstance(value, bool), "True or False"),
    int: (lambda value: isinstance(value, Integral) and not isinstance(value, bool), "a whole number"),
    float: (_is_above_0, "a number above 0"),
    str: (lambda value: isinstance(value, str), "a text"),
    Path: (lambda value: isinstance(value, Path), "a path"),
    Callable: (callable, "a function"),
    Sequence: (_is_texts, "a list of texts"),
}
"""By the type of an option, the test of its values, and the word for them in messages."""


def check_names(
    function: Callable[..., Any], given: Mapping[str, Any], options: type, also: Iterable[str] = ()
) -> None:
    """Raise `TypeError` at a keyword that a function does not take, and suggest one with a similar name.

    Args:
        function: The function or class that was called.
        given: The keywords that are not among its parameters.
        options: The typed dict of the options that it takes.
        also: Other names that it takes.
    """
    taken = (*options.__annotations__, *also)
    for name in given:
        if name not in taken:
            known = [*inspect.signature(function).parameters, *taken]
            raise TypeError(f"{function.__qualname__}() has no argument '{name}'{suggest(name, known)}")


def options_table() -> str:
    """Return all options as a table in Markdown, for the documentation.

    >>> print(options_table().splitlines()[3])
    | `method` | `--method` | local, spark | `'auto'` | The access method; auto picks one. |
    """
    lines = ["| option | flag | engines | default | meaning |", "|---|---|---|---|---|"]
    for field in fields(Options):
        option = OPTIONS[field.name]
        flags = dict.fromkeys(f"`{option.flag(field.name, command)}`" for command in option.commands)
        meaning = option.help.replace("|", "\\|")
        cells = (f"`{field.name}`", ", ".join(flags), ", ".join(option.engines), f"`{field.default!r}`")
        lines.append(f"| {' | '.join((*cells, meaning))} |")
    return "\n".join(lines) + "\n"
