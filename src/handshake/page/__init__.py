"""The live page: figures of running joins and queries, served on this machine and read-only."""
