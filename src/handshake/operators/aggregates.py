"""How aggregates are computed, and the registry of how: the interface between windows and aggregates.

A *slot* is a set of rows that are aggregated together: a window, a group of a window, a pane, a session. An
operator of windows decides which row is in which slot and knows nothing about functions:

- `aggregate_slots` returns the results of slots from their rows, for every aggregate.
- `state_of` returns how the states of an algebraic aggregate (`not aggregate.holistic`) are computed.
  `reduce` turns rows into states, `combine` makes states of larger slots from those of smaller ones (a window
  from panes, a session from two that merge), and `finish` turns states into results. States are arrays with
  one row per slot, or tuples of such arrays; they can be taken, stacked and pickled.

Rows come in the order of arrival. The results do not depend on how they are cut into batches or slots.
The state of an algebraic function is `Additive` (numbers are added, and can be subtracted again) or `Extreme`
(the largest stays). A holistic function is a function of the values of slots (`operators/holistic.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

from handshake.errors import UnsupportedError
from handshake.operators import holistic
from handshake.operators.chunk import Array
from handshake.operators.extremes import Extreme, First, Last, Least, MaxBy, MinBy
from handshake.operators.slots import Rows, Values
from handshake.operators.sums import Additive, Average, CountIf, StandardDeviation, Sum, Variance
from handshake.plan.aggregates import AGGREGATES, AggregateFunction, find_aggregate
from handshake.plan.algebra import Aggregate

State = Additive | Extreme
Form = type[Additive] | type[Extreme] | Callable[[Aggregate, Values], pa.Array]
"""How a function is computed: the class of its state, or a function of the values of slots."""
_FORMS: dict[str, Form] = {
    "count": Additive,
    "count_if": CountIf,
    "sum": Sum,
    "avg": Average,
    "min": Least,
    "max": Extreme,
    "var_samp": Variance,
    "var_pop": Variance,
    "stddev_samp": StandardDeviation,
    "stddev_pop": StandardDeviation,
    "any": Extreme,
    "every": Least,
    "first": First,
    "last": Last,
    "max_by": MaxBy,
    "min_by": MinBy,
    "wsum": holistic.weighted_sums,
    "median": holistic.medians,
    "mode": holistic.modes,
    **dict.fromkeys(("percentile", "percentile_cont"), holistic.percentiles),
    **dict.fromkeys(("approx_percentile", "percentile_disc"), holistic.quantiles),
    **dict.fromkeys(("collect_list", "collect_set"), holistic.list_values),
    "string_agg": holistic.join_texts,
}


def register(function: AggregateFunction, form: Form) -> None:
    """Add an aggregate function that queries on the local and the Spark engine can use from now on.

    Args:
        function: its name, arguments and type. An algebraic one needs a class as its form, a holistic one a
            function.
        form: a subclass of `Additive` or `Extreme`, or a function from the values of slots to an Arrow array.

    Raises:
        UnsupportedError: The name is taken, or the form does not fit the kind.

    Examples:
        >>> from handshake import Query
        >>> from handshake.schema import INT64
        >>> def numbers(aggregate, values):
        ...     return pa.array(values.bounds[1:] - values.bounds[:-1])
        >>> register(AggregateFunction("number", lambda argument: INT64, "holistic"), numbers)
        >>> text = "CREATE INPUT STREAM S (v int); SELECT number(v) AS n FROM S [TUMBLE 2 TUPLES]"
        >>> with Query(text) as query:
        ...     [batch.to_pylist() for batch in query.push("S", {"v": [7, 8, 9, None]})["result"]]
        [[{'n': 2}, {'n': 1}]]
        >>> unregister("number")
    """
    taken = next((name for name in (function.name, *function.aliases) if find_aggregate(name)), None)
    if taken is not None:
        raise UnsupportedError(f"an aggregate function {taken}() is registered already")
    if (function.kind == "algebraic") != isinstance(form, type):
        raise UnsupportedError(
            f"{function.name}() is {function.kind}: the form of an algebraic function is a class, that of a "
            "holistic one is a function"
        )
    AGGREGATES[function.name], _FORMS[function.name] = function, form


def unregister(name: str) -> None:
    """Remove an aggregate function that `register` added."""
    del AGGREGATES[name], _FORMS[name]


def _form(aggregate: Aggregate) -> Form:
    if aggregate.function not in _FORMS:
        raise UnsupportedError(f"the local engine cannot compute {aggregate.function}()")
    return _FORMS[aggregate.function]


def state_of(aggregate: Aggregate) -> State:
    """Return how the states of an algebraic aggregate are computed."""
    form: Any = _form(aggregate)
    kind = None if aggregate.field is None else aggregate.input.schema.get(aggregate.field).type
    state: State = form(aggregate, kind)
    return state


def reduce_rows(state: State, rows: Rows) -> Any:
    """Return the states of slots from the rows that the aggregate's FILTER selects."""
    return state.reduce(rows.where(state.aggregate.where))


def aggregate_slots(
    aggregate: Aggregate, slots: Array, count: int, columns: Mapping[str, pa.Array]
) -> pa.Array:
    """Return the result of each slot, given the slot of each row and the columns, in the order of arrival."""
    rows, form = Rows(slots, count, columns).where(aggregate.where), _form(aggregate)
    if aggregate.distinct:
        rows = rows.distinct(aggregate.fields)
    if not isinstance(form, type):
        return form(aggregate, rows.values(aggregate.fields[0], aggregate.order))
    state: Any = state_of(aggregate)
    return state.finish(state.reduce(rows))
