"""Arrays in, index pairs out: predicates compiled into scans, and probes of clustered tuples."""
