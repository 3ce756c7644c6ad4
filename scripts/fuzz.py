"""Give mutated inputs to everything that the package reads, and keep a tally.

Each target runs in a process of its own, so that a crash is found and named. The tally of all runs is in
bench/results/fuzz.json; a run with the seed of an earlier run is not counted again. Counts include faults
that have been fixed since. The tally also lists each fault with its input, and with the test that covers it
once someone has entered one.

    .venv/bin/python scripts/fuzz.py --seed 1 --inputs 1000
    .venv/bin/python scripts/fuzz.py --target csv --seed 1 --only 17
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TALLY = ROOT / "bench" / "results" / "fuzz.json"
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "support")]


def main() -> int:
    """Run the fuzzer; the status is 1 if there is a fault."""
    given = _arguments()
    if given.part:
        return _run_part(given)
    if given.only is not None:
        return _report([_start_part(given, given.target, range(given.only, given.only + 1))])
    names = [given.target] if given.target else _names()
    found = [_start_part(given, name, range(given.inputs)) for name in names]
    if not given.no_tally:
        _add_to_tally(found, given.seed)
    return _report(found)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Give mutated inputs to everything that the package reads.")
    parser.add_argument("--seed", type=int, default=1, help="inputs follow from the seed alone")
    parser.add_argument("--inputs", type=int, default=1000, help="inputs per target")
    parser.add_argument("--target", help="one target; all by default")
    parser.add_argument("--only", type=int, help="the number of one input")
    parser.add_argument("--no-tally", action="store_true", help="leave the tally as it is")
    parser.add_argument("--part", nargs=3, help=argparse.SUPPRESS)
    return parser.parse_args()


def _names() -> list[str]:
    from fuzz.targets import TARGETS

    return list(TARGETS)


def _start_part(given: argparse.Namespace, name: str, numbers: range) -> dict[str, Any]:
    """Run inputs of one target in a process; go on behind an input that ends it."""
    total: dict[str, Any] = {"target": name, "counts": {}, "faults": [], "seconds": 0.0}
    start = numbers.start
    while start < numbers.stop:
        with tempfile.TemporaryDirectory() as folder:
            part = ["--part", name, str(start), str(numbers.stop)]
            command = [sys.executable, __file__, "--seed", str(given.seed), *part]
            began = time.monotonic()
            done = subprocess.run(command, env={**os.environ, "FUZZ_FOLDER": folder}, check=False)
            total["seconds"] += time.monotonic() - began
            result = Path(folder) / "result.json"
            if result.exists():
                _merge(total, json.loads(result.read_text()))
                break
            at = int((Path(folder) / "number").read_text() or start)
            fault = _crash(name, given.seed, at, f"exit status {done.returncode}")
            _merge(total, {"counts": {"accepted or refused": at - start, "faults": 1}, "faults": [fault]})
            start = at + 1
    return total


def _crash(name: str, seed: int, number: int, what: str) -> dict[str, Any]:
    from fuzz.run import fault_of
    from fuzz.targets import TARGETS

    return asdict(fault_of(TARGETS[name], name, seed, number, what))


def _merge(total: dict[str, Any], part: dict[str, Any]) -> None:
    for key, count in part["counts"].items():
        total["counts"][key] = total["counts"].get(key, 0) + count
    total["faults"] += part["faults"]


def _run_part(given: argparse.Namespace) -> int:
    from fuzz.run import run_target
    from fuzz.targets import TARGETS

    name, start, stop = given.part[0], int(given.part[1]), int(given.part[2])
    folder = Path(os.environ["FUZZ_FOLDER"])
    inputs = folder / "inputs"
    inputs.mkdir()
    with open(folder / "number", "w+") as place:

        def begin(number: int) -> None:
            place.seek(0)
            place.write(str(number))
            place.flush()

        found = run_target(TARGETS[name], name, given.seed, range(start, stop), inputs, begin)
    (folder / "result.json").write_text(json.dumps(found.values()))
    return 0


def _add_to_tally(found: list[dict[str, Any]], seed: int) -> None:
    tally = json.loads(TALLY.read_text()) if TALLY.exists() else {"targets": {}, "faults": []}
    for part in found:
        entry = tally["targets"].setdefault(part["target"], {"inputs": 0, "outcomes": {}, "seeds": []})
        if seed in entry["seeds"]:
            continue
        entry["seeds"].append(seed)
        entry["inputs"] += sum(part["counts"].values())
        for key, count in part["counts"].items():
            entry["outcomes"][key] = entry["outcomes"].get(key, 0) + count
        tally["faults"] += [{**fault, "test": None} for fault in part["faults"]]
    tally["inputs"] = sum(entry["inputs"] for entry in tally["targets"].values())
    tally["date"] = time.strftime("%Y-%m-%d", time.gmtime())
    TALLY.write_text(json.dumps(tally, indent=1) + "\n")


def _report(found: list[dict[str, Any]]) -> int:
    faults = 0
    for part in found:
        counts = ", ".join(f"{count} {key}" for key, count in sorted(part["counts"].items()))
        print(f"{part['target']:<13}{counts}; {part['seconds']:.1f} s")
        for fault in part["faults"][:20]:
            print(f"  --seed {fault['seed']} --only {fault['number']}: {fault['fault']}")
            print(f"    {fault['input']}")
        faults += len(part["faults"])
    total = sum(sum(part["counts"].values()) for part in found)
    print(f"RESULT inputs={total} faults={faults}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
