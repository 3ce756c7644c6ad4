"""The manifest: a segment's whole state, a few kilobytes in Spark's state store that refer to chunk files."""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from handshake.engines.spark.definition import Definition
from handshake.engines.spark.routing import Epoch, Router
from handshake.engines.spark.state.chunks import Ref
from handshake.engines.spark.state.store import StateError

__all__ = ["Manifest"]

_VERSION = 1


@dataclass
class Manifest:
    """What a segment remembers from batch to batch."""

    plan: dict[str, Any]
    place: str
    """The folder of this segment's files."""
    owner: str
    """Begins the names of its files there, so that it knows which ones to clean up."""
    router: Router
    updates: int = 0
    arrived: list[int] = field(default_factory=lambda: [0, 0])
    watermark: int | None = None
    windows: tuple[list[Ref], list[Ref]] = field(default_factory=lambda: ([], []))
    dropped: list[tuple[str, int]] = field(default_factory=list)
    """Files that the windows no longer need, and the update at which that came to be."""

    @classmethod
    def fresh(cls, definition: Definition, place: str, owner: str) -> Manifest:
        """Before the first batch."""
        router = Router.fresh(definition.segments, definition.routing.cells)
        return cls(definition.described, place, owner, router)

    def dump(self) -> bytes:
        """As bytes for the state store."""
        told = {
            "version": _VERSION,
            "plan": self.plan,
            "place": self.place,
            "owner": self.owner,
            "updates": self.updates,
            "arrived": self.arrived,
            "watermark": self.watermark,
            "windows": [[ref.told() for ref in side] for side in self.windows],
            "dropped": self.dropped,
            "weights": base64.b64encode(self.router.weights.astype("<f8").tobytes()).decode(),
            "epochs": [[epoch.cuts, epoch.newest] for epoch in self.router.epochs],
            "rested": self.router.rested,
        }
        return zlib.compress(json.dumps(told).encode(), 1)

    @classmethod
    def load(cls, data: bytes, definition: Definition) -> Manifest:
        """From the state store; refuses a state that another join has written."""
        told = json.loads(zlib.decompress(data))
        if told["version"] != _VERSION:
            raise StateError(
                f"the checkpoint holds join state of version {told['version']}, this release reads version "
                f"{_VERSION}; go on with the release that wrote it, or start from a new checkpoint"
            )
        _check(told["plan"], definition.described)
        weights = np.frombuffer(base64.b64decode(told["weights"]), "<f8").copy()
        epochs = [Epoch(cuts, newest) for cuts, newest in told["epochs"]]
        router = Router(definition.segments, definition.routing.cells, weights, epochs, told["rested"])
        left, right = ([Ref(**ref) for ref in side] for side in told["windows"])
        return cls(
            told["plan"], told["place"], told["owner"], router, told["updates"], told["arrived"],
            told["watermark"], (left, right), [(name, update) for name, update in told["dropped"]],
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
