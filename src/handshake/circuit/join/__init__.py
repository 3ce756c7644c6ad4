"""Handshake join in hardware: join cores in a line, a merging network, and admission control."""

from handshake.circuit.join.condition import Condition
from handshake.circuit.join.design import Design, original
from handshake.circuit.join.host import JoinRun, condition_of, design_of, run_join
from handshake.circuit.join.join import HandshakeJoin
from handshake.circuit.join.nested import NestedLoops

__all__ = [
    "Condition",
    "Design",
    "HandshakeJoin",
    "JoinRun",
    "NestedLoops",
    "condition_of",
    "design_of",
    "original",
    "run_join",
]
