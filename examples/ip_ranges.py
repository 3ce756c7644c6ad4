"""Batch range join: in which networks do addresses lie?

Ranges of addresses have different lengths and may lie in one another, so no bucket fits them all.
python examples/ip_ranges.py
"""

from __future__ import annotations

import ipaddress
import os
import random
import sys
import tempfile
from pathlib import Path

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F

import handshake


def owners(visits: DataFrame, networks: DataFrame, state: str) -> DataFrame:
    """Each visit with every network that its address lies in."""
    return handshake.join(
        visits.withColumn("ip", number("address")).alias("v"),
        networks.withColumn("first", number("first")).withColumn("last", number("last")).alias("n"),
        "v.ip BETWEEN n.first AND n.last",
        state_dir=state,
    )


def number(column: str) -> Column:
    """An IPv4 address as a whole number."""
    parts = F.split(column, r"\.")
    return sum((parts[i].cast("bigint") * 256 ** (3 - i) for i in range(4)), F.lit(0))


def made(visits: int = 3000, networks: int = 400) -> tuple[list[tuple[int, str]], list[tuple[str, str, str]]]:
    """Visits (id, address) and networks (owner, first and last address)."""
    chance = random.Random(2)
    known = []
    for i in range(networks):
        base = ipaddress.ip_address(chance.randrange(10 << 24, 12 << 24))
        network = ipaddress.ip_network((base, chance.randrange(12, 28)), strict=False)
        known.append((f"owner-{i}", str(network[0]), str(network[-1])))
    seen = [(i, str(ipaddress.ip_address(chance.randrange(10 << 24, 12 << 24)))) for i in range(visits)]
    return seen, known


def run(spark: SparkSession, folder: Path) -> list[Row]:
    """Look up every visit."""
    seen, known = made()
    visits = spark.createDataFrame(seen, "id bigint, address string")
    networks = spark.createDataFrame(known, "owner string, first string, last string")
    found = owners(visits, networks, str(folder / "state"))
    print(handshake.explain(found))
    return found.select("id", "address", "owner").orderBy("id", "owner").collect()


def session() -> SparkSession:
    """Spark's local mode on two cores."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # workers run the Python that this script runs
    builder = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", 2)
    quiet = builder.config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false")
    spark = quiet.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        spark = session()
        found = run(spark, Path(folder))
        known = {row.id for row in found}
        print(f"{len(found)} networks for {len(known)} visits; the first of them:")
        for row in found[:5]:
            print(f"{row.address:15} {row.owner}")
        spark.stop()
