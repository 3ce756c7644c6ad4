"""Random joins on the GPU of this machine against the oracle, by several processes; writes a log.

python tests/support/gpu_soak.py 5000 16 log.txt
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
    from gpu_joins import SMALL, TUNINGS, banded, on_gpu, plan_for
    from handshake.errors import HandshakeError
    from pairs import numbered
    from pushes import check_pushes
    from strategies import make_case

    counts, failures = Counter(), []
    for seed in seeds:
        rng = Random(seed)
        case = banded(seed, rng.randint(1, 250)) if seed % 4 == 0 else None
        case = case or make_case(seed, rng.randint(0, 250), rng.randint(0, 250))
        for tuning in TUNINGS:
            try:
                counts["replayed" if on_gpu(case, tuning) else "refused"] += 1
            except (AssertionError, HandshakeError) as error:
                failures.append(f"seed {seed}: {type(error).__name__}: {str(error)[:300]}")
        try:
            if seed % 3 == 0 and plan_for(case, numbered(case), SMALL) is not None:
                check_pushes(case, seed, tuning=SMALL, device="gpu")
                counts["pushed"] += 1
        except (AssertionError, HandshakeError) as error:
            failures.append(f"seed {seed}, pushed: {type(error).__name__}: {str(error)[:300]}")
    return counts, failures


def main(wanted: int, processes: int, log: Path) -> int:
    from handshake.kernels.gpu import driver

    began, step, counts, failures = time.time(), 8, Counter(), []
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        start = 0
        while sum(counts[k] for k in ("replayed", "pushed")) < wanted and len(failures) < 50:
            chunks = [range(start + k, start + k + step) for k in range(0, 4 * step * processes, step)]
            start = chunks[-1].stop
            for found, failed in pool.map(joins_of, chunks):
                counts.update(found)
                failures += failed
    total = counts["replayed"] + counts["pushed"]
    lines = [
        f"random joins on {driver.open_device().name} against the oracle: {total:,}",
        f"  replayed {counts['replayed']:,}, pushed in random batches {counts['pushed']:,}; "
        f"predicates refused for a GPU {counts['refused']:,}; seeds 0 to {start - 1:,}",
        f"failures: {len(failures)}", *failures,
        f"{time.time() - began:.0f} s, {processes} processes, Python {sys.version.split()[0]}",
    ]  # fmt: skip
    log.write_text("\n".join(lines) + "\n")
    print("\n".join(lines), flush=True)
    return bool(failures)


if __name__ == "__main__":
    here = Path(__file__).parent
    sys.path[:0] = [str(here), str(here.parent)]
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])))
