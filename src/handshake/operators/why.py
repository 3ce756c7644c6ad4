"""Why rows of streams, one of each, are a result of the window joins of a query, or not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import pyarrow as pa

from handshake.errors import InputError, UnsupportedError, suggest
from handshake.joins.why.answer import Condition, Why
from handshake.joins.why.asof import explain_asof, explain_held_asof
from handshake.joins.why.best import BEST
from handshake.joins.why.conditions import Member, Places, show_parts, window_conditions
from handshake.joins.why.rows import conform_row, one_row
from handshake.kernels.columns import as_array
from handshake.kinds import INNER
from handshake.operators.join_asof import as_of_match, as_of_schema
from handshake.operators.joins import JoinOperator
from handshake.operators.pipeline import Pipeline
from handshake.operators.presence import Given, Presence, find_rows
from handshake.operators.sources import arrow_schema, times_in
from handshake.plan.algebra import (
    MEMBER_TIME,
    Apply,
    Node,
    Plan,
    Project,
    Select,
    Source,
    WindowJoin,
    chain,
    walk,
)
from handshake.plan.assemble import substitute
from handshake.plan.expr import Column, Expr, conjuncts, show, transform
from handshake.plan.expr import walk as walk_expr
from handshake.schema import UNITS, arrow_of


def streams_of_joins(plan: Plan) -> dict[str, pa.Schema]:
    """Return the columns of the rows that `explain_query` asks for, by the names in the query."""
    return {
        name: _asked_schema(node)
        for join, _ in _joins(plan)
        for name, node in zip(join.names, join.inputs, strict=True)
        if not isinstance(chain(node)[0], WindowJoin)
    }


def _asked_schema(node: Node) -> pa.Schema:
    below = chain(node)[0]
    return arrow_schema(below) if isinstance(below, Source) else _schema(node)


def _schema(node: Node) -> pa.Schema:
    return pa.schema([(f.name, arrow_of(f.type)) for f in node.schema])


def _joins(plan: Plan) -> list[tuple[WindowJoin, str]]:
    """Return the window joins of a plan, each with the results that it is for."""
    found: dict[str, tuple[WindowJoin, list[str]]] = {}
    for output in plan.outputs:
        for node in walk(output):
            if isinstance(node, WindowJoin):
                # not the node itself: 0.0 and -0.0 are equal, but not the same
                _, names = found.setdefault(repr(node), (node, []))
                names += [] if output.name in names else [output.name]
    return [(join, ", ".join(names)) for join, names in found.values()]


def running_joins(written: Plan, plan: Plan) -> Iterator[tuple[str, WindowJoin]]:
    """Yield the joins of a plan, as they run, by those of the text.

    Rules of the optimiser change what is around a join and what it reads. They neither drop nor add one.
    """
    for mine, theirs in zip(written.outputs, plan.outputs, strict=True):
        yield from zip(map(repr, _joins_in(mine)), _joins_in(theirs), strict=True)


def _joins_in(node: Node) -> list[WindowJoin]:
    return [each for each in walk(node) if isinstance(each, WindowJoin)]


def explain_query(
    plan: Plan, given: Mapping[str, Any], inputs: Mapping[str, pa.Table] | None = None,
    running: Mapping[str, JoinOperator] | None = None,
) -> tuple[Why, ...]:  # fmt: skip
    """Explain rows, one of each stream, by each window join that they are enough for.

    Args:
        plan: The plan, as written.
        given: The rows by the names that streams have in the joins, or by the names of inputs: dicts of
            values, frames of one row, numbers of rows in `inputs`, or None for a row of NULLs.
        inputs: Whole inputs by name, if they are known.
        running: The joins of a running query, by the text of those of the plan.

    Raises:
        UnsupportedError: The query has no window join.
        InputError: A row is not there, is of no stream, or no join has a row of each stream.
    """
    joins = _joins(plan)
    if not joins:
        raise UnsupportedError(
            "the query joins no streams, so there is nothing to say about rows of several streams"
        )
    asker = _Asker(given, inputs or {})
    known = {name for join, _ in joins for name in asker.names(join)}
    for name in given:
        if name not in known:
            raise InputError(
                f"no join of the query reads a stream '{name}' ({', '.join(sorted(known))})"
                f"{suggest(name, sorted(known))}"
            )
    found = [
        _explain_join(plan, join, asker, results, (running or {}).get(repr(join)))
        for join, results in joins
        if asker.has_rows(join)
    ]
    if not found:
        first = joins[0][0]
        missing = next(name for name in asker.streams(first) if not asker.is_given(name))
        raise InputError(
            f"no row of '{missing}' is given; the join of {' and '.join(first.names)} needs a row of each"
        )
    return tuple(found)


class _Row(NamedTuple):
    """A row of an input of a join."""

    batch: pa.RecordBatch
    time: int | None
    """Its time in the unit of its clock."""
    column: str | None
    """The time column; None if the time of the row is not known."""
    conditions: tuple[Condition, ...] = ()
    """Selections between the stream and the join."""
    below: pa.RecordBatch | None = None
    """The row below the operators between the stream and the join, if there are any."""


@dataclass(frozen=True)
class _Asker:
    """The rows that are asked about."""

    given: Mapping[str, Any]
    inputs: Mapping[str, pa.Table]

    def streams(self, join: WindowJoin) -> Iterator[str]:
        """Yield the streams of which a join and those below it need rows, as the query names them."""
        for name, node in zip(join.names, join.inputs, strict=True):
            below = chain(node)[0]
            if isinstance(below, WindowJoin) and name not in self.given:
                yield from self.streams(below)
            else:
                yield self._key(name, below)

    def names(self, join: WindowJoin) -> Iterator[str]:
        """Yield all names by which rows of a join may be given."""
        for name, node in zip(join.names, join.inputs, strict=True):
            below = chain(node)[0]
            yield name
            if isinstance(below, Source):
                yield below.name

    def _key(self, name: str, below: Node) -> str:
        """Return the name by which a row is given: that in the join, else that of the input."""
        return below.name if name not in self.given and isinstance(below, Source) else name

    def is_given(self, name: str) -> bool:
        """Return true if a row of a stream is given; None is a row of NULLs."""
        return name in self.given

    def has_rows(self, join: WindowJoin) -> bool:
        """Return true if there is a row for each stream of a join."""
        names = [self._key(n, chain(i)[0]) for n, i in zip(join.names, join.inputs, strict=True)]
        missing = [name in self.given and self.given[name] is None for name in names]
        return all(map(self.is_given, self.streams(join))) and not any(missing)

    def row(self, name: str, node: Node) -> _Row:
        """Return the row of an input of a join."""
        below, nodes = chain(node)
        if isinstance(below, WindowJoin) and name not in self.given:
            found = self._combine(below)
        else:
            found = self._read_given(self._key(name, below), below)
        if not nodes:
            return found
        conditions = (*found.conditions, *_selections(found.batch, below, nodes))
        batch = _compute(found.batch, below, nodes)
        return found._replace(batch=batch, conditions=conditions, below=found.batch)

    def _read_given(self, name: str, node: Node) -> _Row:
        schema = arrow_schema(node) if isinstance(node, Source) else _schema(node)
        value = self.given[name]
        if value is None:
            nulls = [pa.nulls(1, kind) for kind in schema.types]
            return _Row(pa.RecordBatch.from_arrays(nulls, schema=schema), None, None)
        if isinstance(value, int):
            batch = one_row(value, self.inputs.get(node.name) if isinstance(node, Source) else None, name)
        else:
            batch = conform_row(value, schema, name)
        if not isinstance(node, Source) or node.time is None:
            return _Row(batch, None, None)
        return _Row(batch, _times(node, batch)[0], node.time)

    def _combine(self, join: WindowJoin) -> _Row:
        """Return the result of a join below another one, of the rows that are given."""
        parts = [self.row(name, node) for name, node in zip(join.names, join.inputs, strict=True)]
        arrays: list[pa.Array] = []
        for part, node, shown in zip(parts, join.inputs, join.shown, strict=True):
            if not shown:
                continue
            arrays += part.batch.columns
            if join.times:
                time = _in_unit(part.time, node, join)
                arrays.append(pa.array([time], pa.int64()).view(pa.timestamp(join.clock.unit)))
        schema = _schema(join)
        batch = pa.RecordBatch.from_arrays(
            [array.cast(kind) for array, kind in zip(arrays, schema.types, strict=True)], schema=schema
        )
        times = [_in_unit(part.time, node, join) for part, node in zip(parts, join.inputs, strict=True)]
        known = [time for time in times if time is not None]
        if join.match and times[0] is not None and not join.looks_ahead:
            return _Row(batch, times[0], parts[0].column)
        if join.match or join.kind.pairs != "all" or len(known) < len(times):
            return _Row(batch, None, None)
        return _Row(batch, max(known), "time")

    def candidates(self, name: str, node: Node) -> tuple[pa.Table, list[int | None]] | None:
        """Return all rows of an input of a join with their times; None if they are not known."""
        below, nodes = chain(node)
        if not isinstance(below, Source) or below.name not in self.inputs or below.time is None:
            return None
        whole = self.inputs[below.name]
        arrays = [as_array(column) for column in whole.columns]
        batch = pa.RecordBatch.from_arrays(arrays, schema=whole.schema)
        run = Pipeline(below.schema.fields, nodes).run
        columns, _, places = run(dict(zip(whole.schema.names, arrays, strict=True)), batch.num_rows)
        times = _times(below, batch)
        kept = times if places is None else [times[at] for at in places.tolist()]
        return pa.table([columns[f.name] for f in node.schema], schema=_schema(node)), kept


def _times(source: Source, batch: pa.RecordBatch) -> list[int | None]:
    """Return the times of rows in the unit of their stream's clock; None for those without one."""
    times, timed = times_in(source, dict(zip(batch.schema.names, batch.columns, strict=True)))
    known = [True] * len(times) if timed is None else timed.tolist()
    return [int(time) if some else None for time, some in zip(times, known, strict=True)]


