"""The run of a target: inputs from a seed, their outcomes, and the faults among them."""

from __future__ import annotations

import contextlib
import signal
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from handshake.errors import HandshakeError, QueryError

__all__ = ["Check", "Outcomes", "refusal", "run_target"]

Check = Callable[[Random, Path], bool | str]
"""Makes one input and gives it to the package: True if it was accepted and its result is right, False if it
was refused, or a text that counts the outcome under another name. Anything else is an exception."""
LIMIT = 20.0
"""Seconds after which an input hangs."""


class Hang(BaseException):
    """An input that takes too long."""


@dataclass
class Outcomes:
    """Counts of outcomes, and the faults as texts."""

    counts: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)


def refusal(error: HandshakeError) -> bool:
    """Return False, after a check that the message of an error is one line that says something."""
    text = error.message if isinstance(error, QueryError) else str(error)
    assert text.strip(), f"{error!r} has no message"
    assert "\n" not in text, f"more than one line: {text!r}"
    assert "\r" not in text, f"more than one line: {text!r}"
    assert len(text) < 4_000, f"{len(text)} characters: {text[:200]!r}"
    return False


def run_target(
    check: Check,
    name: str,
    seed: int,
    numbers: range,
    folder: Path,
    begin: Callable[[int], object] | None = None,
) -> Outcomes:
    """Check the inputs with given numbers; each follows from the name, the seed and its number alone."""
    outcomes = Outcomes()
    for number in numbers:
        if begin is not None:
            begin(number)
        try:
            with _limited():
                found = check(Random(f"{name} {seed} {number}"), folder)
            key = found if isinstance(found, str) else "accepted" if found else "refused"
        except HandshakeError as error:
            try:
                refusal(error)
                key = "refused"
            except AssertionError as wrong:
                key = _fault(outcomes, name, seed, number, wrong)
        except (Exception, Hang) as error:
            key = _fault(outcomes, name, seed, number, error)
        outcomes.counts[key] += 1
    return outcomes


def _fault(outcomes: Outcomes, name: str, seed: int, number: int, error: BaseException) -> str:
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "/src/handshake/" in f.filename]
    place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "check"
    what = f"{type(error).__name__}: {str(error)[:600]}"
    outcomes.faults.append(f"--target {name} --seed {seed} --only {number}: {place}: {what}")
    return "faults"


@contextlib.contextmanager
def _limited() -> Iterator[None]:
    def stop(*_: Any) -> None:
        raise Hang(f"no outcome after {LIMIT:g} seconds")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, LIMIT)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
