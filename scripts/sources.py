"""Run the tests with real sources and sinks: S3, pipelines, Kafka and Delta Lake.

The S3 server runs in an environment of its own, `build/sources`. Kafka's connector and Delta Lake come later
than Spark, so their tests run with the newest PySpark that both support, in an environment of the matrix.
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
RELEASE = "4.0-oldest"
"""The environment of the matrix for Kafka and Delta Lake."""
NEWEST = ["tests/spark/test_source_s3.py", "tests/spark/test_source_pipelines.py"]
OLDER = ["tests/spark/test_source_kafka.py", "tests/spark/test_source_delta.py"]


def main() -> int:
    """Install what is missing and run the tests; return the exit status of those that failed."""
    install_servers()
    newest = run_tests(sys.executable, NEWEST)
    return newest or run_tests(environment(RELEASE), OLDER)


def install_servers() -> None:
    """Make the environment of the S3 server, unless it is there."""
    record = SERVERS / "requirements.txt"
    if record.exists() and record.read_text() == LOCK.read_text():
        return
    print(f"installing the S3 server into {SERVERS.relative_to(ROOT)}", flush=True)
    subprocess.run([sys.executable, "-m", "venv", "--clear", SERVERS], check=True)
    install = [SERVERS / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*install, "-r", LOCK], check=True)
    record.write_text(LOCK.read_text())


def run_tests(python: str, tests: list[str]) -> int:
    """Run all tests of some files, the long ones too; return pytest's exit status."""
    everything = ["-m", "sources or not sources", "-o", "timeout=1800"]
    return subprocess.run(
        [python, "-m", "pytest", "-p", "no:cacheprovider", *everything, *tests], cwd=ROOT, check=False
    ).returncode


if __name__ == "__main__":
    sys.exit(main())
