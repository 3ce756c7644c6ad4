"""Run the tests with real sources and sinks: S3, pipelines, Kafka and Delta Lake; and a client without Java.

The S3 server runs in an environment of its own, `build/sources`, and so does a client of Spark Connect,
`build/connect`. Kafka's connector and Delta Lake come later than Spark, so their tests run with an older
PySpark that both support (`RELEASE`), in an environment of the matrix.
Packages of Maven Central are kept in `build/ivy`. Without a network the tests are skipped, with the reason.

    python scripts/sources.py
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from matrix import environment

ROOT = Path(__file__).parents[1]
SERVERS = ROOT / "build" / "sources"
LOCK = ROOT / "requirements-sources.txt"
CLIENT = ROOT / "build" / "connect"
CLIENT_PACKAGES = [
    "pyspark-client==4.2.0", "llvmlite", "numba", "numpy", "pandas", "pyarrow", "pytest", "rich", "sqlglot",
    "typer",
]  # fmt: skip
"""Of the client; releases are those of `make setup`, unless given here."""
RELEASE = "4.0-oldest"
"""The environment of the matrix for Kafka and Delta Lake."""
NEWEST = [
    "tests/spark/test_source_s3.py", "tests/spark/test_source_pipelines.py", "tests/spark/test_connect.py",
]  # fmt: skip
OLDER = ["tests/spark/test_source_kafka.py", "tests/spark/test_source_delta.py"]


def main() -> int:
    """Install what is missing and run the tests; return the exit status of those that failed."""
    install_servers()
    install_client()
    newest = run_tests(sys.executable, NEWEST)
    return newest or run_tests(environment(RELEASE), OLDER)


def install_servers() -> None:
    """Make the environment of the S3 server, unless it is there."""
    _install(SERVERS, LOCK.read_text(), [["-r", str(LOCK)]])


def install_client() -> None:
    """Make the environment of a client of Spark Connect with this checkout, unless it is there."""
    packages = ["--constraint", str(ROOT / "requirements-dev.txt"), *CLIENT_PACKAGES]
    _install(CLIENT, "\n".join(packages), [packages, ["--no-deps", "-e", str(ROOT)]])


def _install(folder: Path, contents: str, steps: list[list[str]]) -> None:
    record = folder / "requirements.txt"
    if record.exists() and record.read_text() == contents:
        return
    print(f"installing packages into {folder.relative_to(ROOT)}", flush=True)
    subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
    install = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    for step in steps:
        subprocess.run([*install, *step], check=True)
    record.write_text(contents)


def run_tests(python: str, tests: list[str]) -> int:
    """Run all tests of some files, the long ones too; return pytest's exit status."""
    everything = ["-m", "sources or not sources", "-o", "timeout=1800"]
    return subprocess.run(
        [python, "-m", "pytest", "-p", "no:cacheprovider", *everything, *tests], cwd=ROOT, check=False
    ).returncode


if __name__ == "__main__":
    sys.exit(main())
