"""Run the Spark part of the test suite with every supported release of PySpark.

Each release gets an environment of its own in `build/matrix`, with the oldest or the newest packages that
its users have. An environment is kept and reused.

    python scripts/matrix.py                 all environments
    python scripts/matrix.py 4.0-oldest 4.1  some of them
    python scripts/matrix.py --smoke 4.0-oldest  the smoke test instead of the whole Spark part
    python scripts/matrix.py --processes 2   fewer processes, if other work runs on the machine
    python scripts/matrix.py --failed        the tests that failed last time, one at a time
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "build" / "matrix"
TESTS = ["tests/spark", "tests/test_engines.py", "-k", "not circuit and not test_matrix"]
SMOKE = [
    "tests/spark/test_spark_join.py",
    "-k",
    "test_streams_agree_with_the_oracle and band or kinds and full and timed",
]

NEWEST = {"pandas": "2.3.3", "pyarrow": "26.0.1", "numpy": "2.4.6", "protobuf": "7.36.2"}
ENVIRONMENTS: dict[str, dict[str, str]] = {
    "4.0-oldest": {
        "pyspark": "4.0.0", "pandas": "2.0.3", "pyarrow": "15.0.2", "numpy": "1.26.4", "protobuf": "5.28.3",
        "grpcio": "1.67.1", "grpcio-status": "1.67.1", "googleapis-common-protos": "1.65.0",
        "zstandard": "0.23.0",
    },
    "4.0": {"pyspark": "4.0.5", **NEWEST},
    "4.1": {"pyspark": "4.1.4", **NEWEST},
    "4.2": {"pyspark": "4.2.1", **NEWEST},
    "4.3": {"pyspark": "4.3.0", **NEWEST},
}  # fmt: skip
"""Environments by name, with the releases of what PySpark works with."""
NOTHING = 5
"""Pytest's exit status if there was no test to run."""
CONNECT = ("googleapis-common-protos", "grpcio", "grpcio-status", "zstandard")
TOOLS = ("hypothesis", "pytest", "pytest-timeout", "pytest-xdist", "polars")
"""Packages that the tests need; locked like those of `make setup`."""


def main(arguments: list[str]) -> int:
    """Run the tests in the environments that are named, all by default; print a table of the outcomes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*ENVIRONMENTS, []], help="environments; default: all")
    parser.add_argument("--smoke", action="store_true", help="run a few joins only")
    parser.add_argument("--failed", action="store_true", help="run what failed last time, in one process")
    parser.add_argument("--processes", type=int, default=(os.cpu_count() or 1) + 1, help="default: cores + 1")
    chosen = parser.parse_args(arguments)
    outcomes = {name: run_tests(name, chosen) for name in chosen.names or ENVIRONMENTS}
    print(f"{'':12}{'PySpark':>9}{'pandas':>9}{'pyarrow':>9}{'numpy':>9}  outcome")
    for name, (_, outcome) in outcomes.items():
        releases = "".join(f"{ENVIRONMENTS[name][p]:>9}" for p in ("pyspark", "pandas", "pyarrow", "numpy"))
        print(f"{name:12}{releases}  {outcome}")
    fine = (0, NOTHING) if chosen.failed else (0,)
    failed = sum(code not in fine for code, _ in outcomes.values())
    print(f"RESULT environments={len(outcomes)} failed={failed}")
    return 1 if failed else 0


def pytest_options(name: str, chosen: argparse.Namespace) -> list[str]:
    """Return what to run and how; the cache of an environment knows what failed last time."""
    if chosen.smoke:
        return ["-p", "no:cacheprovider", *SMOKE]
    cache = ["-o", f"cache_dir={FOLDER / name}.cache"]
    if chosen.failed:
        return [*cache, "--last-failed", "--last-failed-no-failures", "none", *TESTS]
    return [*cache, *TESTS, "-n", str(chosen.processes), "--dist", "worksteal"]


def run_tests(name: str, chosen: argparse.Namespace) -> tuple[int, str]:
    """Return pytest's exit status and its last line."""
    python = environment(name)
    print(f"{name}: running the tests", flush=True)
    command = [python, "-m", "pytest", "-q", *pytest_options(name, chosen)]
    log = FOLDER / f"{name}.log"
    # tests that run this script may have set Spark's home and Python, and pytest's own variables
    # modules are compiled on their first import, so that must be kept
    others = ("PYSPARK_", "PYTEST_", "SPARK_HOME", "PYTHONDONTWRITEBYTECODE")
    own = {name: value for name, value in os.environ.items() if not name.startswith(others)}
    start = time.monotonic()
    if not chosen.smoke:  # a class-data archive, from which virtual machines start quickly
        archive = [python, str(ROOT / "tests" / "support" / "spark_home.py")]
        subprocess.run(archive, cwd=ROOT, env=own, capture_output=True, check=False)
    with open(log, "wb") as sink:
        code = subprocess.run(
            command, cwd=ROOT, env=own, stdout=sink, stderr=subprocess.STDOUT, check=False
        ).returncode
    lines = log.read_text(errors="replace").splitlines()
    outcome = re.sub(r" in .*", "", lines[-1]) if lines else "no output"
    return code, f"{outcome}, {time.monotonic() - start:.0f} s ({log.relative_to(ROOT)})"


