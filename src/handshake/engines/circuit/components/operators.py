"""Selection, projection, arithmetic and logic, delay, fork and concatenation (Glacier, 4.1 to 4.3, 4.8).

Selection, projection and computation are *stages*: gates between two streams, and a register behind them
unless it has been eliminated (section 6.1). Latency is 1 with the register and 0 without; the issue rate
is 1. Fields whose names begin with `@` are hidden: they pass through every stage.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import Any

from amaranth.hdl import Const, Module, Signal, Value

from handshake.engines.circuit.components.block import Block
from handshake.engines.circuit.components.gates import columns_of, lower, wire_of
from handshake.engines.circuit.components.stream import (
    StreamSignature,
    beat,
    forward,
    moves,
    register,
    stream_in,
    stream_out,
)
from handshake.engines.circuit.components.types import Row, Wire, count_of, null_of
from handshake.errors import SchemaError
from handshake.plan.expr import And, Arithmetic, Compare, Expr, Not, Or
from handshake.schema import Bool, Type

Operation = tuple[str, Expr, Type]
"""A field to compute: its name, the operation, and its type."""


def copy_field(m: Module, target: Any, source: Any, new: Wire, old: str) -> None:
    """Wire a field, its NULL bit and its count to a field of the same kind, which may be wider."""
    m.d.comb += target[new.name].eq(source[old])
    if new.nullable:
        m.d.comb += target[null_of(new.name)].eq(source[null_of(old)])
    if new.count_bits:
        m.d.comb += target[count_of(new.name)].eq(source[count_of(old)])


class Stage(Block):
    """Gates from the stream `i` to the stream `o`, with a register before `o` if `registered`."""

    def __init__(
        self,
        before: Row,
        after: Row,
        registered: bool,
        parameters: tuple[Hashable, ...],
        ports: Mapping[str, Any] | None = None,
    ) -> None:
        self.before, self.after, self.registered = before, after, registered
        self.latency = int(registered)
        streams = {"i": stream_in(before), "o": stream_out(after)}
        super().__init__({**streams, **(ports or {})}, (before, after, registered, *parameters))

    def build(self) -> Module:
        m = Module()
        made = StreamSignature(self.after).create(path=("made",))
        m.d.comb += [
            made.valid.eq(self.i.valid & self.keep()),
            made.eos.eq(self.i.eos),
            self.i.ready.eq(made.ready | ~beat(made)),  # what is dropped need not wait
        ]
        self.wire(m, made.payload)
        (register if self.registered else forward)(m, made, self.o)
        return m

    def keep(self) -> Value:
        """Return a bit that is high for tuples that stay."""
        return Const(1, 1)

    @abstractmethod
    def wire(self, m: Module, payload: Any) -> None:
        """Drive the fields of the result."""


class Select(Stage):
    """Keeps tuples in which the Boolean `field` is true: an AND gate on `valid` (rule SEL)."""

    def __init__(self, row: Row, field: str, *, registered: bool = True) -> None:
        self.field = field
        if not isinstance(row[field].type, Bool):
            raise SchemaError(f"selection by field '{field}', which is {row[field].type}, not bool")
        super().__init__(row, row, registered, (field,))

    def is_true(self) -> Value:
        """Return a bit that is high if the field is true."""
        flag = Value.cast(self.i.payload[self.field])
        return flag & ~self.i.payload[null_of(self.field)] if self.before[self.field].nullable else flag

    def keep(self) -> Value:
        return self.is_true()

    def wire(self, m: Module, payload: Any) -> None:
        m.d.comb += payload.eq(self.i.payload)


class Project(Stage):
    """Keeps these fields, in this order, under new names; each is (new name, old name) (rule PROJ)."""

    def __init__(self, row: Row, columns: tuple[tuple[str, str], ...], *, registered: bool = True) -> None:
        self.columns = columns
        super().__init__(row, projected_row(row, columns), registered, (columns,))

    def wire(self, m: Module, payload: Any) -> None:
        for new, old in zip(self.after, _sources(self.before, self.columns), strict=True):
            copy_field(m, payload, self.i.payload, new, old)


def _hidden_names(row: Row) -> tuple[str, ...]:
    return tuple(w.name for w in row if w.name.startswith("@"))


def _sources(row: Row, columns: tuple[tuple[str, str], ...]) -> tuple[str, ...]:
    listed = tuple(old for _, old in columns)
    return (*listed, *(name for name in _hidden_names(row) if name not in {new for new, _ in columns}))


def projected_row(row: Row, columns: tuple[tuple[str, str], ...]) -> Row:
    """Return the wires that a projection leaves: the columns, then the hidden fields."""
    names = [new for new, _ in columns]
    names += [name for name in _hidden_names(row) if name not in names]
    sources = _sources(row, columns)
    return Row(tuple(replace(row[old], name=new) for new, old in zip(names, sources, strict=True)))


class Compute(Stage):
    """Appends fields: each is one operation on fields of the input and constants (rule EQUALS).

    Several operations run in parallel in the same cycle (section 6.2).
    """

    def __init__(self, row: Row, operations: tuple[Operation, ...], *, registered: bool = True) -> None:
        self.operations = operations
        super().__init__(row, computed_row(row, operations), registered, (operations,))

    def wire(self, m: Module, payload: Any) -> None:
        for each in self.before:
            copy_field(m, payload, self.i.payload, each, each.name)
        operands = columns_of(self.i.payload, self.before)
        for name, operation, _ in self.operations:
            lowered = lower(operation, operands)
            m.d.comb += payload[name].eq(lowered.value)
            if lowered.null is not None:
                m.d.comb += payload[null_of(name)].eq(lowered.null)

    @property
    def title(self) -> str:
        """The operation's name if there is one operation."""
        return operation_name(self.operations[0][1]) if len(self.operations) == 1 else "parallel"


