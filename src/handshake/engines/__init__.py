"""The engines that run plans: local, spark and circuit."""

from handshake.engines.engine import Engine, Run, engine, engine_module

__all__ = ["Engine", "Run", "engine", "engine_module"]
