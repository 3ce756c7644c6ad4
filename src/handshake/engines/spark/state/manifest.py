"""The manifest: the state of a segment, a few kilobytes in Spark's state store that refer to chunk files."""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from handshake.engines.spark.joins.definition import Definition
from handshake.engines.spark.joins.routing import Epoch, Router
from handshake.engines.spark.state.chunks import ChunkRef
from handshake.engines.spark.state.store import StateError

__all__ = ["Manifest"]

_VERSION = 1


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
    windows: tuple[list[ChunkRef], list[ChunkRef]] = field(default_factory=lambda: ([], []))
    dropped: list[tuple[str, int]] = field(default_factory=list)
    """Files that the windows no longer need, and the update since which they do not."""

    @classmethod
    def fresh(cls, definition: Definition, place: str, owner: str) -> Manifest:
        """Return the manifest before the first batch."""
        router = Router.fresh(definition.segments, definition.routing.cells)
        return cls(definition.properties, place, owner, router)

    def dump(self) -> bytes:
        """Serialise the manifest for the state store."""
        fields = {
            "version": _VERSION,
            "plan": self.plan,
            "place": self.place,
            "owner": self.owner,
            "updates": self.updates,
            "arrived": self.arrived,
            "watermark": self.watermark,
            "windows": [[asdict(ref) for ref in side] for side in self.windows],
            "dropped": self.dropped,
            "weights": base64.b64encode(self.router.weights.astype("<f8").tobytes()).decode(),
            "epochs": [[epoch.cuts, epoch.newest] for epoch in self.router.epochs],
            "rested": self.router.rested,
        }
        return zlib.compress(json.dumps(fields).encode(), 1)

    @classmethod
    def load(cls, data: bytes, definition: Definition) -> Manifest:
        """Load a manifest from the state store; refuse the state of another join."""
        fields = json.loads(zlib.decompress(data))
        if fields["version"] != _VERSION:
            raise StateError(
                f"the checkpoint holds join state of version {fields['version']}, this release reads version "
                f"{_VERSION}; go on with the release that wrote it, or start from a new checkpoint"
            )
        _check(fields["plan"], definition.properties)
        weights = np.frombuffer(base64.b64decode(fields["weights"]), "<f8").copy()
        epochs = [Epoch(cuts, newest) for cuts, newest in fields["epochs"]]
        router = Router(definition.segments, definition.routing.cells, weights, epochs, fields["rested"])
        left, right = ([ChunkRef(**ref) for ref in side] for side in fields["windows"])
        return cls(
            fields["plan"], fields["place"], fields["owner"], router, fields["updates"], fields["arrived"],
            fields["watermark"], (left, right), [(name, update) for name, update in fields["dropped"]],
        )  # fmt: skip


_REMEDIES = {
    "segments": "pass segments={}",
    "shuffle partitions": "set spark.sql.shuffle.partitions to {} before handshake.join is called",
}


def _check(held: dict[str, Any], wanted: dict[str, Any]) -> None:
    for name, value in wanted.items():
        if held.get(name) != value:
            remedy = _REMEDIES.get(name, "put it back").format(held.get(name))
            verb = "were" if name.endswith("s") else "was"
            raise StateError(
                f"this checkpoint belongs to another join: its {name} {verb} {_text(held.get(name))}, now "
                f"{_text(value)}; {remedy}, or start from a new checkpoint"
            )


def _text(value: Any) -> str:
    return "(" + ", ".join(map(str, value)) + ")" if isinstance(value, list) else f"{value}"
