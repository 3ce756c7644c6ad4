"""The local engine: joins and continuous queries on the CPU cores of one machine."""
