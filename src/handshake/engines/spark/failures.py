"""Errors inside Spark, reduced from nested traces to one sentence."""

from __future__ import annotations

import re

from handshake.errors import HandshakeError

_END = r"^\s*$|^\s+at |^\s*SQLSTATE: |\Z"
_OURS = re.compile(rf"^(?:\S*: )?handshake\.[\w.]+Error: (.+?)(?={_END})", re.MULTILINE | re.DOTALL)
_PYTHON = re.compile(r"^(?:[\w.]+\.)?(\w*(?:Error|Exception|Interrupt)): (.+)$", re.MULTILINE)
_MISSING = re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'")
_CLASS = re.compile(r"^\[[\w.]+\] ")
_STATE = re.compile(r" SQLSTATE: \w+$")


def join_error(error: BaseException) -> BaseException:
    """Convert an error of Spark's to a `HandshakeError`; others, such as Ctrl-C, stay as they are."""
    if isinstance(error, HandshakeError) or not isinstance(error, Exception):
        return error
    return HandshakeError(f"the join failed on Spark: {reason(error)}")


def reason(error: BaseException) -> str:
    """Return the innermost reason of an error.

    >>> reason(RuntimeError("Traceback …\\nhandshake.errors.InputError: no room\\n\\n\\tat x.y.z"))
    'no room'
    """
    text = str(error)
    missing = _MISSING.search(text)
    if missing:
        return (
            f"the Python of an executor has no package '{missing[1]}'; "
            "install Handshake and its extra 'spark' there, or name a Python that has it (PYSPARK_PYTHON)"
        )
    ours = _OURS.search(text)
    if ours:
        return " ".join(ours[1].split())
    python = _PYTHON.findall(text)
    if "Traceback" in text and python:
        return ": ".join(python[-1])
    return _STATE.sub("", _CLASS.sub("", text.strip().split("\n")[0])) or type(error).__name__
