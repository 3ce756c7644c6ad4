"""Bids and offers that the examples of sources join: generated rows, three minutes long."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

SCHEMA = "time timestamp, id int, price double"
SIDES = ("bids", "offers")


def make_rows() -> dict[str, list[dict[str, Any]]]:
    """Return two bids and two offers per second, with prices near 100; times are up to 2 s out of order."""
    chance, start = random.Random(20), datetime(2026, 3, 2, 14, tzinfo=UTC)
    return {
        side: [
            {
                "time": start + timedelta(milliseconds=500 * tick - chance.randrange(2000)),
                "id": tick,
                "price": round(chance.gauss(100, 2), 2),
            }
            for tick in range(360)
        ]
        for side in SIDES
    }
