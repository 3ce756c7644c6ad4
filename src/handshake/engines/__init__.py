"""The engines that run plans: local, spark and circuit."""
