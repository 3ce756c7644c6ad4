"""The Spark back end: window joins on DataFrames, streaming and batch."""
