"""Continuous queries on Spark: translation to Spark operators, and the tasks they run."""
