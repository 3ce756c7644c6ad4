"""The Spark examples find what plain loops find, and their guides show the code that runs."""

from __future__ import annotations

import ipaddress
import re
import statistics
from collections import Counter
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from example_runs import load_example as example

ROOT = Path(__file__).parents[2]
GUIDES = {
    "guide-trades-quotes.md": "trades_quotes",
    "guide-sensors.md": "sensors",
    "guide-orders.md": "orders",
    "guide-unpaid-orders.md": "unpaid",
    "guide-last-quote.md": "last_quote",
    "guide-buckets.md": "buckets",
    "guide-ip-ranges.md": "ip_ranges",
    "guide-files.md": "result_files",
    "guide-s3.md": "on_s3",
    "guide-kafka.md": "on_kafka",
    "guide-delta.md": "on_delta",
    "guide-pipelines.md": "pipeline/transformations/matches",
}
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)


scaffold = example("_scaffold")


def within(a: dict[str, Any], b: dict[str, Any], seconds: float) -> bool:
    return abs((a["time"] - b["time"]).total_seconds()) < seconds


def values(row: Any) -> tuple[Any, ...]:
    """Return a row with its times as instants."""
    return tuple(v.timestamp() if hasattr(v, "timestamp") else v for v in row)


def pair_values(a: dict[str, Any], b: dict[str, Any]) -> tuple[Any, ...]:
    return values([*a.values(), *b.values()])


# The examples


def test_trades_with_quotes_near_them(spark, tmp_path, capsys):
    module = example("trades_quotes")
    found = module.run(spark, tmp_path)
    trades, quotes = module.make_rows()
    quotes = [{**q, "mid": (q["bid"] + q["ask"]) / 2} for q in quotes]
    expected = [
        pair_values(t, q)
        for t in trades
        for q in quotes
        if within(t, q, 2) and q["mid"] - 0.05 <= t["price"] <= q["mid"] + 0.05
    ]
    assert Counter(map(values, found)) == Counter(expected)
    assert len(found) > 500
    said = capsys.readouterr().out
    assert "routing     range with overlap: band of 0.05" in said
    assert "trades_near_quotes batch 2: 400 rows" in said


def test_sensors_within_a_distance(spark, tmp_path):
    module = example("sensors")
    found = module.run(spark, tmp_path)
    water, air = module.make_rows()
    expected = [
        (w, a)
        for w in water
        for a in air
        if within(w, a, 30) and (w["x"] - a["x"]) ** 2 + (w["y"] - a["y"]) ** 2 < 4
    ]
    assert Counter(map(values, found)) == Counter(pair_values(w, a) for w, a in expected)
    together = statistics.correlation(
        [w["degrees"] for w, _ in expected], [a["degrees"] for _, a in expected]
    )
    assert module.correlation(found) == pytest.approx(together)
    assert together > 0.5


def test_orders_that_match(spark, tmp_path):
    module = example("orders")
    found = module.run(spark, tmp_path)
    buy, sell = module.make_rows()
    expected = [
        (b["id"], s["id"])
        for b in buy
        for s in sell
        if Decimal(b["price"]) >= Decimal(s["price"])
        and b["shares"] <= s["shares"]
        and b["house"] != s["house"]
        and -60 < (b["time"] - s["time"]).total_seconds() < 20
    ]
    assert Counter((m.id, m.id_right) for m in found) == Counter(expected)
    assert len(expected) > 100


def test_orders_without_a_payment(spark, tmp_path):
    module = example("unpaid")
    after_the_last = "spark.sql.streaming.noDataMicroBatches.enabled"
    spark.conf.set(after_the_last, "true")
    try:
        found = module.run(spark, tmp_path)
    finally:
        spark.conf.set(after_the_last, "false")
    orders, payments = module.make_rows()
    hour = timedelta(hours=1)
    expected = [
        order["id"]
        for order in orders[:-1]
        if not any(
            order["customer"] == payment["customer"]
            and Decimal(payment["paid"]) >= Decimal(order["amount"])
            and timedelta(0) <= payment["time"] - order["time"] < hour
            for payment in payments
        )
    ]
    assert sorted(row.id for row in found) == expected
    assert all(row.noticed == row.time + hour for row in found)
    assert 50 < len(expected) < 200


def test_trades_with_the_last_quote(spark, tmp_path):
    module = example("last_quote")
    after_the_last = "spark.sql.streaming.noDataMicroBatches.enabled"
    spark.conf.set(after_the_last, "true")
    try:
        found = module.run(spark, tmp_path)
    finally:
        spark.conf.set(after_the_last, "false")
    trades, quotes = module.make_rows()
    mark = min(trades[-1]["time"], quotes[-1]["time"]) - timedelta(seconds=5)
    expected = {}
    for trade in trades:
        if trade["time"] < mark:
            candidates = [
                quote
                for quote in quotes
                if quote["symbol"] == trade["symbol"]
                and quote["ask"] - quote["bid"] <= 0.1
                and timedelta(0) <= trade["time"] - quote["time"] <= timedelta(seconds=10)
            ]
            last = max(candidates, key=lambda quote: quote["time"], default={"bid": None})
            expected[trade["id"]] = last["bid"]
    assert {row.id: row.bid for row in found} == expected
    assert len(found) == len(expected) > 550


