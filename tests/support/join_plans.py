"""Plans of random cases: the options of a join, and the plan if its method fits the predicate."""

from __future__ import annotations

import pyarrow as pa

from handshake.errors import UnsupportedError
from handshake.joins.join import prepare
from strategies import Case

METHODS = ("auto", "scan", "hash", "band")


def options(case: Case) -> dict:
    return {
        "left_window": case.windows.left,
        "right_window": case.windows.right,
        "left_time": case.left_time,
        "right_time": case.right_time,
    }


def plan_join(left: pa.Table, right: pa.Table, case: Case, chosen: dict):
    """Return the plan, or None if the chosen method does not fit the predicate."""
    try:
        return prepare(left.schema, right.schema, case.on, **chosen, **options(case))
    except UnsupportedError as error:
        # Repeated products of decimals may need more than 512 bits, which is an error.
        if chosen["method"] in ("hash", "band") or "bits" in str(error):
            return None
        raise
