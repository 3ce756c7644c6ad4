"""Basic windows: immutable, columnar runs of tuples with the extremes that let probes skip them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from handshake.joins.driver import arrays_of, stored_column
from handshake.joins.spec import ROW, TIME, Attribute, SideSpec
from handshake.kernels.arrivals import Arrival, Layout, describe, layout_of
from handshake.kernels.cluster import NO_CELLS, Cells, cluster_band, cluster_hash
from handshake.kernels.codes import FACTS, NO_CODES, Codes
from handshake.kernels.collect import Places, places_of, row_bytes
from handshake.kernels.columns import FEW, Columns, as_array, extremes, integers, layout
from handshake.kernels.evaluate import evaluate
from handshake.kernels.gather import gather_batch
from handshake.kernels.keys import Edges, edges_of, limits_at, row_hash, sort_key
from handshake.plan.analyse import Bound
from handshake.plan.expr import Column, Expr
from handshake.plan.types import is_exact
from handshake.schema import concat_batches

Array = np.ndarray[Any, Any]
Span = tuple[int, int]
_NO_KEYS = np.empty(0, np.int64)


@dataclass
class Demand:
    """How much a basic window has been asked for; and its clustered form, once that pays."""

    asked: int = 0
    answer: BasicWindow | None = None


@dataclass(eq=False)  # not frozen, since that makes it four times as slow to create
class BasicWindow:
    """Tuples of one side, with hidden columns, in arrival order or clustered by an index. Never changed."""

    spec: SideSpec
    batch: pa.RecordBatch
    cells: Cells | None = None
    keys: Array = field(default_factory=lambda: _NO_KEYS)
    """Where cells are sorted: what by."""
    arrived: float = 0.0
    """When the first of its tuples came, in seconds of `perf_counter`, where someone counts latency by it."""

    known_headroom: bool = False
    """Whether all of its tuples are already known to have headroom (see `Columns`)."""

    demand: Demand = field(default_factory=Demand)

    @cached_property
    def rows(self) -> int:
        """How many tuples."""
        return int(self.batch.num_rows)

    @cached_property
    def arrival(self) -> Arrival | None:
        """The description of a few tuples by one call; None if they are many, or need more than one."""
        if not 0 < self.rows <= FEW:
            return None
        layout = _layout(self.spec, self.batch.schema)
        arrival = None if layout is None else describe(self.batch, layout, self.known_headroom)
        if arrival is not None:
            _, first, first_end, second, second_end, headroom, nullable, *rest = arrival.row.tolist()
            self.__dict__.update(  # what the properties below would find out one by one
                places=arrival.places, first=(first, first_end), second=(second, second_end),
                headroom=bool(headroom), nullable=bool(nullable), _with_validity=tuple(rest[FACTS - 7 :]),
            )  # fmt: skip
        return arrival

    @cached_property
    def headroom(self) -> bool:
        """True if all whole numbers have headroom (see `Columns`)."""
        arrival = self.arrival
        return self.columns.headroom if arrival is None else bool(arrival.row[5])

    @cached_property
    def nullable(self) -> bool:
        """True if a value that kernels read is missing."""
        arrival = self.arrival
        return self.columns.nullable if arrival is None else bool(arrival.row[6])

    @cached_property
    def columns(self) -> Columns:
        """The columns that kernels read."""
        arrays = [stored_column(self.batch, self.spec, column.name) for column in self.spec.columns]
        return Columns.of(self.rows, self.spec.columns, arrays, self.known_headroom)

    @cached_property
    def first(self) -> Span:
        """Extremes of the stamp that the right window looks at."""
        return self._extremes(self.spec.stamps.first, 1)

    @cached_property
    def second(self) -> Span:
        """Extremes of the stamp that the left window looks at."""
        stamps = self.spec.stamps
        return self.first if stamps.second is stamps.first else self._extremes(stamps.second, 3)

    def _extremes(self, column: Column | None, place: int) -> Span:
        if column is None or self.rows == 0:
            return (0, 0)
        if self.arrival is not None:
            return int(self.arrival.row[place]), int(self.arrival.row[place + 1])
        return extremes(integers(stored_column(self.batch, self.spec, column.name)))

    @cached_property
    def numbers(self) -> Array:
        """The numbers of its rows, if its side is tracked (see `matches`)."""
        return integers(self.batch.column(ROW))

    @cached_property
    def scan_row(self) -> Array:
        """All that a shared scan has to know of it (`kernels.shared_scan`)."""
        if self.arrival is not None and self.cells is None and self.codes() is None:
            return self.arrival.row
        facts = (self.rows, *self.first, *self.second, self.headroom, self.nullable)
        index = self.cells.places if self.cells is not None else NO_CELLS
        codes = self.codes()
        return np.array(
            (*facts, *index, *(codes.places if codes else NO_CODES), *self._with_validity), np.int64
        )

    def codes(self) -> Codes | None:
        """Return the codes of its side's bands, computed on first use; None if it has none."""
        if "_codes" not in self.__dict__:
            wanted = self.spec.coded and self.rows >= self.spec.tuning.coded_from
            columns = [sort_key(self.values(a.inner)) for a in self.spec.coded] if wanted else []
            self.__dict__["_codes"] = Codes.of(columns) if columns else None
        found: Codes | None = self.__dict__["_codes"]
        return found

    @property
    def has_codes(self) -> bool:
        """True if the codes have been computed."""
        return self.__dict__.get("_codes") is not None

    def addresses(self, nullable: bool) -> tuple[int, ...]:
        """Return the addresses that kernels read, with validity or without; keep the basic window alive."""
        return self._with_validity if nullable else self._without_validity

    @cached_property
    def _with_validity(self) -> tuple[int, ...]:
        if self.arrival is not None:
            return tuple(self.arrival.row[FACTS:].tolist())
        return self.columns.addresses(True)

    @cached_property
    def _without_validity(self) -> tuple[int, ...]:
        return self.columns.addresses(False)

    @cached_property
    def places(self) -> Places:
        """The addresses of the columns of its side's schema, which has a shape."""
        if self.arrival is not None:
            return self.arrival.places
        assert self.spec.shape is not None
        return places_of(self.spec.shape, self.batch)

    def values(self, expr: Expr) -> pa.Array:
        """Evaluate a key expression of this side for each tuple."""
        if isinstance(expr, Column):  # most are; asking what an expression reads takes longer
            return as_array(self.batch.column(expr.name))
        return evaluate(expr, arrays_of(self.batch, self.spec.side, (expr,)), self.rows, as_key=True)

    @cached_property
    def hashes(self) -> Array:
        """One hash per tuple over the equality keys."""
        return row_hash([self.values(expr) for expr in self.spec.hashed])

    @cached_property
    def attribute_spans(self) -> tuple[tuple[Any, Any], ...]:
        """Extremes of the indexed attributes, for skipping."""
        keys = [sort_key(self.values(a.inner)) for a in self.spec.attributes]
        return tuple((k.min(), k.max()) for k in keys)

    def limits(self, attribute: Attribute) -> tuple[Array, Array]:
        """Return, per tuple, the range that it allows an attribute of the other side to have."""
        known = None if self.arrival is None else _edges(self.spec, self.batch.schema, attribute)
        if self.arrival is None or known is None:
            return _limits(self, attribute)
        column, edges = known
        return limits_at(int(self.arrival.row[FACTS + 2 * column]), self.rows, edges)

    @cached_property
    def some_keys(self) -> Array:
        """A sample of the keys that cells are sorted by, in order."""
        sample: Array = np.sort(self.keys[:: max(len(self.keys) // 512, 1)])
        return sample

    @cached_property
    def row_bytes(self) -> float:
        """The average memory of a tuple."""
        shape = self.spec.shape
        return self.batch.nbytes / self.rows if shape is None else row_bytes(shape, self.places, self.rows)

    @property
    def nbytes(self) -> int:
        """The memory of the tuples, their index and their codes."""
        codes = self.__dict__.get("_codes")
        return self._stored_bytes + (codes.nbytes if codes is not None else 0)

    @cached_property
    def _stored_bytes(self) -> int:
        """The memory of the tuples and their index, which do not change; Arrow is slow to add it up."""
        held = int(self.batch.nbytes) + (self.cells.nbytes if self.cells is not None else 0)
        return held + (self.keys.nbytes if self.keys.base is None and len(self.keys) else 0)


def worth_an_index(tuples: int, window: BasicWindow) -> bool:
    """Return whether a probe compares enough pairs: fewer are scanned in less time than a look-up needs."""
    tuning = window.spec.tuning
    return tuples * window.rows >= tuning.indexed_probes * tuning.indexed_from


def indexable(window: BasicWindow) -> bool:
    """Return whether its side has an index, and there are enough tuples for it."""
    return window.rows >= window.spec.tuning.indexed_from and bool(
        window.spec.hashed or window.spec.attributes
    )


def seal(window: BasicWindow) -> BasicWindow:
    """Cluster a basic window by its side's index, if it has one and there are enough tuples."""
    spec = window.spec
    if not indexable(window):
        return window
    keys = [sort_key(window.values(a.inner)) for a in spec.attributes]
    second = keys[-1] if keys and (spec.hashed or len(keys) > 1) else None
    if spec.hashed:
        order, cells = cluster_hash(window.hashes, second)
    else:
        order, cells = cluster_band(keys[0], second)
    batch = gather_batch(window.batch, order)
    narrow = spec.attributes[-1:] if spec.hashed else ()  # bands have fences for that
    keys_in_order = sort_key(BasicWindow(spec, batch).values(narrow[0].inner)) if narrow else _NO_KEYS
    return BasicWindow(spec, batch, cells, keys_in_order, window.arrived)


def merge_windows(*windows: BasicWindow) -> BasicWindow | None:
    """Merge basic windows into one; return None if one array cannot hold all.

    That is so for dictionaries that together outgrow their index, and for more text than offsets reach.
    """
    try:
        batch = concat_batches([window.batch for window in windows])
    except pa.ArrowInvalid:
        return None
    headroom = all("headroom" in window.__dict__ and window.headroom for window in windows)
    made = BasicWindow(windows[0].spec, batch, known_headroom=headroom)
    for name in ("first", "second"):  # cached: where all parts have been looked at, none is again
        spans = [window.__dict__[name] for window in windows if name in window.__dict__]
        if len(spans) == len(windows):
            made.__dict__[name] = (min(low for low, _ in spans), max(high for _, high in spans))
    return made


def _limits(window: BasicWindow, attribute: Attribute) -> tuple[Array, Array]:
    bounds: dict[Expr, list[Bound]] = {}
    for expr, bound in attribute.limits:
        bounds.setdefault(expr, []).append(bound)
    lows, highs = [], []
    for expr, some in bounds.items():
        values = np.ascontiguousarray(sort_key(window.values(expr)))
        edges = edges_of(window.spec.side, values.dtype, some)
        low, high = limits_at(values.ctypes.data, len(values), edges)
        lows.append(low)
        highs.append(high)
    return np.maximum.reduce(lows), np.minimum.reduce(highs)


def _edges(spec: SideSpec, schema: pa.Schema, attribute: Attribute) -> tuple[int, Edges] | None:
    """Return the limits of an attribute in compiled form, if they all come from one plain column.

    They come with the place of that column among those that kernels read.
    """
    known = spec.edges.get(id(attribute))
    if known is None or known[0] is not attribute:
        known = spec.edges[id(attribute)] = (attribute, _find_edges(spec, schema, attribute))
    return known[1]


def _find_edges(spec: SideSpec, schema: pa.Schema, attribute: Attribute) -> tuple[int, Edges] | None:
    (expr, *others) = {expr for expr, _ in attribute.limits}
    if others or not isinstance(expr, Column) or expr not in spec.columns:
        return None
    kind = layout(pa.array([], schema.field(expr.name).type)).type if expr.name in schema.names else None
    if kind is None or not (is_exact(expr.type) or pa.types.is_floating(kind)) or pa.types.is_decimal(kind):
        return None
    dtype = integers(pa.array([], kind)).dtype if is_exact(expr.type) else np.dtype(kind.to_pandas_dtype())
    if dtype == np.uint64:  # compiled loops read signed words
        return None
    edges = edges_of(spec.side, dtype, [bound for _, bound in attribute.limits])
    return spec.columns.index(expr), edges


def _layout(spec: SideSpec, schema: pa.Schema) -> Layout | None:
    """Return how batches of a schema are described; kept with the side, since most have the same schema."""
    if not spec.layouts or not spec.layouts[0][0].equals(schema):
        names = schema.names
        columns = [(_place(names, spec, column), column) for column in spec.columns]
        stamps = (spec.stamps.first, spec.stamps.second)
        first, second = (-1 if c is None else _place(names, spec, c) for c in stamps)
        keys = [at for at, column in columns if column in spec.keys]
        spec.layouts[:] = [(schema, layout_of(schema, spec.shape, columns, (first, second), keys))]
    return spec.layouts[0][1]


def _place(names: list[str], spec: SideSpec, column: Column) -> int:
    """Return the place of a kernel column in a stored batch (see `stored_column`)."""
    return names.index(str(spec.time) if column.name == TIME and TIME not in names else column.name)
