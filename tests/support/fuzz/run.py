"""The run of a target: inputs from a seed, their outcomes, and the faults among them."""

from __future__ import annotations

import contextlib
import signal
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from handshake.errors import HandshakeError, QueryError

__all__ = ["Fault", "Outcomes", "Target", "fault_of", "refusal", "run_target"]

LIMIT = 20.0
"""Seconds after which an input hangs."""
_SHOWN = 600
"""Characters of an input that a fault shows."""


@dataclass(frozen=True)
class Target:
    """A kind of input: how one is made, and how it is checked."""

    make: Callable[[Random], Any]
    """Makes an input; its `repr` is what a fault shows."""
    check: Callable[[Any, Random, Path], bool | str]
    """Gives an input to the package: True if it was accepted and its result is right, False if it was
    refused, or a text that counts the outcome under another name. Anything else is an exception."""


@dataclass(frozen=True)
class Fault:
    """An input that was neither accepted nor refused."""

    target: str
    seed: int
    number: int
    input: str
    """The input in ASCII, shortened."""
    fault: str
    """The error, and its place."""

    def __str__(self) -> str:
        return f"--target {self.target} --seed {self.seed} --only {self.number}: {self.fault}"


class Hang(BaseException):
    """An input that takes too long."""


@dataclass
class Outcomes:
    """Counts of outcomes, and the faults."""

    counts: Counter[str] = field(default_factory=Counter)
    faults: list[Fault] = field(default_factory=list)

    def values(self) -> dict[str, Any]:
        """Return counts and faults as a JSON value."""
        return {"counts": self.counts, "faults": [asdict(fault) for fault in self.faults]}


def refusal(error: HandshakeError) -> bool:
    """Return False, after a check that the message of an error is one line that says something."""
    text = error.message if isinstance(error, QueryError) else str(error)
    assert text.strip(), f"{error!r} has no message"
    assert "\n" not in text, f"more than one line: {text!r}"
    assert "\r" not in text, f"more than one line: {text!r}"
    assert len(text) < 4_000, f"{len(text)} characters: {text[:200]!r}"
    return False


def fault_of(target: Target, name: str, seed: int, number: int, what: str) -> Fault:
    """Return a fault with its input, which is made again."""
    shown = ascii(target.make(_random(name, seed, number)))
    if len(shown) > _SHOWN:
        half = _SHOWN // 2
        shown = f"{shown[:half]} [{len(shown) - _SHOWN} characters] {shown[-half:]}"
    return Fault(name, seed, number, shown, what)


def _random(name: str, seed: int, number: int) -> Random:
    return Random(f"{name} {seed} {number}")


def run_target(
    target: Target,
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
        rng = _random(name, seed, number)
        given = target.make(rng)
        try:
            with _time_limit():
                found = target.check(given, rng, folder)
            key = found if isinstance(found, str) else "accepted" if found else "refused"
        except HandshakeError as error:
            try:
                refusal(error)
                key = "refused"
            except AssertionError as wrong:
                key = "faults"
                outcomes.faults.append(fault_of(target, name, seed, number, _describe(wrong)))
        except (Exception, Hang) as error:
            key = "faults"
            outcomes.faults.append(fault_of(target, name, seed, number, _describe(error)))
        outcomes.counts[key] += 1
    return outcomes


def _describe(error: BaseException) -> str:
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "/src/handshake/" in f.filename]
    place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "check"
    return f"{place}: {type(error).__name__}: {str(error)[:_SHOWN]}"


@contextlib.contextmanager
def _time_limit() -> Iterator[None]:
    def stop(*_: Any) -> None:
        raise Hang(f"no outcome after {LIMIT:g} seconds")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, LIMIT)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
