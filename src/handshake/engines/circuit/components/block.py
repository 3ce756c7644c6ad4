"""Components: ports, parameters, and a latency and an issue rate that tests measure."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Hashable, Mapping
from typing import Any, Protocol, runtime_checkable

from amaranth.hdl import Module
from amaranth.lib import wiring

COUNTER = 32
"""Bits of a counter."""


@runtime_checkable
class Sharing(Protocol):
    """A way of elaborating that writes each distinct component once and instantiates it."""

    def instance(self, block: Block) -> Any:
        """Return an instance of the module that `block` becomes."""


class Block(wiring.Component):
    """A component of the library.

    `parameters` are everything that its circuit depends on: two blocks of the same class and parameters
    are the same circuit, written once. Give `parameters=None` where that cannot be said.
    """

    _MustUse__silence = True  # blocks are also made to ask them for their rows and latencies

    latency: int = 1
    """Cycles from the beat that completes a result to that result, when nothing is held back."""
    issue_rate: float = 1.0
    """Tuples per cycle that the block accepts, when nothing is held back."""

    counters: tuple[str, ...] = ()
    """Outputs that count what a user should know of: tuples dropped, late, and so on."""

    flags: tuple[str, ...] = ()
    """Outputs that a template of several copies shows put together by OR."""

    def __init__(self, ports: Mapping[str, Any], parameters: Hashable = None) -> None:
        self.parameters = parameters
        super().__init__(dict(ports))

    @abstractmethod
    def build(self) -> Module:
        """Return the circuit."""

    def elaborate(self, platform: Any) -> Any:
        """Return the circuit itself, or an instance of it if circuits are shared."""
        if isinstance(platform, Sharing) and self.parameters is not None:
            return platform.instance(self)
        return self.build()

    @property
    def title(self) -> str:
        """Module name and caption in pictures: the class in lower case with underscores."""
        return re.sub(r"(?<!^)(?=[A-Z])", "_", type(self).__name__).lower()
