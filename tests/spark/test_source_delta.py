"""A join of two Delta tables into others, directly and by `foreachBatch`, with a driver that is killed."""

from __future__ import annotations

from pathlib import Path

import pyspark
import pytest

from example_runs import expected_pairs, load_example, run_with_kills
from maven import package_settings

PACKAGES = {"4.0": "io.delta:delta-spark_2.13:4.0.1", "4.2": "io.delta:delta-spark_4.2_2.13:4.4.0"}
"""Releases of Delta Lake on Maven Central, by release of PySpark."""


@pytest.fixture(scope="module")
def settings() -> dict[str, str]:
    release = ".".join(pyspark.__version__.split(".")[:2])
    if release not in PACKAGES:
        pytest.skip(f"Maven Central has no Delta Lake for PySpark {release}")
    return {
        **package_settings(PACKAGES[release]),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    }


@pytest.mark.sources
@pytest.mark.timeout(1800)
def test_tables_are_joined_exactly_once_into_tables(settings: dict[str, str], tmp_path: Path) -> None:
    from handshake.engines.spark.cluster import start_cluster

    offers = load_example("_offers")
    rows = offers.make_rows()
    with start_cluster("delta", cores=2, **settings) as cluster:
        for side, given in rows.items():
            for third in range(3):
                part = [tuple(row.values()) for row in given[120 * third : 120 * (third + 1)]]
                frame = cluster.session.createDataFrame(part, offers.SCHEMA).coalesce(1)
                frame.write.format("delta").mode("append").save(str(tmp_path / side))
        run_with_kills("on_delta", str(tmp_path), folder=tmp_path, settings=settings,
                       checkpoints=("checkpoint-table", "checkpoint-batches"))  # fmt: skip
        wanted = expected_pairs(*rows.values())
        assert len(wanted) > 1000
        for table in ("matches", "batches"):
            found = cluster.session.read.format("delta").load(str(tmp_path / table)).collect()
            assert sorted((row.id, row.id_right) for row in found) == wanted, table
