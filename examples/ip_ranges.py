"""Batch range join: which networks contain each address?

Address ranges differ in length and may contain each other, so no bucket size fits them all.

    python examples/ip_ranges.py
"""

from __future__ import annotations

import ipaddress
import random
from pathlib import Path

from _scaffold import local_spark
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F

import handshake


def owners(visits: DataFrame, networks: DataFrame, state: str) -> DataFrame:
    """Join each visit with every network that contains its address."""
    return handshake.join(
        visits.withColumn("ip", number("address")).alias("v"),
        networks.withColumn("first", number("first")).withColumn("last", number("last")).alias("n"),
        "v.ip BETWEEN n.first AND n.last",
        state_dir=state,
    )


def number(column: str) -> Column:
    """Convert an IPv4 address to an integer."""
    parts = F.split(column, r"\.")
    return sum((parts[i].cast("bigint") * 256 ** (3 - i) for i in range(4)), F.lit(0))


def make_rows(
    visits: int = 3000, networks: int = 400
) -> tuple[list[tuple[int, str]], list[tuple[str, str, str]]]:
    """Generate visits (id, address) and networks (owner, first and last address)."""
    chance = random.Random(2)
    known = []
    for i in range(networks):
        base = ipaddress.ip_address(chance.randrange(10 << 24, 12 << 24))
        network = ipaddress.ip_network((base, chance.randrange(12, 28)), strict=False)
        known.append((f"owner-{i}", str(network[0]), str(network[-1])))
    seen = [(i, str(ipaddress.ip_address(chance.randrange(10 << 24, 12 << 24)))) for i in range(visits)]
    return seen, known


def run(spark: SparkSession, folder: Path) -> list[Row]:
    """Look up the networks of every visit."""
    seen, known = make_rows()
    visits = spark.createDataFrame(seen, "id bigint, address string")
    networks = spark.createDataFrame(known, "owner string, first string, last string")
    found = owners(visits, networks, str(folder / "state"))
    print(handshake.explain(found))
    return found.select("id", "address", "owner").orderBy("id", "owner").collect()


if __name__ == "__main__":
    with local_spark() as (spark, folder):
        found = run(spark, folder)
        known = {row.id for row in found}
        print(f"{len(found)} networks for {len(known)} visits; the first of them:")
        for row in found[:5]:
            print(f"{row.address:15} {row.owner}")
