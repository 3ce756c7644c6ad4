"""Projections, selections and computed columns: by Spark's own operators, if they compute the same."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from handshake.engines.spark.expressions import native
from handshake.engines.spark.queries.inputs import quoted
from handshake.engines.spark.queries.tasks import carried, chained, in_arrow
from handshake.plan.algebra import Apply, Node, Project, Select
from handshake.plan.assemble import substitute
from handshake.plan.expr import Column, Expr, conjuncts
from handshake.schema import Schema

__all__ = ["chained_frame"]


def chained_frame(frame: DataFrame, below: Schema, nodes: list[Node], result: Schema) -> DataFrame:
    """A chain of these nodes on a DataFrame whose columns are a plan's."""
    found = _natively(frame, below, nodes, result)
    if found is not None:
        return found
    return in_arrow(frame, chained(below, nodes, result), from_arrow_schema(carried(result)))


def _natively(frame: DataFrame, below: Schema, nodes: list[Node], result: Schema) -> DataFrame | None:
    columns = dict(zip(below.names, quoted(below.names), strict=True))
    known: dict[str, Expr] = {f.name: Column(0, f.name, type=f.type) for f in below}
    for node in nodes:
        match node:
            case Apply(name=name, operation=operation):
                known[name] = substitute(operation, known)
            case Select(field=field):
                for part in conjuncts(known[field]):
                    condition = native(part, columns)
                    if condition is None:
                        return None
                    frame = frame.where(condition)
            case Project(columns=kept):
                known = {new: known[old] for new, old in kept}
    values = {name: native(expr, columns) for name, expr in known.items()}
    kinds = from_arrow_schema(carried(result))
    made = [
        None if values[f.name] is None else values[f.name].cast(kind.dataType).alias(f.name)  # type: ignore[union-attr]
        for f, kind in zip(result, kinds, strict=True)
    ]
    return None if any(m is None for m in made) else frame.select(*made)  # type: ignore[arg-type]
