"""The manifest: the state of a segment, a few kilobytes in Spark's state store that refer to chunk files."""

from __future__ import annotations

import base64
import json
import struct
import zlib
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from handshake.engines.spark.joins.definition import Definition
from handshake.engines.spark.joins.routing import Epoch, Router
from handshake.engines.spark.state.chunks import ChunkRef
from handshake.engines.spark.state.clocks import Clocks
from handshake.engines.spark.state.store import StateError
from handshake.joins.states import RowStates

_VERSION = 4
"""The version of the format: 1 has fields alone, 2 adds states of rows, 3 facts for readers from outside, 4 a
checksum."""
_SUM = struct.Struct("<4sI")
"""A mark, and the checksum (CRC-32) of everything behind it; versions 2 and 3 have only the mark."""
_HEAD = struct.Struct("<III")
"""The lengths of the parts: fields, and the states of both sides."""
_MARK, _MARK_WITHOUT_SUM = b"hsm4", b"hsm2"
_WRONG_FIELDS = (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError)
"""Errors over fields that are missing or of another type."""
Refs = tuple[list[ChunkRef], list[ChunkRef]]
States = tuple[RowStates | None, ...]


@dataclass
class About:
    """Facts about a segment that its query does not need, but readers from outside do."""

    segment: int = 0
    batch: int = -1
    """The micro-batch that wrote the manifest."""
    since: int = -1
    """The first micro-batch with the present definition of the join."""
    run: str = ""
    """The run of the query that wrote the manifest."""
    retain: int = 100
    """The number of past micro-batches that a checkpoint can return to."""
    unit: str = "us"
    stamps: list[str | None] = field(default_factory=lambda: [None, None])
    """The columns by which rows of each side expire."""
    oldest: list[int | None] = field(default_factory=lambda: [None, None])
    """The oldest stamp of each side that can still join; older rows have expired."""
    held: list[list[int] | None] = field(default_factory=lambda: [None, None])
    """The extremes of these stamps in the chunks of each side."""
    published: list[int] = field(default_factory=list)
    """The micro-batches of which a copy of the manifest is in the state directory."""


@dataclass
class Manifest:
    """The state of a segment between micro-batches."""

    plan: dict[str, Any]
    place: str
    """The folder of this segment's files."""
    owner: str
    """The prefix of the names of its files, by which it finds files to remove."""
    router: Router
    updates: int = 0
    arrived: list[int] = field(default_factory=lambda: [0, 0])
    watermark: int | None = None
    windows: Refs = field(default_factory=lambda: ([], []))
    guests: Refs = field(default_factory=lambda: ([], []))
    """Tuples whose home is another segment, if both sides are anchored."""
    states: States = (None, None)
    """Which tuples of anchored sides have matched."""
    timer: int | None = None
    """When Spark calls this segment although there are no new tuples, in milliseconds of event time."""
    dropped: list[tuple[str, int]] = field(default_factory=list)
    """Files that the windows no longer need, and the update since which they do not."""
    clocks: Clocks = field(default_factory=Clocks)
    """The clocks of both streams, if silent ones are left out of the watermark."""
    about: About = field(default_factory=lambda: About())
    """Facts for readers outside of the query."""

    @property
    def refs(self) -> list[ChunkRef]:
        """All chunks that it refers to."""
        return [ref for held in (*self.windows, *self.guests) for ref in held]

    @classmethod
    def fresh(cls, definition: Definition, place: str, owner: str) -> Manifest:
        """Return the manifest before the first batch."""
        router = Router.fresh(definition.segments, definition.routing.cells)
        states = tuple(RowStates() if anchored else None for anchored in definition.anchored)
        return cls(definition.properties, place, owner, router, states=states)

    def dump(self, version: int = _VERSION) -> bytes:
        """Serialise the manifest for the state store."""
        fields = {
            "version": version,
            "plan": self.plan,
            "place": self.place,
            "owner": self.owner,
            "updates": self.updates,
            "arrived": self.arrived,
            "watermark": self.watermark,
            "windows": [[asdict(ref) for ref in side] for side in self.windows],
            "guests": [[asdict(ref) for ref in side] for side in self.guests],
            "timer": self.timer,
            "dropped": self.dropped,
            "weights": base64.b64encode(self.router.weights.astype("<f8").tobytes()).decode(),
            "epochs": [[epoch.cuts, epoch.newest, epoch.guests] for epoch in self.router.epochs],
            "rested": self.router.rested,
            "clocks": asdict(self.clocks),
            "about": asdict(self.about),
        }
        head = zlib.compress(json.dumps(fields).encode(), 1)
        parts = [b"" if states is None else states.dump() for states in self.states]
        body = b"".join((_HEAD.pack(len(head), *map(len, parts)), head, *parts))
        return _SUM.pack(_MARK, zlib.crc32(body)) + body

    @classmethod
    def parse(cls, data: bytes) -> Manifest:
        """Load a manifest of any join; refuse damage, and a version that this release does not know."""
        try:
            return cls._parse(data)
        except (zlib.error, struct.error, *_WRONG_FIELDS) as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            raise StateError(
                f"the join's state is damaged ({reason}); restore the checkpoint, or start from a new one"
            ) from error

    @classmethod
    def _parse(cls, data: bytes) -> Manifest:
        head, *parts = _parts(data)
        fields = json.loads(zlib.decompress(head))
        if fields["version"] > _VERSION:
            raise StateError(
                f"the checkpoint holds join state of version {fields['version']}, this release reads up to "
                f"version {_VERSION}; go on with the release that wrote it, or start from a new checkpoint"
            )
        weights = np.frombuffer(base64.b64decode(fields["weights"]), "<f8").copy()
        epochs = [Epoch(*epoch) for epoch in fields["epochs"]]
        router = Router(fields["plan"]["segments"], len(weights), weights, epochs, fields["rested"])
        states = tuple(RowStates.load(part) if part else None for part in parts)
        return cls(
            fields["plan"], fields["place"], fields["owner"], router, fields["updates"], fields["arrived"],
            fields["watermark"], _refs(fields["windows"]), _refs(fields.get("guests", [[], []])), states,
            fields.get("timer"), [(name, update) for name, update in fields["dropped"]],
            Clocks(**fields.get("clocks", {})), About(**fields.get("about", {})),
        )  # fmt: skip


def _parts(data: bytes) -> list[bytes]:
    """Return the fields and the states of both sides; the first version has fields alone."""
    if data.startswith(_MARK):
        body = data[_SUM.size :]
        if _SUM.unpack_from(data)[1] != zlib.crc32(body):
            raise ValueError("the checksum of a manifest is wrong")
    elif data.startswith(_MARK_WITHOUT_SUM):
        body = data[len(_MARK_WITHOUT_SUM) :]
    else:
        return [data, b"", b""]
    ends = np.cumsum([_HEAD.size, *_HEAD.unpack_from(body)]).tolist()
    return [body[start:end] for start, end in pairwise(ends)]


def _refs(sides: list[list[dict[str, Any]]]) -> Refs:
    left, right = ([ChunkRef(**ref) for ref in side] for side in sides)
    return left, right


def describe_value(value: Any) -> str:
    """Return a property of a join as text."""
    return "(" + ", ".join(map(str, value)) + ")" if isinstance(value, list) else f"{value}"
