"""The types of engines and runs, and the registry of engines."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa

from handshake.errors import UnsupportedError, suggest
from handshake.options import Options
from handshake.plan.algebra import Plan

_ENGINES = {
    "local": "handshake.engines.local.engine:LocalEngine",
    "spark": "handshake.engines.spark.engine:SparkEngine",
    "circuit": "handshake.engines.circuit.engine:CircuitEngine",
}
"""One line per engine: its name, and the class that implements `Engine`. Imported when it is first used."""


class Engine(Protocol):
    """A function from a plan to running results."""

    name: str

    def check(self, plan: Plan, options: Options) -> None:
        """Raise a `HandshakeError` if the engine cannot run a plan with these options."""

    def explain(self, plan: Plan, options: Options) -> str:
        """Return a text that says how the engine would run a plan."""

    def run(self, plan: Plan, inputs: Mapping[str, Any], options: Options) -> Run:
        """Start a plan on these inputs.

        Args:
            plan: The plan.
            inputs: For each input stream a table, a frame, plain Python values, or an `Address`.
            options: How to run it.

        Returns:
            A run, which does its work while it is iterated.
        """


class Run(ABC):
    """A plan at work: iterate over it for (name of a result, batch), then ask what it did."""

    schemas: Mapping[str, pa.Schema]
    """The columns of each result."""
    stoppable = False
    """Whether `stop` ends the inputs early, so that what has arrived is still finished."""
    endless = False
    """Whether the inputs may have no end, so that progress is always reported."""
    stopped = False

    @abstractmethod
    def __iter__(self) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Do the work; yield the batches of all results."""

    @abstractmethod
    def facts(self) -> list[tuple[str, str]]:
        """Return the summary of the run: names and values, for people."""

    @abstractmethod
    def metrics(self) -> dict[str, Any]:
        """Return the figures of the run as plain data."""

    def progress(self) -> tuple[str, int, int | None]:
        """Return what is done so far: a text, the amount, and the whole amount if it is known."""
        return "running", 0, None

    def sources_of_figures(self) -> Sequence[Any]:
        """Return what has the figures of the run while it runs: joins, queries, or the run itself."""
        return [self]

    def stop(self) -> None:
        """End the inputs; what has arrived is finished."""
        self.stopped = True

    def results(self) -> Mapping[str, Any]:
        """Do all the work and return a table of each result."""
        batches: dict[str, list[pa.RecordBatch]] = {name: [] for name in self.schemas}
        for name, batch in self:
            batches[name].append(batch)
        return {name: pa.Table.from_batches(found, self.schemas[name]) for name, found in batches.items()}


def engine(name: str) -> Engine:
    """Return the engine of that name; its packages are imported now.

    Args:
        name: `local`, `spark` or `circuit`.

    Raises:
        UnsupportedError: There is no such engine, or a package that it needs is missing.
    """
    if name not in _ENGINES:
        raise UnsupportedError(f"no engine '{name}' ({', '.join(_ENGINES)}){suggest(str(name), _ENGINES)}")
    module, _, kind = _ENGINES[name].partition(":")
    made: Engine = getattr(engine_module(name, module.rpartition(".")[2]), kind)()
    return made


def engine_module(name: str, module: str) -> Any:
    """Import a module of an engine, whose packages may come with an extra.

    Args:
        name: The engine.
        module: The module below its folder.

    Raises:
        UnsupportedError: A package is missing.
    """
    try:
        return importlib.import_module(f"handshake.engines.{name}.{module}")
    except ImportError as error:
        raise UnsupportedError(
            f"the {name} engine needs more packages: {error}; from a checkout: pip install -e '.[{name}]'"
        ) from error


def plain_table(facts: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Format names and values in two columns.

    >>> list(plain_table([("left", "1 row"), ("results", "2")]))
    ['left     1 row', 'results  2']
    """
    pairs = list(facts)
    size = max(len(name) for name, _ in pairs)
    return (f"{name:<{size}}  {value}" for name, value in pairs)


def progress_text(rows: int, seconds: float, lag: float | None, results: int) -> str:
    """Format the progress of a query: rows, rate, lag and results."""
    behind = "" if lag is None else f"  lag {lag:.1f} s"
    return f"{rows:,} rows  {rows / max(seconds, 1e-9):,.0f} rows/s{behind}  {results:,} results"
