"""How commands end: with one line for an error, and an exit status."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterator, Mapping
from typing import NoReturn

import typer

from handshake.errors import ExpressionError, HandshakeError, QueryError, one_line

BAD_USAGE, INTERRUPTED = 2, 130


@contextlib.contextmanager
def reporting(interrupted: str = "interrupted", context: typer.Context | None = None) -> Iterator[None]:
    """Turn the errors of a command into a line on standard error and an exit status.

    Errors name options as Python does. With the context of the command, its flags are shown instead.
    """
    try:
        yield
    except QueryError as error:
        fail(error.message, excerpt=error.excerpt)
    except ExpressionError as error:
        fail(str(error))
    except HandshakeError as error:
        fail(str(error) if context is None else name_flags(str(error), _flags(context)))
    except MemoryError:
        fail("not enough memory for these inputs; a smaller window or shorter inputs may fit")
    except KeyboardInterrupt:
        fail(interrupted, INTERRUPTED)
    except BrokenPipeError:  # the reader of standard output has seen enough
        close_output()
        raise typer.Exit(0) from None


def _flags(context: typer.Context) -> dict[str, str]:
    """Return the flags of a command by the names of the options in Python."""
    flags = {each.name or "": each.opts[0] for each in context.command.params if each.opts[0][0] == "-"}
    return {"engine" if name == "backend" else name: flag for name, flag in flags.items()}


_OPTION = re.compile(r"""(?<!\w)'[^']*'|(?<![\w.])(\w+)=("[^"]*"|'[^']*'|[^\s,;:()]+)""")


def name_flags(text: str, flags: Mapping[str, str]) -> str:
    """Return a message with flags in the place of the options that it names, but not in quoted texts.

    >>> name_flags('give time=…, or use engine="local"', {"engine": "--backend", "time": "--time"})
    'give --time, or use --backend local'
    """

    def show(found: re.Match[str]) -> str:
        name, value = found.groups()
        if name not in flags:
            return found[0]
        if value[0] == '"':
            value = value[1:-1] if value[1:-1].isidentifier() else f"'{value[1:-1]}'"
        return flags[name] if value in ("…", "True") else f"{flags[name]} {value}"

    return _OPTION.sub(show, text)


def fail(message: str, status: int = BAD_USAGE, excerpt: str = "") -> NoReturn:
    """End the command with a message and an exit status."""
    complain(message)
    if excerpt:
        print(excerpt, file=sys.stderr, flush=True)
    raise typer.Exit(status) from None


def complain(message: str) -> None:
    """Print a message in one line on standard error."""
    with contextlib.suppress(BrokenPipeError):
        print(f"handshake: {one_line(message, limit=2000)}", file=sys.stderr, flush=True)


def close_output(failure: OSError | None = None) -> int:
    """Flush standard output; close it if that fails, silently if its reader is gone.

    Args:
        failure: The error of a print before.

    Returns:
        The exit status: 2 if something could not be written, else 0.
    """
    try:
        sys.stdout.flush()
    except OSError as error:
        failure = failure or error
    if failure is None:
        return 0
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(failure, BrokenPipeError):
        return 0
    complain(f"standard output cannot be written: {failure.strerror or failure}")
    return BAD_USAGE
