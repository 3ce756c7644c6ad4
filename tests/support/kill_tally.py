"""The tally of processes and hosts that tests killed in the middle of joins on Spark.

Tests add a line per run to the file that HANDSHAKE_TALLY names. `python tests/support/kill_tally.py` counts
the lines of bench/results/spark_kills.jsonl.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

TALLY = Path(__file__).parents[2] / "bench" / "results" / "spark_kills.jsonl"
STATES = ("directory", "store", "s3", "files", "store files")
"""Places of the state; with "files", results and late rows go to files, and the state is in a directory."""
FORM = "{:24}" + "{:>12}" * len(STATES) + "{:>9}"


@contextmanager
def counted_kills(**facts: Any) -> Iterator[Counter[str]]:
    """Give a counter of victims, which is added to the tally at the end, whether the test passed or not."""
    kills: Counter[str] = Counter()
    exact = False
    try:
        yield kills
        exact = True
    finally:
        file = os.environ.get("HANDSHAKE_TALLY")
        if file:
            line = {"date": f"{datetime.now(UTC):%Y-%m-%d}", **facts, "kills": dict(kills), "exact": exact}
            with open(file, "a") as sink:
                sink.write(json.dumps(line) + "\n")


def summary(lines: list[dict[str, Any]]) -> str:
    """Return the kills per victim and per kind of state, and the runs whose results were not exact."""
    kills = Counter[tuple[str, str]]()
    for line in lines:
        for victim, number in line["kills"].items():
            kills[victim, line["state"]] += number
    table = [FORM.format("kills", *STATES, "all")]
    for victim in sorted({victim for victim, _ in kills}):
        counts = [kills[victim, state] for state in STATES]
        table.append(FORM.format(victim, *counts, sum(counts)))
    sums = [sum(number for (_, at), number in kills.items() if at == state) for state in STATES]
    table.append(FORM.format("all", *sums, kills.total()))
    wrong = sum(not line["exact"] for line in lines)
    return "\n".join([*table, f"RESULT kills={kills.total()} runs={len(lines)} not_exact={wrong}"])


if __name__ == "__main__":
    file = Path(sys.argv[1]) if len(sys.argv) > 1 else TALLY
    print(summary([json.loads(line) for line in file.read_text().splitlines()]))
