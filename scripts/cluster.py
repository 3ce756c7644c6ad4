"""Run the tests of a cluster of several hosts, each in a network namespace of its own.

Installs the S3 server into `build/sources`, fetches Hadoop's package for S3, and packs the environment of
docs/spark/cluster.md as `build/cluster/join-env.tar.gz`. Then it runs the tests in network, mount and process
namespaces of their own, which takes root on Linux. Nothing of them is left afterwards.

    python scripts/cluster.py [PYTEST OPTIONS]
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from sources import SERVERS, install_servers

from handshake_bench.maven import UnreachableError, fetch

ROOT = Path(__file__).parents[1]
HADOOP = "org.apache.hadoop:hadoop-aws:3.5.0"
"""The package that the tests use for S3 (tests/support/host_cluster.py)."""
FOLDER = ROOT / "build" / "cluster"
PACKED = FOLDER / "join-env"
ALONE = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
"""The start of a command that runs in namespaces of its own."""
NEEDED = ("ip", "unshare", "mount", "pivot_root", "hostname")


def main(options: list[str]) -> int:
    """Install what is missing and run the tests; return pytest's exit status, 0 if they are skipped."""
    missing = find_obstacle()
    if missing:
        print(f"skipped: {missing}")
        return 0
    install_servers()
    pack_environment()
    try:
        fetch(HADOOP)  # before the tests, whose namespaces have no network
    except UnreachableError as error:
        print(f"skipped: {error}")
        return 0
    tests = ["-m", "hosts", "-o", "timeout=1800", "-p", "no:cacheprovider", "tests/spark/test_hosts.py"]
    command = [*ALONE, sys.executable, "-m", "pytest", *tests, *options]
    environment = {**os.environ, "HANDSHAKE_HOSTS": "1"}
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


def find_obstacle() -> str:
    """Return why namespaces cannot be made here, in a sentence; empty if they can."""
    absent = [name for name in NEEDED if shutil.which(name) is None]
    if absent:
        return f"the program '{absent[0]}' is not here; hosts need Linux with iproute2 and util-linux"
    probe = [*ALONE, "ip", "link", "add", "probe", "type", "bridge"]
    tried = subprocess.run(probe, capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        return f"network namespaces are not allowed here ({tried.stderr.strip()}); run as root on Linux"
    return ""


def pack_environment() -> None:
    """Make the environment of the docs from this checkout and pack it, unless the same one is there."""
    record = FOLDER / "source.txt"
    wanted = source_digest()
    if record.exists() and record.read_text() == wanted:
        return
    shutil.rmtree(FOLDER, ignore_errors=True)
    print(f"packing the environment of the workers into {FOLDER.relative_to(ROOT)}", flush=True)
    subprocess.run([sys.executable, "-m", "venv", PACKED], check=True)
    install = [PACKED / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    locked = ["--constraint", ROOT / "requirements-dev.txt"]
    subprocess.run([*install, "--no-compile", *locked, ".[spark]"], cwd=ROOT, check=True)
    pack = [SERVERS / "bin" / "venv-pack", "--quiet", "--prefix", PACKED, "--output", f"{PACKED}.tar.gz"]
    subprocess.run([*pack, "--exclude", "*/pyspark/*"], check=True)  # executors have Spark's
    record.write_text(wanted)


def source_digest() -> str:
    """Return a digest of all that goes into the environment."""
    digest = hashlib.sha256()
    fixed = [ROOT / "pyproject.toml", ROOT / "requirements-dev.txt"]
    for path in [*fixed, *sorted((ROOT / "src").rglob("*.py"))]:
        digest.update(f"{path.relative_to(ROOT)} ".encode() + path.read_bytes())
    return digest.hexdigest()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
