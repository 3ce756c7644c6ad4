"""A standalone Spark cluster of several hosts: a master, three workers and a driver, and an object store.

Each host has its own network and files (`hosts.py`). Spark, Java and Hadoop's package for S3 are installed on
each, as by an image. The Python packages are not: workers get them in the packed environment of the docs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyspark

from handshake.engines.spark.java import java_home
from hosts import GATEWAY, Host, bridge, python_home
from moto_server import ObjectStore, object_store
from waiting import wait_until

ROOT = Path(__file__).parents[2]
PACKED = ROOT / "build" / "cluster" / "join-env"
"""The environment of the driver; the archive of it is beside it."""
HADOOP = "org.apache.hadoop:hadoop-aws:3.5.0"
"""In the release of the Hadoop that PySpark 4.3 has."""
JARS = ROOT / "build" / "jars" / HADOOP.replace(":", "-")
PATIENCE = 300
"""Seconds after which something that does not come is an error."""
WORKERS = ("worker-1", "worker-2", "worker-3")
ADDRESSES = {"driver": "198.18.0.5", "master": "198.18.0.10"} | {
    name: f"198.18.0.{11 + k}" for k, name in enumerate(WORKERS)
}
MASTER = f"spark://{ADDRESSES['master']}:7077"
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options with which Java starts quickly."""
LOST = 15
"""Seconds without a sign of life after which the master gives a worker up."""


@dataclass
class HostCluster:
    """Hosts by name, the object store, and a folder with logs and the files of the hosts."""

    folder: Path
    store: ObjectStore
    hosts: dict[str, Host] = field(default_factory=dict)

    def start(self) -> None:
        """Connect all hosts; start the master and the workers."""
        for name, address in ADDRESSES.items():
            self.hosts[name] = Host(name, address, self.folder / name, self._image(name), ADDRESSES)
            self.hosts[name].connect()
        ports = ["--port", "7077", "--webui-port", "8080"]
        self._boot_daemon("master", ["org.apache.spark.deploy.master.Master", *ports])
        self.await_log("master", "Starting Spark master at")
        for name in WORKERS:
            self.boot_worker(name)
        for name in WORKERS:
            self.await_log(name, "Successfully registered with master")

    def boot_worker(self, name: str) -> None:
        """Start a worker of one core; its disk is as empty as that of a new machine the first time."""
        size = ["--cores", "1", "--memory", "900m", "--work-dir", "/var/work"]
        self._boot_daemon(name, ["org.apache.spark.deploy.worker.Worker", *size, MASTER])

    def submit(self, *arguments: str) -> None:
        """Start the driver with `spark-submit` and the packed environment, as docs/spark/cluster.md says."""
        settings = [part for key, value in self._settings().items() for part in ("--conf", f"{key}={value}")]
        archive = ["--archives", f"{PACKED}.tar.gz#env"]
        # Spark starts the workers' Python on the driver, too, so it must be there by the same relative path
        link = ["sh", "-c", 'ln -sfn "$0" env && exec "$@"', str(PACKED)]
        command = [*link, f"{PACKED}/bin/spark-submit", "--master", MASTER, *archive, *settings, *arguments]
        environment = self._environment("driver") | self.store.environment
        environment |= {
            "PATH": f"{PACKED}/bin:{environment['PATH']}",  # as activating the environment does
            "PYSPARK_DRIVER_PYTHON": "python",
            "PYSPARK_PYTHON": "./env/bin/python",
            "PYTHONPATH": "/opt/examples",
        }
        del environment["SPARK_HOME"]  # the environment has Spark
        self.hosts["driver"].boot(command, environment, self.log("driver"))

    def log(self, name: str) -> Path:
        """Return the log file of a host."""
        return self.folder / f"{name}.log"

    def await_log(self, name: str, text: str) -> None:
        """Wait until the log of a host contains a text."""

        def look() -> bool:
            logged = self.log(name).read_text(errors="replace")
            assert self.hosts[name].process.poll() is None, logged[-3000:]
            return text in logged

        wait_until(look, PATIENCE, pause=0.1, what=f"'{text}' in the log of {name}")

    def tasks(self, name: str) -> int:
        """Return how many tasks the executors of a worker have finished, by their logs."""
        logs = (self.folder / name / "var" / "work").glob("app-*/*/stderr")
        return sum(len(re.findall(r"Finished task", log.read_text(errors="replace"))) for log in logs)

    def stop(self) -> None:
        """Kill all hosts of the cluster."""
        for host in self.hosts.values():
            host.kill()

    def _boot_daemon(self, name: str, command: list[str]) -> None:
        own = ["--host", ADDRESSES[name]]
        whole = ["/opt/spark/bin/spark-class", command[0], *own, *command[1:]]
        self.hosts[name].boot(whole, self._environment(name), self.log(name))

    def _image(self, name: str) -> dict[str, str]:
        """Return the installed software of a host; only the driver's has this project."""
        java = java_home()
        image = {**python_home(), str(JARS): "/opt/hadoop-aws"}
        if not java.startswith("/usr"):
            image[java] = java
        if name == "driver":
            image |= {str(PACKED.parent): str(PACKED.parent), str(ROOT / "examples"): "/opt/examples"}
            image[str(Path(__file__).parent)] = "/opt/query"
        else:
            image[str(Path(pyspark.__file__).parent)] = "/opt/spark"
        return image

    def _environment(self, name: str) -> dict[str, str]:
        return {
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": "/tmp",
            "JAVA_HOME": java_home(),
            "SPARK_HOME": "/opt/spark",
            "SPARK_LOCAL_IP": ADDRESSES[name],
            "SPARK_LOCAL_DIRS": "/tmp/spark",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": f"{QUICK} -Dspark.worker.timeout={LOST}",
        }

    def _settings(self) -> dict[str, str]:
        given = {
            "spark.driver.host": ADDRESSES["driver"],
            "spark.driver.memory": "700m",
            "spark.executor.memory": "700m",
            "spark.executor.cores": "1",
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "3",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.streaming.minBatchesToRetain": "3",
            "spark.network.timeout": f"{2 * LOST}s",
            "spark.network.timeoutInterval": "5s",
            "spark.driver.extraJavaOptions": QUICK,
            "spark.executor.extraJavaOptions": QUICK,
            "spark.executor.heartbeatInterval": "5s",
            "spark.driver.extraClassPath": "/opt/hadoop-aws/*",
            "spark.executor.extraClassPath": "/opt/hadoop-aws/*",
            "spark.hadoop.fs.s3a.endpoint": f"http://{self.store.address}",
            "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
            "spark.hadoop.fs.s3a.path.style.access": "true",
            # moto's web server answers "100 Continue" twice, which Amazon's asynchronous uploads do not take
            "spark.hadoop.fs.s3a.optimized.copy.from.local.enabled": "false",
        }
        credentials = {f"spark.executorEnv.{name}": value for name, value in self.store.environment.items()}
        return given | credentials


@contextmanager
def running_hosts(folder: Path) -> Iterator[HostCluster]:
    """Start the object store on the bridge and a cluster of hosts; stop all at the end."""
    with bridge(), object_store(folder, GATEWAY) as store:
        cluster = HostCluster(folder, store)
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.stop()
