"""The reduction of pairs: a thread adds up its pairs in registers as long as they share a state.

When the next pair is of another state, and at the end, the words go to the table of states with one atomic
operation each. Threads of a warp have copies of their own, so they do not wait for one another.
"""

from __future__ import annotations

from collections.abc import Mapping

from llvmlite import ir

from handshake.kernels.gpu.frame import Frame, Scan
from handshake.kernels.lower import I1, I64, Env, Number, emit, number, resize, truth
from handshake.kernels.reduction import LIMB, Reduction, Word
from handshake.plan.expr import Expr, Literal
from handshake.schema import Float

_ARGUMENTS = ("states", "pane", "aheads", "lefts", "rights", "copies")
"""The last arguments of a search: the address of the states and the stamp of their first pane, how many panes
from 0 on a clock may be ahead, the groups of both sides, and the copies of a state, a power of two."""
_DOUBLE = ir.DoubleType()
_TOP, _LARGEST = -(2**63), 2**63 - 1


def arguments_of(scan: Scan) -> tuple[str, ...]:
    """Return the names of the arguments for a reduction."""
    return _ARGUMENTS if scan.reduction is not None else ()


class Accumulator:
    """The registers of a thread: the number of a state, and the words of the pairs since the last flush."""

    def __init__(self, frame: Frame, reduction: Reduction) -> None:
        self._frame, self._reduction = frame, reduction
        self._state = frame.kernel.variable(I64)
        self._words = [frame.kernel.variable(I64) for _ in reduction.words]
        for register in (self._state, *self._words):
            frame.builder.store(I64(0), register)

    def add_pair(self, holds: ir.Value, places: Mapping[int, ir.Value]) -> None:
        """Add the pair at these places of both sides if it matches."""
        b = self._frame.builder
        with b.if_then(holds, likely=False):
            state = self._number(places)
            with b.if_then(b.icmp_unsigned("!=", state, b.load(self._state)), likely=False):
                self.flush()
                b.store(state, self._state)
            env = self._frame.pair(places)
            for word, register in zip(self._reduction.words, self._words, strict=True):
                _add(env, word, register)

    def flush(self) -> None:
        """Write the words to the table, and set them to 0."""
        b, s = self._frame.builder, self._frame.scalars
        with b.if_then(b.icmp_unsigned("!=", b.load(self._words[0]), I64(0))):
            copy = b.and_(b.zext(self._frame.kernel.thread, I64), b.sub(s["copies"], I64(1)))
            first = b.mul(b.load(self._state), I64(len(self._words)))
            table = self._frame.target.pointer(b, s["states"], I64)
            for k, (word, register) in enumerate(zip(self._reduction.words, self._words, strict=True)):
                place = b.gep(table, [b.add(b.mul(b.add(first, I64(k)), s["copies"]), copy)])
                b.atomic_rmw("umax" if word.is_key else "add", place, b.load(register), "monotonic")
                b.store(I64(0), register)

    def _number(self, places: Mapping[int, ir.Value]) -> ir.Value:
        """Return the number of a pair's state: by pane, by how far its clock is ahead, and by groups."""
        b, s = self._frame.builder, self._frame.scalars
        (own, clock), (other, other_clock) = (self._panes(side, places[side]) for side in (0, 1))
        pane, ahead = _larger(b, own, other), _larger(b, clock, other_clock)
        number = b.add(b.mul(pane, s["aheads"]), b.sub(ahead, pane))
        for side, count in ((0, s["lefts"]), (1, s["rights"])):
            column = self._reduction.groups[side]
            number = b.mul(number, count)
            if column is not None:
                group, _ = self._frame.value(column, places[side])
                number = b.add(number, b.zext(group, I64))
        return number

    def _panes(self, side: int, place: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Return the pane of a row, from that of the search on, and the pane of its clock."""
        b, panes = self._frame.builder, self._reduction.panes
        word, _ = self._frame.value(self._reduction.stamps[side], place)
        word = b.sub(resize(self._frame.env(_no_column), word, 64), self._frame.scalars["pane"])
        ahead = b.and_(word, I64((1 << panes.ahead_bits) - 1))
        unused = 64 - panes.bits
        pane = b.ashr(b.shl(word, I64(unused)), I64(unused + panes.ahead_bits))
        return pane, b.add(pane, ahead)


def _no_column(column: object) -> Number:
    raise AssertionError(column)


def _larger(b: ir.IRBuilder, x: ir.Value, y: ir.Value) -> ir.Value:
    return b.select(b.icmp_signed(">", x, y), x, y)


def _add(env: Env, word: Word, register: ir.Value) -> None:
    """Add a pair to a word."""
    b = env.builder
    counts = I1(1) if isinstance(word.where, Literal) and word.where.value else truth(word.where, env).yes
    held = b.load(register)
    if word.value is None:
        b.store(b.add(held, b.zext(counts, I64)), register)
    elif word.limbs:
        b.store(b.add(held, b.select(counts, _limb(env, word.value, word), I64(0))), register)
    else:
        key = b.select(counts, _key(env, word.value, word), I64(0))
        b.store(b.select(b.icmp_unsigned(">", key, held), key, held), register)


def _limb(env: Env, value: Expr, word: Word) -> ir.Value:
    """Return 32 bits of a whole number; the last ones have its sign, and a single limb is all of it."""
    b, whole = env.builder, number(value, env).value
    width = max(whole.type.width, 64, LIMB * word.limbs)
    shifted = b.ashr(resize(env, whole, width), ir.Constant(ir.IntType(width), LIMB * word.limb))
    limb = resize(env, shifted, 64)
    return limb if word.limb == word.limbs - 1 else b.and_(limb, I64((1 << LIMB) - 1))


def _key(env: Env, value: Expr, word: Word) -> ir.Value:
    """Return a word without a sign in the order of the values, as `operators.sort_keys` has it with one."""
    b, lowered = env.builder, emit(value, env)
    if not isinstance(lowered, Number):
        key = b.zext(lowered.yes, I64)
    elif isinstance(value.type, Float):
        key = _float_key(b, lowered.value)
    else:
        key = resize(env, lowered.value, 64)
        key = b.xor(key, I64(_TOP)) if word.unsigned else key
    return b.xor(b.not_(key) if word.down else key, I64(_TOP))


def _float_key(b: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """Return the bits of a float in the order of the values: 0.0 for -0.0, and NaN as the largest."""
    wide = value if value.type == _DOUBLE else b.fpext(value, _DOUBLE)
    bits = b.bitcast(b.fadd(wide, ir.Constant(_DOUBLE, 0.0)), I64)
    key = b.select(b.icmp_signed("<", bits, I64(0)), b.xor(bits, I64(_LARGEST)), bits)
    return b.select(b.fcmp_unordered("uno", wide, wide), I64(_LARGEST), key)
