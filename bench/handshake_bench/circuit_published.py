"""Figures about handshake join on FPGAs that the papers state in text and tables.

`oge`: Oge and others, An implementation of handshake join on FPGA, 2011 (Virtex-6 XC6VLX240T-1).
`teubner`: Teubner and Müller, How soccer players would do stream joins, SIGMOD 2011 (Virtex-6 XC6VLX760T).
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "CORES", "OGE_CLOCK", "OGE_SLICES_AT_64", "RATE", "TABLE", "TEUBNER_CLOCK", "WINDOW", "PowerRow",
]  # fmt: skip

CORES = (2, 4, 8, 16, 32, 64)
OGE_CLOCK = 150.0
"""Figure 10: all maximum frequencies are nearly 150 MHz."""
OGE_SLICES_AT_64 = 0.80
"""Figure 11: nearly 80 % of the slices with 64 join cores."""
TEUBNER_CLOCK = (150.0, 170.0)
"""Figure 18: 150 to 170 MHz, up to 200 cores."""
RATE, WINDOW = 500_000, 100
"""Tables 1 and 2: tuples per second, and tuples per window."""


@dataclass(frozen=True)
class PowerRow:
    """A row of table 1, with the total of table 2: clock in MHz, power in mW, look-up tables in %."""

    cores: int
    clock: float
    dynamic: float
    static: float
    luts: float
    weighted: float


TABLE = (
    PowerRow(1, 50, 100, 4398, 1.54, 168),
    PowerRow(2, 25, 64, 4396, 1.59, 133),
    PowerRow(5, 10, 62, 4395, 2.01, 150),
    PowerRow(10, 5, 68, 4306, 2.78, 188),
)
