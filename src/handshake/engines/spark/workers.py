"""What keeps Spark's Python workers quick from one task to the next."""

from __future__ import annotations

import gc

from pyspark import TaskContext

__all__ = ["settle"]

_MANY = 20_000
"""Objects that may be looked at after every task: about 10 ms."""


def settle() -> None:
    """Let a worker not search its libraries for garbage each time that a task ends: tasks begin with this.

    Spark's daemon runs `gc.collect()` after every task of a worker that it will use again. With Numba, Arrow
    and pandas loaded that goes through 130,000 objects, none of which is garbage: 65 to 100 ms of CPU, five
    times in a micro-batch of a query. What is old when a task begins, in a worker that has just been tidied,
    is libraries and compiled code, which stay.
    """
    if TaskContext.get() is not None and len(gc.get_objects(2)) > _MANY:
        gc.freeze()