_NAMES = {
    "=": "equal",
    "<>": "unequal",
    "<": "less",
    "<=": "at_most",
    ">": "greater",
    ">=": "at_least",
    "+": "add",
    "-": "subtract",
    "*": "multiply",
    "div": "divide",
    "%": "modulo",
}


def operation_name(operation: Expr) -> str:
    """Return a word for an operation: `equal`, `add`, `and`, …"""
    match operation:
        case Compare(op=op) | Arithmetic(op=op):
            return _NAMES.get(op, "compute")
        case And() | Or() | Not():
            return f"logic_{type(operation).__name__.lower()}"
    return f"compute_{type(operation).__name__.lower()}"


def computed_row(row: Row, operations: tuple[Operation, ...]) -> Row:
    """Return the wires of a stream, then those of its computed fields."""
    operands = columns_of(Signal(row.layout), row)
    wires = [wire_of(name, lower(operation, operands), kind) for name, operation, kind in operations]
    return Row((*row.wires, *wires))


class Delay(Block):
    """Holds each beat for `cycles` cycles: z^-n (section 4.1.2). Latency n, issue rate 1."""

    def __init__(self, row: Row, cycles: int) -> None:
        self.row, self.latency = row, cycles
        super().__init__({"i": stream_in(row), "o": stream_out(row)}, (row, cycles))

    def build(self) -> Module:
        m = Module()
        here = self.i
        for n in range(self.latency):
            following = StreamSignature(self.row).create(path=(f"z{n}",))
            register(m, here, following)
            here = following
        forward(m, here, self.o)
        return m


class Fork(Block):
    """Every beat of `i` leaves once on each of `o0`, `o1`, …, when that one is ready. Latency 0.

    The fork remembers which outputs have taken a beat until all have, so that no output waits for the `ready`
    of another in the same cycle.
    """

    latency = 0

    def __init__(self, row: Row, outputs: int) -> None:
        self.row, self.outputs = row, outputs
        ports: dict[str, Any] = {f"o{n}": stream_out(row) for n in range(outputs)}
        super().__init__({"i": stream_in(row)} | ports, (row, outputs))

    def build(self) -> Module:
        m = Module()
        branch(m, self.i, [getattr(self, f"o{n}") for n in range(self.outputs)])
        return m


def branch(m: Module, source: Any, sinks: list[Any]) -> None:
    """Build a fork: each beat of `source` goes to all `sinks`."""
    taken = Signal(len(sinks), name="taken")
    done: Value = Const(1, 1)
    for n, sink in enumerate(sinks):
        m.d.comb += [
            sink.payload.eq(source.payload),
            sink.valid.eq(source.valid & ~taken[n]),
            sink.eos.eq(source.eos & ~taken[n]),
        ]
        done = done & (taken[n] | sink.ready)
        m.d.sync += taken[n].eq((taken[n] | moves(sink)) & ~moves(source))
    m.d.comb += source.ready.eq(done)


class Concat(Block):
    """Rows of the streams `i0`, `i1`, … joined to one row, in the order of arrival (rule CONCAT).

    A beat leaves when every input has one; it has a tuple if all of them have. Latency 1, issue rate 1.
    """

    def __init__(self, rows: tuple[Row, ...], *, registered: bool = True) -> None:
        self.rows, self.registered, self.latency = rows, registered, int(registered)
        self.row = concatenated_row(rows)
        ports: dict[str, Any] = {f"i{n}": stream_in(row) for n, row in enumerate(rows)}
        super().__init__(ports | {"o": stream_out(self.row)}, (rows, registered))

    def build(self) -> Module:
        m = Module()
        inputs = [getattr(self, f"i{n}") for n in range(len(self.rows))]
        made = StreamSignature(self.row).create(path=("made",))
        here = Signal()
        m.d.comb += here.eq(_all(beat(each) for each in inputs))
        m.d.comb += made.valid.eq(here & _all(each.valid for each in inputs))
        m.d.comb += made.eos.eq(here & _all(each.eos for each in inputs))
        m.d.comb += [each.ready.eq(here & made.ready) for each in inputs]
        done: set[str] = set()
        for source, row in zip(inputs, self.rows, strict=True):
            for each in row:
                if each.name not in done:  # hidden fields are the same in all
                    copy_field(m, made.payload, source.payload, each, each.name)
                done.add(each.name)
        (register if self.registered else forward)(m, made, self.o)
        return m


def concatenated_row(rows: tuple[Row, ...]) -> Row:
    """Return all fields in order; hidden ones once."""
    wires: list[Wire] = []
    for each in (w for row in rows for w in row):
        if not (each.name.startswith("@") and each in wires):
            wires.append(each)
    return Row(tuple(wires))


def _all(bits: Any) -> Value:
    result: Value = Const(1, 1)
    for bit in bits:
        result = result & bit
    return result
