"""Nets below and of window joins: streams in lock step, and the join."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from handshake.engines.circuit.components.block import Block
from handshake.engines.circuit.components.sequence import Claim, LockstepUnion, Mask, Sequence
from handshake.engines.circuit.components.window_join import JoinSpec, WindowJoin
from handshake.engines.circuit.nets.netlist import NaryNet, StageNet


@dataclass(frozen=True)
class SequenceNet(NaryNet):
    """One of the inputs of joins, in lock step with the others."""

    chosen: int

    @property
    def unit(self) -> Hashable:
        return ("sequence", *(id(source) for source in self.sources))

    @property
    def port(self) -> str:
        return f"o{self.chosen}"

    def block(self) -> Block:
        return Sequence(tuple(source.row for source in self.sources))


@dataclass(frozen=True)
class MaskNet(StageNet):
    """Selection in lock step."""

    field: str

    def block(self) -> Block:
        return Mask(self.source.row, self.field, registered=self.registered)


@dataclass(frozen=True)
class ClaimNet(StageNet):
    """De-multiplexing in lock step."""

    field: str
    values: tuple[int | str, ...]
    everyone: tuple[int | str, ...] | None

    def block(self) -> Block:
        return Claim(self.source.row, self.field, self.values, self.everyone, registered=self.registered)


@dataclass(frozen=True)
class LockstepUnionNet(NaryNet):
    """Union in lock step."""

    def block(self) -> Block:
        return LockstepUnion(self.sources[0].row, len(self.sources))


@dataclass(frozen=True)
class JoinNet(NaryNet):
    """The join of two streams or more."""

    spec: JoinSpec

    def block(self) -> Block:
        return WindowJoin(tuple(source.row for source in self.sources), self.spec)
