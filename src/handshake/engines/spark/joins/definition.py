"""The definition of a join on Spark, which is sent to tasks and compared with checkpoints."""

from __future__ import annotations

import hashlib
import json
import uuid
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import pyarrow as pa

from handshake.engines.spark.joins.routing import Routing, choose_routing
from handshake.engines.spark.workers import Versions, check_versions
from handshake.joins.core import JoinCore
from handshake.joins.ranking import Ranking
from handshake.joins.spec import JoinSpec, join_spec
from handshake.joins.tuning import TUNING, Tuning
from handshake.joins.waiting import BestMatch
from handshake.kinds import INNER, JoinKind
from handshake.options import Options
from handshake.plan.expr import Expr, show
from handshake.schema import UNITS
from handshake.windows import Duration, Windows

EACH_BATCH = "batch"
"""The value of `refresh` for every micro-batch."""
_PARTITIONS = "shuffle partitions"
_DEFAULTS = Options()


class Idle(NamedTuple):
    """The rule for silent streams; all times in milliseconds."""

    after: int
    """How long a stream must be silent to be left out of the watermark."""
    delays: tuple[int, int]
    """The delays of the watermarks of both streams."""


@dataclass(frozen=True, eq=False)
class Definition:
    """A join as a value that tasks receive.

    Each worker analyses and compiles it once. Copies of one definition are equal by their `identity`.
    """

    left: pa.Schema
    right: pa.Schema
    on: Expr
    windows: Windows
    times: tuple[str | None, str | None]
    suffix: str
    aliases: tuple[str, str] | None
    segments: int
    partitions: int
    """The number of shuffle partitions, for which the keys of the segments are chosen."""
    root: str
    marker: str
    """A file under the root that shows an executor that it sees the driver's directory."""
    retain: int
    """The number of past batches that a checkpoint can return to."""
    kind: JoinKind = INNER
    options: Options = _DEFAULTS
    """The options as the user gave them; folders are absolute."""
    scratch: str = ""
    """The folder of a batch join under the root."""
    streaming: tuple[bool, bool] = (True, True)
    """Which inputs are streams."""
    delays: tuple[int | None, int | None] = (None, None)
    """The delays of their watermarks, in milliseconds."""
    calls_late: bool = False
    """Whether a function of the driver gets late rows (`late`), which then wait in the state directory."""
    ranking: Ranking | None = None
    """The ranking of a nearest join, whose inputs have hidden columns (`joins.nearest`)."""
    best: BestMatch | None = None
    """The algorithm that joins final left rows with their best matches, if the join is such a one."""
    versions: Versions = ()
    """The releases that the driver runs; workers with other releases refuse to work."""
    tuning: Tuning = TUNING
    identity: str = field(default_factory=lambda: uuid.uuid4().hex)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Definition) and self.identity == other.identity

    def __hash__(self) -> int:
        return hash(self.identity)

    @cached_property
    def properties(self) -> dict[str, Any]:
        """The properties that a restarted query must share with its checkpoint, by name."""
        kind = {} if self.kind == INNER else {"kind": self.kind.name}
        best = {} if self.best is None else {"best match": self.best.describe()}
        state = {} if self.options.state == "directory" else {"state": self.options.state}
        return {
            **state,
            **kind,
            **best,
            "predicate": show(self.on),
            "method": self.options.method,
            "windows": str(self.windows),
            "left columns": _columns(self.left),
            "right columns": _columns(self.right),
            "time columns": list(self.times),
            "segments": self.segments,
            _PARTITIONS: self.partitions,
        }

    @property
    def spread(self) -> bool:
        """True if tuples go to all segments, whatever the predicate: a stream passes by a static side."""
        return any(self.streaming) and not all(self.streaming)

    @property
    def result_time(self) -> str | None:
        """The column with the time of results, if segments compute it."""
        computed = self.kind != INNER or self.options.results_to is not None
        return self.options.result_time if computed and all(self.streaming) else None

    @property
    def keeps_late(self) -> bool:
        """True if late rows are kept: for a function, or in a folder that the user names."""
        return self.calls_late or self.options.late_to is not None

    @cached_property
    def idle(self) -> Idle | None:
        """The rule for silent streams; None if they hold back the watermark."""
        if self.options.idle is None:
            return None
        after = Duration.parse(self.options.idle).nanoseconds // UNITS["ms"]
        return Idle(after, (self.delays[0] or 0, self.delays[1] or 0))

    @cached_property
    def refresh(self) -> float | None:
        """Seconds after which a static side is read again; 0: in every micro-batch; None: never."""
        text = self.options.refresh
        if text is None or text == EACH_BATCH:
            return None if text is None else 0.0
        return Duration.parse(text).nanoseconds / 1e9

    @property
    def anchored(self) -> tuple[bool, bool]:
        """Sides whose tuples find all their pairs in their homes, which know whether they have matched."""
        return self.kind.tracked

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the definition without the number of partitions, for the names of folders."""
        shared = {name: value for name, value in self.properties.items() if name != _PARTITIONS}
        spelled = [shared, self.options.method, self.suffix, self.aliases, self.spread]
        text = json.dumps(spelled, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def spec(self) -> JoinSpec:
        """The analysed join."""
        return self.core.spec

    @property
    def output(self) -> pa.Schema:
        """The columns of the results that segments make."""
        if self.ranking is not None:
            return self.ranking.output
        if self.best is not None and self.best.output is not None:
            return self.best.output
        if self.result_time is None:
            return self.spec.output
        return self.spec.output.append(pa.field(self.result_time, self.left.field(self.times[0]).type))

    @property
    def core(self) -> JoinCore:
        """A join core, whose compiled kernels outlive the task."""
        return _prepare(self)[0]

    @property
    def routing(self) -> Routing:
        """The rule that sends tuples to segments."""
        return _prepare(self)[1]

    @cached_property
    def keys(self) -> tuple[int, ...]:
        """The grouping keys of the segments."""
        return segment_keys(self.segments, self.partitions)

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    def __setstate__(self, state: dict[str, Any]) -> None:
        check_versions(state["versions"])
        self.__dict__.update(state)


@lru_cache(maxsize=64)
def _prepare(definition: Definition) -> tuple[JoinCore, Routing]:
    """Analyse a join; cached, because workers outlive their tasks and compiling takes half a second."""
    spec = join_spec(
        definition.left, definition.right, definition.on, definition.windows, times=definition.times,
        method=definition.options.method, suffix=definition.suffix, aliases=definition.aliases,
        tuning=definition.tuning, kind=definition.kind,
        ordered=definition.result_time is not None and definition.kind != INNER,
    )  # fmt: skip
    routing = Routing("all", "the static side is divided evenly") if definition.spread else None
    return JoinCore(spec), routing or choose_routing(spec, definition.segments)


def _columns(schema: pa.Schema) -> list[str]:
    return [f"{field.name} {field.type}" for field in schema]


def segment_keys(segments: int, partitions: int) -> tuple[int, ...]:
    """Return grouping keys that Spark's hash partitioning spreads evenly over the partitions."""
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
    """Return the hash (Murmur3) by which Spark partitions 32-bit integers.

    >>> spark_hash(0), spark_hash(1)
    (933211791, -559580957)
    """
    k = (value & _WORD) * 0xCC9E2D51 & _WORD
    k = _rotate(k, 15) * 0x1B873593 & _WORD
    h = _rotate((seed ^ k) & _WORD, 13) * 5 + 0xE6546B64 & _WORD
    h ^= 4
    h = (h ^ h >> 16) * 0x85EBCA6B & _WORD
    h = (h ^ h >> 13) * 0xC2B2AE35 & _WORD
    h ^= h >> 16
    return h - (1 << 32) if h >> 31 else h


_WORD = 0xFFFFFFFF


def _rotate(word: int, by: int) -> int:
    return (word << by | word >> 32 - by) & _WORD
