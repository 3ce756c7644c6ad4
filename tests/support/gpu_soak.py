"""Random joins, or queries that aggregate joins, on the GPU of this machine against the oracle; writes a log.

python tests/support/gpu_soak.py 5000 16 log.txt
python tests/support/gpu_soak.py 5000 16 log.txt queries

The numbers are those of cases, and of processes.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from random import Random


def joins_of(seeds: range) -> tuple[Counter, list[str]]:
    """Run the cases of some seeds: replayed with each tuning, and pushed in random batches."""
    from gpu_joins import SMALL, TUNINGS, band_case, on_gpu, plan_for
    from handshake.errors import HandshakeError
    from pairs import with_row_numbers
    from pushes import check_pushes
    from strategies import make_case

    counts, failures = Counter(), []
    for seed in seeds:
        rng = Random(seed)
        case = band_case(seed, rng.randint(1, 250)) if seed % 4 == 0 else None
        case = case or make_case(seed, rng.randint(0, 250), rng.randint(0, 250))
        for tuning in TUNINGS:
            try:
                counts["replayed" if on_gpu(case, tuning) else "refused"] += 1
            except (AssertionError, HandshakeError) as error:
                failures.append(f"seed {seed}: {type(error).__name__}: {str(error)[:300]}")
        try:
            if seed % 3 == 0 and plan_for(case, with_row_numbers(case), SMALL) is not None:
                check_pushes(case, seed, tuning=SMALL, device="gpu")
                counts["pushed"] += 1
        except (AssertionError, HandshakeError) as error:
            failures.append(f"seed {seed}, pushed: {type(error).__name__}: {str(error)[:300]}")
    return counts, failures


def queries_of(seeds: range) -> tuple[Counter, list[str]]:
    """Run the queries of some seeds, with each tuning in turn."""
    from gpu_joins import TUNINGS
    from gpu_queries import check_query, random_items, random_query
    from handshake.errors import HandshakeError, UnsupportedError

    counts, failures = Counter(), []
    for seed in seeds:
        items = random_items(seed, Random(seed).choice((40, 120, 400)))
        try:
            counts["results"] += check_query(random_query(seed), items, seed, TUNINGS[seed % 3])
            counts["queries"] += 1
        except UnsupportedError:
            counts["refused"] += 1
        except (AssertionError, HandshakeError) as error:
            failures.append(f"seed {seed}: {type(error).__name__}: {str(error)[:300]}")
    return counts, failures


def main(wanted: int, processes: int, log: Path, what: str = "joins") -> int:
    from handshake.kernels.gpu import driver

    began, step, counts, failures = time.time(), 8, Counter(), []
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        start = 0
        while sum(counts[k] for k in ("replayed", "pushed", "queries")) < wanted and len(failures) < 50:
            chunks = [range(start + k, start + k + step) for k in range(0, 4 * step * processes, step)]
            start = chunks[-1].stop
            for found, failed in pool.map(queries_of if what == "queries" else joins_of, chunks):
                counts.update(found)
                failures += failed
    total = counts["replayed"] + counts["pushed"] + counts["queries"]
    cases = f"  replayed {counts['replayed']:,}, pushed in random batches {counts['pushed']:,}"
    lines = [
        f"random {what} on {driver.open_device().name} against the oracle: {total:,}",
        f"  {counts['results']:,} results" if what == "queries" else cases,
        f"  refused for a GPU {counts['refused']:,}; seeds 0 to {start - 1:,}",
        f"failures: {len(failures)}", *failures,
        f"{time.time() - began:.0f} s, {processes} processes, Python {sys.version.split()[0]}",
    ]  # fmt: skip
    log.write_text("\n".join(lines) + "\n")
    print("\n".join(lines), flush=True)
    return bool(failures)


if __name__ == "__main__":
    here = Path(__file__).parent
    sys.path[:0] = [str(here), str(here.parent)]
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), *sys.argv[4:]))
