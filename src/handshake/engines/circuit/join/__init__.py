"""Handshake join in hardware: join cores in a line, a merging network, and admission control."""

from handshake.engines.circuit.join.condition import PairGates
from handshake.engines.circuit.join.design import Design
from handshake.engines.circuit.join.host import JoinRun, condition_of, design_of, run_join
from handshake.engines.circuit.join.join import HandshakeJoin

__all__ = ["Design", "HandshakeJoin", "JoinRun", "PairGates", "condition_of", "design_of", "run_join"]
