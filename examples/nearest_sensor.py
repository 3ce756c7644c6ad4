"""Find the sensors nearest to each alarm: a nearest join of two streams in one process.

An alarm is compared with the readings less than a minute away from it in time, on its own floor. The three
readings nearest to it in space are its results, once no nearer one can come.

    python examples/nearest_sensor.py
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

import handshake

ALARM = pa.schema(
    [
        ("t", pa.int64()),
        ("alarm", pa.int32()),
        ("floor", pa.int32()),
        ("x", pa.float64()),
        ("y", pa.float64()),
    ]
)
READING = pa.schema(
    [
        ("t", pa.int64()),
        ("sensor", pa.int32()),
        ("floor", pa.int32()),
        ("x", pa.float64()),
        ("y", pa.float64()),
        ("celsius", pa.float64()),
    ]
)

Rows = list[dict[str, Any]]


def start() -> handshake.NearestJoin:
    """Start a join of alarms with the three nearest readings of their floor, a minute around them."""
    return handshake.NearestJoin(
        left=ALARM,
        right=READING,
        on="l.floor = r.floor",
        by="POWER(l.x - r.x, 2) + POWER(l.y - r.y, 2)",
        k=3,
        value="distance2",
        window="1 minute",
        time="t",
    )


def make_rows() -> tuple[Rows, Rows]:
    """Generate ten minutes: an alarm every ten seconds, and a reading of some sensor every second."""
    chance = random.Random(3)
    sensors = [(chance.randrange(3), chance.uniform(0, 50), chance.uniform(0, 20)) for _ in range(40)]
    alarms: Rows = []
    readings: Rows = []
    for second in range(600):
        if second % 10 == 0:
            at = {"x": chance.uniform(0, 50), "y": chance.uniform(0, 20)}
            alarms.append({"t": second, "alarm": second // 10, "floor": chance.randrange(4), **at})
        sensor = chance.randrange(len(sensors))
        floor, x, y = sensors[sensor]
        celsius = round(chance.gauss(21, 2), 1)
        readings.append({"t": second, "sensor": sensor, "floor": floor, "x": x, "y": y, "celsius": celsius})
    return alarms, readings


def run() -> Iterator[dict[str, Any]]:
    """Push the streams minute by minute; yield the nearest readings of each alarm, once they are certain."""
    alarms, readings = make_rows()
    join = start()
    for minute in range(0, 600, 60):
        for push, rows in ((join.push_left, alarms), (join.push_right, readings)):
            for batch in push([row for row in rows if minute <= row["t"] < minute + 60]):
                yield from batch.to_pylist()
    for batch in join.finish():
        yield from batch.to_pylist()


if __name__ == "__main__":
    found = list(run())
    print(f"{len({row['alarm'] for row in found})} alarms, {len(found)} results")
    for row in found[:3]:
        meters = row["distance2"] ** 0.5
        print(f"alarm {row['alarm']}: {row['rank']}. sensor {row['sensor']}, {meters:.1f} m away")
