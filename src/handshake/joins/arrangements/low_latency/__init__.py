"""The low_latency arrangement: rows visit all cores at once and settle at one."""
