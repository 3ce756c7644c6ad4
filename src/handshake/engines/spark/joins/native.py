"""Batch joins that Spark runs itself: equalities of plain columns, without windows.

Spark's rules must give the same answer as ours (docs/semantics.md) for every pair. NULL matches nothing in
both. Only in Spark, NaN equals itself and exceeds every number, so NaN is excluded first.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from handshake.engines.spark.joins.definition import Definition
from handshake.engines.spark.joins.inputs import output_type
from handshake.engines.spark.private import is_padded
from handshake.plan import expr as tree
from handshake.plan.expr import Compare, Expr, conjuncts, sides
from handshake.schema import Bool, Date, Decimal, Float, Int, String, Timestamp, Type

WHY = "the predicate is an equality of plain columns, which Spark evaluates with the same result"
_EXACT = (Bool, Int, Decimal, Date, Timestamp, String)


def is_native(left: DataFrame, right: DataFrame, definition: Definition) -> bool:
    """Return whether Spark's own join gives the same rows, at least as fast."""
    if definition.options.method != "auto":
        return False
    if definition.windows.left is not None or definition.windows.right is not None:
        return False
    chooses = definition.best is not None or definition.ranking is not None
    if chooses or definition.kind.name in ("right_semi", "right_anti"):  # Spark has none
        return False
    parts = conjuncts(definition.spec.analysis.predicate)
    equates = any(isinstance(part, Compare) and part.op == "=" and sides(part) == {0, 1} for part in parts)
    return equates and all(_plain(part, (left, right)) for part in parts)


def _plain(part: Expr, frames: tuple[DataFrame, DataFrame]) -> bool:
    """Return whether this compares two columns by rules that Spark shares."""
    if not isinstance(part, Compare):
        return False
    columns = [side for side in (part.left, part.right) if isinstance(side, tree.Column)]
    return (
        len(columns) == 2
        and _same_rules(columns[0].type, columns[1].type, part.op)
        and not any(is_padded(frames[column.side].schema[column.name]) for column in columns)
    )


def _same_rules(a: Type, b: Type, op: str) -> bool:
    if isinstance(a, Float):
        return a == b and op != "<>"
    return (isinstance(a, Int) and isinstance(b, Int)) or (a == b and isinstance(a, _EXACT))


def join_natively(left: DataFrame, right: DataFrame, definition: Definition) -> DataFrame:
    """Run Spark's join, and name its columns as ours."""
    frames = tuple(
        frame.toDF(*(f"{letter}{i}" for i in range(len(frame.columns))))
        for letter, frame in (("l", left), ("r", right))
    )
    places = [{name: i for i, name in enumerate(frame.columns)} for frame in (left, right)]

    def column(of: Expr) -> Column:
        assert isinstance(of, tree.Column)
        return F.col(f"{'lr'[of.side]}{places[of.side][of.name]}")

    condition = F.lit(True)
    for part in conjuncts(definition.spec.analysis.predicate):
        assert isinstance(part, Compare)
        condition = condition & _condition(part, column(part.left), column(part.right))
    kind = output_type(definition, left, right)
    joined = frames[0].join(frames[1], condition, definition.kind.name)
    return joined.select(
        *(F.col(old).alias(f.name, metadata=f.metadata) for old, f in zip(joined.columns, kind, strict=True))
    )


def _condition(part: Compare, a: Column, b: Column) -> Column:
    holds = {"=": a == b, "<>": a != b, "<": a < b, "<=": a <= b, ">": a > b, ">=": a >= b}[part.op]
    return holds & ~F.isnan(a) & ~F.isnan(b) if isinstance(part.left.type, Float) else holds
