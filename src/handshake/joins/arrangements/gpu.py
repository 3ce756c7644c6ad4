"""A GPU: the windows are in its memory, and every batch searches them there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from handshake.joins.arrangements.three_step import ThreeStep
from handshake.joins.core import JoinCore


@dataclass
class OnGpu(ThreeStep):
    """A running join whose windows are on a GPU; the caller's thread coordinates."""

    name: ClassVar[str] = "gpu"

    def _make_core(self) -> JoinCore:
        # Imported here, so that joins on processors do not load what only a GPU needs.
        from handshake.joins.device import DeviceCore, ReducingCore
        from handshake.kernels.gpu import driver

        core = DeviceCore if self.spec.reduction is None else ReducingCore
        self._device_core = core(self.spec, self.driver.tracked, device=driver.open_device)
        return self._device_core

    def close(self) -> None:
        """Give the memory of the GPU back."""
        self._device_core.close()