def _in_unit(time: int | None, node: Node, join: WindowJoin) -> int | None:
    """Return a time of an input in the unit of a join, which is at least as fine."""
    return None if time is None else time * (UNITS[node.clock.unit] // UNITS[join.clock.unit])


def _compute(batch: pa.RecordBatch, below: Node, nodes: Sequence[Node]) -> pa.RecordBatch:
    """Return a row after a chain of operators, whose selections it need not pass."""
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    kept = [node for node in nodes if not isinstance(node, Select)]
    found, _, _ = Pipeline(below.schema.fields, kept).run(columns, 1)
    schema = _schema(nodes[-1])
    return pa.RecordBatch.from_arrays([found[name] for name in schema.names], schema=schema)


def _selections(batch: pa.RecordBatch, below: Node, nodes: Sequence[Node]) -> Iterator[Condition]:
    """Yield whether a row passes each selection of a chain of operators."""
    columns = {f.name: Column(0, f.name, type=f.type) for f in below.schema}
    arrays = {columns[name]: array for name, array in zip(batch.schema.names, batch.columns, strict=True)}
    known: dict[str, Expr] = {**columns}
    for node in nodes:
        match node:
            case Apply(name=name, operation=operation):
                known[name] = substitute(operation, known)
            case Project(columns=renamed):
                known = {new: known[old] for new, old in renamed}
            case Select(field=field):
                yield from _show_parts(known[field], arrays, lambda column: column.name)


def _show_parts(
    condition: Expr, arrays: Mapping[Column, pa.Array], name: Callable[[Column], str]
) -> Iterator[Condition]:
    """Yield whether each part of a condition holds, with columns as they are named in the query."""

    def write(column: Column) -> str:
        return name(column).replace("\0", "")  # the mark of the hidden columns with the times of rows

    def rule(node: Expr) -> Expr:
        return replace(node, shown=write(node)) if isinstance(node, Column) else node

    return show_parts(((show(transform(p, rule)), p) for p in conjuncts(condition)), arrays, write)


# One join


def _explain_join(
    plan: Plan, join: WindowJoin, asker: _Asker, results: str, operator: JoinOperator | None
) -> Why:
    """Explain the rows of a join; `operator` runs it."""
    rows = [asker.row(name, node) for name, node in zip(join.names, join.inputs, strict=True)]
    title = f"join of {' and '.join(join.names)} for {results}"
    below = [condition for row in rows for condition in row.conditions]
    predicate = [*below, *_predicate(join, rows)]
    times = [_in_unit(row.time, node, join) for row, node in zip(rows, join.inputs, strict=True)]
    unknown = [name for name, row in zip(join.names, rows, strict=True) if row.column is None]
    above, seen = [*_above(plan, join, rows)], None
    if operator is not None:
        given = [
            Given(row.batch if row.below is None else row.below, time, row.column)
            for row, time in zip(rows, times, strict=True)
        ]
        seen = find_rows(operator, given)
    if join.match:
        why = _explain_as_of(join, rows, times, asker, predicate, seen)
        return replace(why, conditions=(*why.conditions, *above), title=title)
    places, found = (None, ()) if seen is None else (seen.places, seen.found)
    conditions = [*predicate, *_windows(join, rows, times, unknown, places), *above, *found]
    notes = () if join.kind == INNER else (f"this is {join.called}: {join.kind.help}",)
    return Why(tuple(conditions), notes, title)


def _predicate(join: WindowJoin, rows: Sequence[_Row]) -> Iterator[Condition]:
    read = {node for node in walk_expr(join.on) if isinstance(node, Column)}
    arrays = {column: _column(join, rows, column) for column in read}
    return _show_parts(join.on, arrays, lambda column: f"{join.names[column.side]}.{column.name}")


def _column(join: WindowJoin, rows: Sequence[_Row], column: Column) -> pa.Array:
    """Return a column of a row that a condition reads; it may be the time of the row."""
    row, node = rows[column.side], join.inputs[column.side]
    if column.name != MEMBER_TIME:
        return row.batch.column(column.name)
    return pa.array([_in_unit(row.time, node, join)], pa.int64()).view(arrow_of(column.type))


def _windows(
    join: WindowJoin, rows: Sequence[_Row], times: Sequence[int | None], unknown: Sequence[str],
    places: Places | None,
) -> Iterator[Condition]:  # fmt: skip
    """Yield the rule of each window."""
    timed = any(window is not None and window.timed for window in join.windows)
    if timed and unknown:
        for name, window in zip(join.names, join.windows, strict=True):
            if window is not None:
                detail = f"the time of the row of {unknown[0]} is not known: no column of its stream has it"
                yield Condition(f"window of {name}, {window}", "unknown", detail)
        return
    unit = join.clock.unit
    members = [
        Member(name, window, None if window is None else window.rule(unit), time, row.column, sided=False)
        for name, window, time, row in zip(join.names, join.windows, times, rows, strict=True)
    ]
    yield from window_conditions(members, unit, places)


def _above(plan: Plan, join: WindowJoin, rows: Sequence[_Row]) -> Iterator[Condition]:
    """Yield whether a pair passes the selections between a join and the results that it is for."""
    if not all(join.shown) or join.times:
        return
    for output in plan.outputs:
        below, nodes = chain(output.input)
        if repr(below) == repr(join):
            arrays = [array for row in rows for array in row.batch.columns]
            batch = pa.RecordBatch.from_arrays(arrays, names=list(join.schema.names))
            yield from _selections(batch, below, nodes)


def _explain_as_of(
    join: WindowJoin, rows: Sequence[_Row], times: Sequence[int | None], asker: _Asker,
    predicate: Sequence[Condition], seen: Presence | None,
) -> Why:  # fmt: skip
    """Explain the rows of an as-of join."""
    present = () if seen is None else seen.found
    if any(row.column is None for row in rows):
        detail = "the time of a row is not known: no column of its stream has it"
        return Why((*predicate, *present, Condition(BEST, "unknown", detail)))
    schemas = as_of_schema(join, 0), as_of_schema(join, 1)
    batches = [
        _timed_rows(pa.Table.from_batches([row.batch]), [time], schema).to_batches()[0]
        for row, time, schema in zip(rows, times, schemas, strict=True)
    ]
    match, within = as_of_match(join, schemas, 1), f"less than {join.windows[1]} away"
    if seen is not None and seen.left is not None and seen.right is not None:
        # whole inputs have right rows that were late, or have not come
        return explain_held_asof(
            match, batches, seen.right, seen.left, present, predicate=predicate, within=within
        )
    found, right = asker.candidates(join.names[1], join.inputs[1]), None
    if found is not None:
        right = _timed_rows(found[0], [_in_unit(t, join.inputs[1], join) for t in found[1]], schemas[1])
    unknown = f"the other rows of {join.names[1]} are not known; give the whole inputs"
    return explain_asof(match, batches, right, predicate=predicate, within=within, unknown=unknown)


def _timed_rows(rows: pa.Table, times: Sequence[int | None], schema: pa.Schema) -> pa.Table:
    """Return rows as an as-of join reads them: with their times in the last column."""
    clock = pa.array(times, pa.int64()).view(schema.types[-1])
    return pa.table([*rows.columns, clock], schema=schema).combine_chunks()