def environment(name: str) -> str:
    """Return the Python of an environment, which is made if it is not there."""
    folder = FOLDER / name
    python = folder / "bin" / "python"
    wanted = "\n".join(f"{package}=={release}" for package, release in packages(name).items())
    record = folder / "requirements.txt"
    if not record.exists() or record.read_text() != wanted:
        print(f"{name}: installing {ENVIRONMENTS[name]}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", folder], check=True)
        needs = _unpack_pyspark(folder, ENVIRONMENTS[name]["pyspark"])
        _install(python, needs, *(line for line in wanted.split("\n") if not line.startswith("pyspark==")))
        _install(python, "--no-deps", "-e", str(ROOT))
        record.write_text(wanted)
    return str(python)


def _unpack_pyspark(folder: Path, release: str) -> str:
    """Put PySpark on the path of an environment, and return the package that it needs, Py4J.

    PySpark is a source distribution of 400 MB. Pip would build a wheel of it and unpack that again, which
    takes ten times as long. So the files stay where they are unpacked, and links stand for `setup.py`.
    """
    place = folder / f"pyspark-{release}"
    archive = folder / f"{place.name}.tar.gz"
    _pip("download", "--no-deps", "--no-binary", "pyspark", "--dest", str(folder), f"pyspark=={release}")
    subprocess.run(["tar", "--no-same-owner", "-xzf", archive, "-C", folder], check=True)
    archive.unlink()
    for part in ("bin", "data", "jars", "licenses", "sbin"):
        (place / "pyspark" / part).symlink_to(place / "deps" / part)
    (place / "pyspark" / "python" / "lib").symlink_to(place / "lib")
    (packages_folder,) = folder.glob("lib/python3*/site-packages")
    (packages_folder / "pyspark.pth").write_text(f"{place}\n")
    return (place / "pyspark.egg-info" / "requires.txt").read_text().split()[0]


def _install(python: Path, *what: str) -> None:
    _pip("--python", str(python), "install", "--no-compile", *what)


def _pip(*arguments: str) -> None:
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, *arguments], check=True)


def packages(name: str) -> dict[str, str]:
    """Return the releases of an environment: those of the matrix, and the locked ones of all else."""
    lines = (ROOT / "requirements-dev.txt").read_text().splitlines()
    locked = dict(line.split("==") for line in lines if "==" in line)
    needed = ("llvmlite", "numba", "rich", "sqlglot", "typer", *CONNECT, *TOOLS)
    return {package: locked[package] for package in needed} | ENVIRONMENTS[name]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
