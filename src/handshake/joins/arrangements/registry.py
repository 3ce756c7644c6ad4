"""The arrangements that users choose from, by name.

To add one, write its module and name its class in `ARRANGEMENTS`. Checks, plans and the command line follow.
"""

from __future__ import annotations

from handshake.errors import UnsupportedError
from handshake.joins.arrangements.arrangement import Arrangement
from handshake.joins.arrangements.cell.cell import Cell
from handshake.joins.arrangements.gpu import OnGpu
from handshake.joins.arrangements.handshake.line import Handshake
from handshake.joins.arrangements.low_latency.low_latency import LowLatency
from handshake.joins.arrangements.placement import placement, usable_cores
from handshake.joins.arrangements.three_step import ThreeStep

ARRANGEMENTS: dict[str, type[Arrangement]] = {
    kind.name: kind for kind in (ThreeStep, Cell, Handshake, LowLatency, OnGpu)
}
ALGORITHMS = tuple(name for name in ARRANGEMENTS if name != "gpu")

_MOST_CORES = 4096
"""A limit far above any machine, so that a wrong number is an error instead of endless threads."""


def cores_of(algorithm: str, cores: int | None) -> int:
    """Return how many cores an arrangement runs on: as asked, or all.

    Raises:
        UnsupportedError: There are more cores than any machine has.
    """
    if cores is not None and cores > _MOST_CORES:
        raise UnsupportedError(f"cores={cores} is too many; a join runs on at most {_MOST_CORES} cores")
    if not ARRANGEMENTS[algorithm].threads:
        return 1
    return usable_cores() if cores is None else int(cores)


def check_adapt(algorithm: str, adapt: bool) -> None:
    """Raise `UnsupportedError` if the arrangement cannot change its number of cores with the load."""
    if adapt and not ARRANGEMENTS[algorithm].adapts:
        able = ", ".join(f"'{name}'" for name, kind in ARRANGEMENTS.items() if kind.adapts)
        raise UnsupportedError(
            f"cores come and go with the load under algorithm {able} only, and '{algorithm}' was given; "
            f"choose {able.replace(chr(39), '')}, or a fixed number of cores"
        )


def check_device(device: str, algorithm: str, cores: int | None, *, adapt: bool, pin: bool) -> None:
    """Raise `UnsupportedError` if an option is not for a GPU."""
    if device == "cpu":
        return
    given = {"algorithm": algorithm != "low_latency", "cores": cores is not None, "adapt": adapt, "pin": pin}
    for name, is_given in given.items():
        if is_given:
            raise UnsupportedError(f'{name} is for joins on processor cores; leave it out with device="gpu"')


def cpus_of(algorithm: str, cores: int) -> tuple[int, ...]:
    """Return the processors to pin the cores of an arrangement to."""
    if not ARRANGEMENTS[algorithm].threads:
        raise UnsupportedError(
            f"{algorithm} runs in the caller's thread, which is not pinned; choose another algorithm, "
            "or leave pin out"
        )
    return placement(cores)
