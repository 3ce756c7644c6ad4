"""Options on the command line: parameters, checks and values, all from `handshake.options`."""

from __future__ import annotations

import inspect
from collections import abc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

import typer

from handshake.errors import InputError, UnsupportedError
from handshake.options import ENGINES, OPTIONS, Option, Options

Text = str | None
Window = Annotated[
    Text, typer.Option(metavar="SPEC", help="Window of both: '15 minutes', '900s' or '1000 tuples'.")
]
LeftWindow = Annotated[Text, typer.Option(metavar="SPEC", help="Window of LEFT, if it differs.")]
RightWindow = Annotated[Text, typer.Option(metavar="SPEC", help="Window of RIGHT, if it differs.")]
Time = Annotated[Text, typer.Option(metavar="COL", help="Time column of both; a time window needs one.")]
LeftTime = Annotated[Text, typer.Option(metavar="COL", help="Time column of LEFT, if it differs.")]
RightTime = Annotated[Text, typer.Option(metavar="COL", help="Time column of RIGHT, if it differs.")]
LeftInput = Annotated[str, typer.Argument(metavar="LEFT", help="File or folder of the left stream.")]
RightInput = Annotated[str, typer.Argument(metavar="RIGHT", help="File or folder of the right stream.")]
Predicate = Annotated[
    str, typer.Option("--on", metavar="PRED", help="Condition in SQL, such as 'l.x < r.a'.")
]
Output = Annotated[
    Text,
    typer.Option(metavar="FILE", help="Write results there (by extension); - is CSV on standard output."),
]
Metrics = Annotated[Text, typer.Option(metavar="FILE", help="Write the figures of the run there, as JSON.")]
Explain = Annotated[bool, typer.Option("--explain", help="Show how the join would run, and stop.")]
Why = Annotated[
    list[str] | None,
    typer.Option(
        "--why", metavar="NAME=N", help="Show why row N of a stream, counted from 0, and the others join."
    ),
]

BACKEND = Option("The engine that runs it.", ENGINES, choices=ENGINES, noun="backend")
Backend = Annotated[str, typer.Option(metavar="|".join(BACKEND.choices), help=BACKEND.help)]
OWN: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "explain": {
        "dot_file": ("local",),
        "svg_file": ("local", "circuit"),
        "optimised": ("local", "spark"),
    },
    "demo": {"ui": ("spark",)},
}
"""By command, parameters that are no options of runs and that not every engine uses."""
Command = TypeVar("Command", bound=Callable[..., Any])
_DEFAULTS = {field.name: field.default for field in fields(Options)}


def with_options(command: str) -> Callable[[Command], Command]:
    """Give a command the parameters of its options, which it takes as keywords.

    Args:
        command: The name of the command.
    """

    def add(function: Command) -> Command:
        signature = inspect.signature(function, eval_str=True)
        own = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
        added = [_parameter(name, command) for name, each in OPTIONS.items() if command in each.commands]
        setattr(function, "__signature__", signature.replace(parameters=[*own, *added]))  # noqa: B010
        return function

    return add


def _parameter(name: str, command: str) -> inspect.Parameter:
    option, kind, default = OPTIONS[name], get_type_hints(Options)[name], _DEFAULTS[name]
    if default == ():
        kind, default = list[str] | None, None
    if any(get_origin(each) is abc.Callable for each in get_args(kind)):
        kind = Text  # a command cannot be given a function
    shown = typer.Option(
        option.flag(name, command),
        help=option.help,
        metavar=option.metavar or "|".join(option.choices) or None,
        min=option.least,
    )
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, shown]
    )


def engines_of(command: str) -> dict[str, tuple[str, ...]]:
    """Return the parameters of a command that not every engine uses, each with the engines that do."""
    options = {name: each.engines_in(command) for name, each in OPTIONS.items() if command in each.commands}
    return {name: each for name, each in options.items() if each != ENGINES} | dict(OWN.get(command, {}))


def check_options(context: typer.Context, backend: str) -> None:
    """Refuse an unknown engine, and the first parameter on the command line that the engine does not use."""
    command = context.command.name or ""
    BACKEND.check(backend)
    for name, engines in engines_of(command).items():
        neutral = OPTIONS[name].neutral if name in OPTIONS else ()
        if backend not in engines and context.params[name] not in neutral and is_typed(context, name):
            flag = next(each.opts[0] for each in context.command.params if each.name == name)
            raise UnsupportedError(f"{flag} is only supported by {_backends(command, engines)}")


def is_typed(context: typer.Context, name: str) -> bool:
    """Return true if a parameter is on the command line, even with its default."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _backends(command: str, engines: tuple[str, ...]) -> str:
    if command != "explain":
        return f"--backend {' or '.join(engines)}"
    return " or ".join("--circuit" if each == "circuit" else f"--backend {each}" for each in engines)


def row_numbers(given: Sequence[str]) -> dict[str, int]:
    """Return the rows that `--why` names, by stream.

    >>> row_numbers(["Trades=17", "Quotes=3"])
    {'Trades': 17, 'Quotes': 3}
    """
    found: dict[str, int] = {}
    for text in given:
        name, _, number = text.partition("=")
        if not name or not number.isdecimal():
            raise InputError(f"--why '{text}' is no row; write NAME=N, such as --why Trades=17")
        if name in found:
            raise InputError(f"--why is given twice for '{name}'; give it once per stream")
        found[name] = int(number)
    return found


def given_options(given: Mapping[str, Any], **more: Any) -> Options:
    """Return the options of a command."""
    values: dict[str, Any] = {**given, **more}
    values |= {name: tuple(given[name] or ()) for name in given if _DEFAULTS[name] == ()}
    return Options(**values)
