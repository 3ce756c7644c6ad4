"""A cluster of several hosts: one is cut off, another killed, and the sink holds each result once.

`make cluster-test` makes the hosts and runs these tests (`scripts/cluster.py`).
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

pytest.importorskip("pyspark")

from example_runs import expected_pairs, load_example, sink_pairs
from host_cluster import HADOOP, WORKERS, HostCluster, running_hosts
from hosts import Host, bridge
from kill_tally import counted_kills
from maven import fetch
from moto_server import BUCKET

pytestmark = [
    pytest.mark.hosts,
    pytest.mark.skipif("HANDSHAKE_HOSTS" not in os.environ, reason="make cluster-test makes the hosts"),
]
FILES = 12
"""Per stream; each is a micro-batch."""
PATIENCE = 300
"""Seconds without a micro-batch after which the query counts as stuck."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostCluster]:
    fetch(HADOOP)
    with running_hosts(tmp_path_factory.mktemp("hosts")) as started:
        yield started


def test_hosts_share_nothing(tmp_path: Path) -> None:
    """A host has no files of other hosts and of this machine, and only its own processes and network."""
    words = f"hostname; ls -d {Path(__file__).parent} {tmp_path} /root/left /dev/shm/left; touch /usr/left"
    words += "; mkdir -p /root; touch /root/left /dev/shm/left; ls -d /root/left /proc/[0-9]*"
    words += "; cat /proc/net/dev"
    with bridge():
        for number, name in enumerate(("one", "two"), 2):
            host = Host(name, f"198.18.0.{number}", tmp_path / name)
            host.connect()
            host.boot(["sh", "-c", words], dict(os.environ), log := tmp_path / f"{name}.log")
            assert host.process is not None
            host.process.wait(60)
            said = log.read_text()
            assert said.startswith(f"{name}\n")
            assert said.count("No such file or directory") == 4, said
            assert "Read-only file system" in said
            assert said.count("/root/left\n") == 1, said
            processes = [line for line in said.splitlines() if line.startswith("/proc/")]
            assert len(processes) <= 2, processes
            assert "eth0" in said
            assert "handshake" not in said.partition("eth0")[2]


def test_hosts_are_lost_in_the_middle_of_a_join(cluster: HostCluster) -> None:
    """Cut one host off and kill another; both come back later. The sink equals a plain loop, row by row."""
    rows = load_example("_offers").make_rows()
    upload_rows(cluster, rows)
    state = cluster.store.uri("state").replace("s3://", "s3a://")
    cluster.submit("/opt/query/host_query.py", f"s3a://{BUCKET}/market", state)
    wanted = expected_pairs(*rows.values())
    assert len(wanted) > 1000
    with counted_kills(cluster="hosts", kind="inner", state="s3", seed=20) as kills:
        lose_hosts(cluster, Random(20), kills)
        assert sink_pairs(f"{BUCKET}/market/matches", cluster.store.files()) == wanted
    for name in ("state", "market/checkpoint", "market/matches"):
        assert cluster.store.names(name)


def lose_hosts(cluster: HostCluster, chance: Random, kills: Counter[str]) -> None:
    """Cut one host off and kill another, let both come back, and wait for the end of the join."""
    cut, killed, _ = (cluster.hosts[name] for name in WORKERS)
    await_batches(cluster, 2, chance)
    tasks = {name: cluster.tasks(name) for name in WORKERS}
    assert all(tasks.values()), f"a worker had nothing to do: {tasks}"
    cut.cut_off()
    kills["host, cut off"] += 1
    cluster.await_log("master", "because we got no heartbeat")
    await_batches(cluster, 4, chance)
    killed.kill()
    kills["host"] += 1
    await_batches(cluster, 6, chance)
    cut.plug_in()
    cluster.boot_worker(killed.name)
    await_end(cluster)


def upload_rows(cluster: HostCluster, rows: dict[str, list[dict[str, Any]]]) -> None:
    """Put the rows into the bucket as files, one per micro-batch and stream."""
    folder, bucket = cluster.folder / "rows", cluster.store.files()
    for side, given in rows.items():
        load_example("_scaffold").write_files(given, folder / side, files=FILES)
    for number in range(FILES):
        for side in rows:
            with bucket.open_output_stream(f"{BUCKET}/market/{side}/{number}.json") as sink:
                sink.write((folder / side / f"{number}.json").read_bytes())
        time.sleep(1.1)  # Spark takes files by age, which S3 has in seconds


def batches_done(cluster: HostCluster) -> int:
    """Return the number of micro-batches by the log of commits, of which Spark keeps the last ones."""
    names = [Path(name).name for name in cluster.store.names("market/checkpoint/commits")]
    return max((int(name) + 1 for name in names if name.isdigit()), default=0)


def await_batches(cluster: HostCluster, count: int, chance: Random) -> None:
    """Wait until micro-batches are done, and then for a random moment of the next one."""
    await_progress(cluster, lambda: batches_done(cluster) >= count)
    time.sleep(chance.uniform(0, 3))


def await_end(cluster: HostCluster) -> None:
    """Wait for the end of the driver, which must succeed."""
    driver = cluster.hosts["driver"].process
    assert driver is not None
    await_progress(cluster, lambda: driver.poll() is not None, ends=True)
    assert driver.returncode == 0, cluster.log("driver").read_text(errors="replace")[-6000:]
    assert batches_done(cluster) >= FILES


def await_progress(cluster: HostCluster, reached: Callable[[], bool], ends: bool = False) -> None:
    """Wait as long as micro-batches go on."""
    driver = cluster.hosts["driver"].process
    assert driver is not None
    done, since = -1, time.monotonic()
    while not reached():
        if time.monotonic() - since > PATIENCE or (driver.poll() is not None and not ends):
            pytest.fail("the driver is stuck or gone\n" + cluster.log("driver").read_text()[-6000:])
        if batches_done(cluster) != done:
            done, since = batches_done(cluster), time.monotonic()
            print(f"{time.strftime('%X')} {done} micro-batches; tasks {[cluster.tasks(n) for n in WORKERS]}")
        time.sleep(0.5)  # between two looks