def test_buckets_and_one_line_agree(spark, tmp_path):
    module = example("buckets")
    bucketed, joined = module.run(spark, tmp_path)
    left, right = module.make_rows()
    expected = [
        pair_values(one, two)
        for one in left
        for two in right
        if within(one, two, 60)
        and abs(one["x"] - two["a"]) <= 10
        and two["b"] - 10 <= one["y"] <= two["b"] + 10
    ]
    assert Counter(map(values, joined)) == Counter(map(values, bucketed)) == Counter(expected)
    assert len(expected) > 100


def test_addresses_in_their_networks(spark, tmp_path):
    module = example("ip_ranges")
    found = module.run(spark, tmp_path)
    visits, networks = module.make_rows()
    ranges = [(owner, *map(ipaddress.ip_address, (first, last))) for owner, first, last in networks]
    expected = [
        (number, address, owner)
        for number, address in visits
        for owner, first, last in ranges
        if first <= ipaddress.ip_address(address) <= last
    ]
    assert Counter(map(tuple, found)) == Counter(expected)
    assert len(expected) > 1000


# The pages


def test_pairs_in_parquet_files(spark, tmp_path):
    module = example("result_files")
    found = module.run(spark, tmp_path)
    ours, theirs = module.make_rows()
    expected = [
        (a["id"], b["id"])
        for a in ours
        for b in theirs
        if abs(a["place"] - b["place"]) <= 0.5 and abs(a["value"] - b["value"]) <= 2 and within(a, b, 60)
    ]
    pairs = zip(found["id"].to_pylist(), found["id_right"].to_pylist(), strict=True)
    assert Counter(pairs) == Counter(expected)
    assert len(expected) > 3000
    names = [f"{name}{suffix}" for suffix in ("", "_right") for name in ("time", "id", "place", "value")]
    assert found.schema.names == names


@pytest.mark.parametrize(("page", "name"), GUIDES.items())
def test_a_guide_shows_code_of_its_example(page, name):
    code = (ROOT / "examples" / f"{name}.py").read_text()
    text = (ROOT / "docs" / "spark" / page).read_text()
    blocks = BLOCK.findall(text)
    assert blocks
    for block in blocks:
        assert block in code
    for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL):
        assert block == (ROOT / "examples" / "pipeline" / "spark-pipeline.yml").read_text()


def test_links_in_the_pages_lead_somewhere():
    for page in (ROOT / "docs" / "spark").glob("*.md"):
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
            assert target.startswith("https://") or (page.parent / target).exists(), (page.name, target)


def test_what_the_first_page_shows_of_spark_runs(spark, tmp_path):
    """Run the blocks of the section in order, in an empty folder."""
    section = (ROOT / "docs" / "index.md").read_text().split("## On Spark")[1].split("\n## ")[0]
    module = example("trades_quotes")
    for name, rows in zip(("trades", "quotes"), module.make_rows(), strict=True):
        scaffold.write_files(rows, tmp_path / name)
    names: dict[str, Any] = {"spark": spark}
    for block in BLOCK.findall(section):
        placed = re.sub(r'"(trades|quotes|matches|checkpoint|handshake-state)"', rf'"{tmp_path}/\1"', block)
        exec(compile(placed, "index.md", "exec"), names)
    assert names["matches"].isStreaming
    assert not spark.streams.active
    assert spark.read.parquet(f"{tmp_path}/matches").count() > 100


def test_spark_refuses_what_the_migration_page_says(spark, tmp_path):
    page = (ROOT / "docs" / "spark" / "migration.md").read_text()
    module = example("buckets")
    left, right = module.make_rows()
    scaffold.write_files(left, tmp_path / "left")
    scaffold.write_files(right, tmp_path / "right")
    joined = read_marked(spark, tmp_path / "left", module.LEFT).join(
        read_marked(spark, tmp_path / "right", module.RIGHT).withColumnRenamed("time", "time_right"),
        on=_expression(
            f"{module.BAND} AND time_right BETWEEN time - INTERVAL 1 MINUTE AND time + INTERVAL 1 MINUTE"
        ),
    )
    query = (
        joined.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    )
    with pytest.raises(Exception) as refused:
        query.awaitTermination()
    text = "Stream-stream join without equality predicate is not supported."
    assert text in str(refused.value)
    assert text in page


def read_marked(spark: Any, folder: Path, schema: str) -> Any:
    return scaffold.read_stream(spark, folder, schema).withWatermark("time", "5 seconds")


def _expression(text: str) -> Any:
    from pyspark.sql import functions as F

    return F.expr(text)
