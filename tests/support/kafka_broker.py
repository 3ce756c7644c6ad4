"""A Kafka broker of one process on loopback: Kafka's own jars, in KRaft mode."""

from __future__ import annotations

import base64
import socket
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from maven import fetch, java
from waiting import wait_until

PACKAGE = "org.apache.kafka:kafka_2.13:4.1.1"
_PROPERTIES = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={folder}/data
num.partitions=2
auto.create.topics.enable=true
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
"""


@contextmanager
def kafka_broker(folder: Path) -> Iterator[str]:
    """Start a broker and yield its address; skip the test if Kafka cannot be downloaded."""
    jars = fetch(PACKAGE)
    port, controller = _free_ports()
    settings = folder / "server.properties"
    settings.write_text(_PROPERTIES.format(port=port, controller=controller, folder=folder))
    command = [java(), "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", f"{jars}/*"]
    cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "a")
    subprocess.run(
        [*command, "kafka.tools.StorageTool", "format", "-t", cluster, "-c", settings],
        check=True, capture_output=True,
    )  # fmt: skip
    with open(folder / "kafka.log", "wb") as log:
        broker = subprocess.Popen(
            [*command, "kafka.Kafka", settings], stdout=log, stderr=log, start_new_session=True
        )
    try:
        wait_until(lambda: _accepts(broker, port, folder), 240, pause=0.2, what="the start of Kafka")
        yield f"127.0.0.1:{port}"
    finally:
        broker.kill()
        broker.wait()


def _free_ports() -> tuple[int, int]:
    with socket.socket() as one, socket.socket() as two:
        one.bind(("127.0.0.1", 0))
        two.bind(("127.0.0.1", 0))
        return one.getsockname()[1], two.getsockname()[1]


def _accepts(broker: subprocess.Popen, port: int, folder: Path) -> bool:
    assert broker.poll() is None, (folder / "kafka.log").read_text(errors="replace")[-3000:]
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
    except OSError:
        return False
