"""The query of `examples/on_s3.py` on a cluster: `spark-submit host_query.py DATA STATE`."""

from __future__ import annotations

import sys

from on_s3 import matches, run
from pyspark.sql import SparkSession

if __name__ == "__main__":
    data, state = sys.argv[1:]
    spark = SparkSession.builder.getOrCreate()
    run(matches(spark, data, state), data)
    spark.stop()
