"""A join on Spark as a value: what travels to the tasks, and what a checkpoint must agree with."""

from __future__ import annotations

import hashlib
import json
import uuid
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import pyarrow as pa

from handshake.engines.spark.routing import Routing, routing_of
from handshake.engines.spark.versions import Versions, check_versions
from handshake.joins.core import JoinCore
from handshake.joins.spec import JoinSpec, join_spec
from handshake.joins.tuning import TUNING, Tuning
from handshake.plan.expr import Expr, show
from handshake.windows import Windows

__all__ = ["Definition", "segment_keys"]


_PARTITIONS = "shuffle partitions"


@dataclass(frozen=True, eq=False)
class Definition:
    """Everything that tasks need to know. The analysed join is made from it once per worker.

    Tasks get copies; those of one definition are equal by their `identity`.
    """

    left: pa.Schema
    right: pa.Schema
    on: Expr
    windows: Windows
    times: tuple[str | None, str | None]
    method: str
    suffix: str
    aliases: tuple[str, str] | None
    segments: int
    partitions: int
    """Shuffle partitions that the keys of the segments were chosen for."""
    root: str
    marker: str
    """A file under the root by which an executor sees that it looks at the same directory."""
    retain: int
    """Batches that a checkpoint can be set back by."""
    scratch: str = ""
    """Where a batch join writes under the root."""
    spread: bool = False
    """Whether tuples go to all segments, whatever the predicate says."""
    versions: Versions = ()
    """What the driver runs; workers that run something else refuse to work for it."""
    tuning: Tuning = TUNING
    identity: str = field(default_factory=lambda: uuid.uuid4().hex)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Definition) and self.identity == other.identity

    def __hash__(self) -> int:
        return hash(self.identity)

    @cached_property
    def described(self) -> dict[str, Any]:
        """What a restarted query must have in common with its checkpoint, by name."""
        return {
            "predicate": show(self.on),
            "method": self.method,
            "windows": str(self.windows),
            "left columns": _columns(self.left),
            "right columns": _columns(self.right),
            "time columns": list(self.times),
            "segments": self.segments,
            _PARTITIONS: self.partitions,
        }

    @cached_property
    def fingerprint(self) -> str:
        """One text for all of it but the number of partitions, by which no file is found or missed."""
        described = {name: value for name, value in self.described.items() if name != _PARTITIONS}
        told = json.dumps([described, self.method, self.suffix, self.aliases, self.spread], sort_keys=True)
        return hashlib.sha256(told.encode()).hexdigest()[:16]

    @property
    def spec(self) -> JoinSpec:
        """The analysed join."""
        return _prepared(self).core.spec

    @property
    def core(self) -> JoinCore:
        """A join core whose compiled kernels outlive the task."""
        return _prepared(self).core

    @property
    def routing(self) -> Routing:
        """Which segments tuples go to."""
        return _prepared(self).routing

    @cached_property
    def keys(self) -> tuple[int, ...]:
        """The grouping keys of the segments."""
        return segment_keys(self.segments, self.partitions)

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    def __setstate__(self, state: dict[str, Any]) -> None:
        check_versions(state["versions"])
        self.__dict__.update(state)


@dataclass(frozen=True)
class _Prepared:
    core: JoinCore
    routing: Routing


@lru_cache(maxsize=64)
def _prepared(definition: Definition) -> _Prepared:
    """Kept in this process: Spark's workers outlive their tasks, and compiling takes half a second."""
    spec = join_spec(
        definition.left, definition.right, definition.on, definition.windows, times=definition.times,
        method=definition.method, suffix=definition.suffix, aliases=definition.aliases,
        tuning=definition.tuning,
    )  # fmt: skip
    routing = Routing("all", "the static side is dealt out evenly") if definition.spread else None
    return _Prepared(JoinCore(spec), routing or routing_of(spec, definition.segments))


def _columns(schema: pa.Schema) -> list[str]:
    return [f"{field.name} {field.type}" for field in schema]


def segment_keys(segments: int, partitions: int) -> tuple[int, ...]:
    """Keys that Spark's hash partitioning puts into partitions of their own, as far as there are enough."""
    keys: dict[int, list[int]] = {}
    found, key = 0, 0
    most = -(-segments // partitions)
    while found < segments:
        mine = keys.setdefault(spark_hash(key) % partitions, [])
        if len(mine) < most:
            mine.append(key)
            found += 1
        key += 1
    return tuple(sorted(key for mine in keys.values() for key in mine))


def spark_hash(value: int, seed: int = 42) -> int:
    """Spark's hash of a 32-bit integer (Murmur3), by which it partitions.

    >>> spark_hash(0), spark_hash(1)
    (933211791, -559580957)
    """
    k = (value & _WORD) * 0xCC9E2D51 & _WORD
    k = _rotated(k, 15) * 0x1B873593 & _WORD
    h = _rotated((seed ^ k) & _WORD, 13) * 5 + 0xE6546B64 & _WORD
    h ^= 4
    h = (h ^ h >> 16) * 0x85EBCA6B & _WORD
    h = (h ^ h >> 13) * 0xC2B2AE35 & _WORD
    h ^= h >> 16
    return h - (1 << 32) if h >> 31 else h


_WORD = 0xFFFFFFFF


def _rotated(word: int, by: int) -> int:
    return (word << by | word >> 32 - by) & _WORD
