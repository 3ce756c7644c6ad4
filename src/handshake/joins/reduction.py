"""Joins whose pairs are reduced where they are found: the columns that this takes, and what comes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from handshake.errors import UnsupportedError
from handshake.joins.spec import JoinSpec, SideSpec
from handshake.kernels.prepare import HIDDEN, Prepared, Source, prepare_value
from handshake.kernels.reduction import Panes, Reduction, Word
from handshake.plan.expr import Column, Expr, conjunction, conjuncts, show, walk
from handshake.schema import Int

Array = np.ndarray[Any, Any]
PANE, GROUP = HIDDEN + "pane", HIDDEN + "group"
"""Hidden columns with the stamp of a row (`Panes`) and with the number of its group."""


@dataclass(frozen=True)
class States:
    """The states that a search has reduced its pairs to, one per row."""

    panes: Array
    clocks: Array
    """Panes of the latest clocks; not before those of times."""
    groups: tuple[Array, Array]
    words: Array
    """A column per word of the reduction."""


def reduce_spec(spec: JoinSpec, words: Sequence[Word], panes: Panes, grouped: tuple[bool, bool]) -> JoinSpec:
    """Return a join of time windows on a GPU that reduces its pairs to words.

    Batches have the column `PANE`, and `GROUP` on sides with groups.
    """
    if spec.prepared.doubtful:
        raise UnsupportedError(
            f"a GPU does not decide {show(spec.prepared.doubtful[0])} alone, and pairs are aggregated there; "
            'use device="cpu"'
        )
    prepared = replace(spec.prepared, sources=dict(spec.prepared.sources))
    made = tuple(_prepare(word, prepared) for word in words)
    left, right = (Column(side, PANE, type=panes.type) for side in (0, 1))
    groups = tuple(Column(side, GROUP, type=Int(32)) if has else None for side, has in enumerate(grouped))
    exprs = [expr for word in made for expr in word.exprs]
    columns = [
        *(c for e in exprs for c in walk(e) if isinstance(c, Column)),
        left,
        right,
        *filter(None, groups),
    ]
    sides = tuple(_with_columns(side, columns, prepared) for side in spec.sides)
    reduction = Reduction(made, panes, (left, right), (groups[0], groups[1]))
    return replace(spec, prepared=prepared, sides=(sides[0], sides[1]), reduction=reduction)


def _prepare(word: Word, prepared: Prepared) -> Word:
    value = None if word.value is None else prepare_value(word.value, prepared)
    where = conjunction(tuple(prepare_value(part, prepared) for part in conjuncts(word.where)))
    return replace(word, where=where, value=value)


def _with_columns(side: SideSpec, columns: Sequence[Expr], prepared: Prepared) -> SideSpec:
    """Return a side that also has some columns."""
    more = [c for c in columns if isinstance(c, Column) and c.side == side.side]
    used = tuple(dict.fromkeys([*side.columns, *more]))
    known = {name for name, _ in side.derived}
    derived = [
        (column.name, source)
        for column, source in prepared.sources.items()
        if column in more and column.name not in known and source != Source(column)
    ]
    return replace(side, columns=used, derived=(*side.derived, *derived))
