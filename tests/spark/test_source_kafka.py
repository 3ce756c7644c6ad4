"""A join of two Kafka topics into files and into a topic, with a real broker and a driver that is killed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyspark
import pytest

from example_runs import expected_pairs, load_example, run_with_kills, sink_pairs
from kafka_broker import kafka_broker
from maven import package_settings

CONNECTORS = {"4.0": "4.0.0", "4.1": "4.1.3", "4.2": "4.2.0"}
"""Releases of Spark's connector on Maven Central, by release of PySpark."""


@pytest.fixture(scope="module")
def settings() -> dict[str, str]:
    release = ".".join(pyspark.__version__.split(".")[:2])
    if release not in CONNECTORS:
        pytest.skip(f"Maven Central has no Kafka connector for PySpark {release}")
    return package_settings(f"org.apache.spark:spark-sql-kafka-0-10_2.13:{CONNECTORS[release]}")


@pytest.mark.sources
@pytest.mark.timeout(1800)
def test_topics_are_joined_exactly_once_into_files(settings: dict[str, str], tmp_path: Path) -> None:
    from handshake.engines.spark.cluster import start_cluster

    rows = load_example("_offers").make_rows()
    wanted = expected_pairs(*rows.values())
    assert len(wanted) > 1000
    with kafka_broker(tmp_path) as servers, start_cluster("kafka", cores=2, **settings) as cluster:
        for topic, given in rows.items():
            _produce(cluster.session, servers, topic, given)
        run_with_kills("on_kafka", servers, str(tmp_path), folder=tmp_path, settings=settings,
                       checkpoints=("checkpoint-files", "checkpoint-topic"))  # fmt: skip
        assert sink_pairs(str(tmp_path / "matches")) == wanted
        found = {(row["id"], row["id_right"]) for row in _consume(cluster.session, servers, "matches")}
        assert found == set(wanted)


def _produce(session: Any, servers: str, topic: str, rows: list[dict[str, Any]]) -> None:
    messages = [(str(row["id"]), json.dumps({**row, "time": row["time"].isoformat()})) for row in rows]
    writer = session.createDataFrame(messages, "key string, value string").coalesce(1).write.format("kafka")
    writer.option("kafka.bootstrap.servers", servers).option("topic", topic).save()


def _consume(session: Any, servers: str, topic: str) -> list[dict[str, Any]]:
    reader = session.read.format("kafka").option("kafka.bootstrap.servers", servers)
    frame = reader.option("subscribe", topic).load()
    return [json.loads(row.value) for row in frame.selectExpr("CAST(value AS string) AS value").collect()]
