"""Windows in brackets as query texts write them, such as `[SIZE 10 MINUTES ADVANCE 1 MINUTE]`."""

from __future__ import annotations

import re
from typing import Any

from sqlglot import exp

from handshake.plan.algebra import LONGEST, Node, Sliding
from handshake.plan.declare import duration
from handshake.plan.statements import StatementReader
from handshake.schema import UNITS
from handshake.windows import NowWindow, TimeWindow, TupleWindow, Window


class WindowReader:
    """A translation of windows; the reader of the statement knows where errors are."""

    def __init__(self, reader: StatementReader) -> None:
        self._reader = reader

    def of_join(self, slide: exp.Expr) -> Window:
        """Return the window of a stream of a join."""
        form = slide.args["form"]
        if form == "now":
            return NowWindow()
        others = [name for name in ("advance", "offset", "partial") if slide.args.get(name)]
        if form != "size" or others:
            wrong = form.upper() if form != "size" else others[0].upper()
            raise self._reader.error(
                f"a window of a join slides with every tuple; leave out {wrong}, as in [SIZE 10 MINUTES]",
                slide,
            )
        size = self._size(slide)
        return TupleWindow(size) if self._kind(slide) == "tuples" else TimeWindow(size)

    def sliding(self, slide: exp.Expr, node: Node) -> Sliding:
        """Return the windows of a stream, whose times count in the unit of `node`."""
        kind, size, advance = self._kind(slide), self._size(slide), self._advance(slide)
        self._check_options(slide, kind)
        if kind == "tuples":
            return Sliding(kind, size, advance, partial=bool(slide.args.get("partial")))
        cumulative = slide.args["form"] == "cumulate"
        if cumulative and size % advance:
            raise self._reader.error("the SIZE of cumulating windows is a multiple of their step", slide)
        offset = self._offset(slide, size if cumulative else advance)
        self._check_unit(slide, node, size, advance, offset or 0)
        return Sliding(kind, size, advance, offset=offset, cumulative=cumulative)

    def _offset(self, slide: exp.Expr, every: int) -> int | None:
        """Return where windows start that start every so often; None: with the first tuple."""
        written = slide.args.get("offset")
        if written is None or written == "first":
            return None if written == "first" else 0
        length = duration(written.this, self._reader, written.args.get("unit") or "s")
        return (-length if written.args.get("minus") else length) % every

    def _check_options(self, slide: exp.Expr, kind: str) -> None:
        """Refuse what windows of time, or of tuples, do not have."""
        if kind == "time" and slide.args.get("partial"):
            raise self._reader.error(
                "PARTIAL is for windows of tuples; windows of time give results from the first tuple on",
                slide,
            )
        if kind == "tuples" and slide.args.get("offset") is not None:
            raise self._reader.error("OFFSET is for windows of time; leave it out", slide)
        if kind == "tuples" and slide.args["form"] == "cumulate":
            raise self._reader.error(
                "cumulating windows are of time, as in [CUMULATE 1 MINUTE SIZE 1 HOUR]", slide
            )

    def _kind(self, slide: exp.Expr) -> Any:
        """Return `time` or `tuples`: one unit, or TIME, is for all lengths of a window."""
        lengths = (slide.this, slide.args.get("advance"))
        units = [length.args.get("unit") for length in lengths if length]
        kinds = {"tuples" if unit == "tuples" else "time" for unit in units if unit is not None}
        kinds |= {"time"} if slide.args.get("timed") else set()
        if len(kinds) > 1:
            raise self._reader.error("a window is of time or of tuples, not of both", slide)
        return next(iter(kinds), "time")

    def _size(self, slide: exp.Expr) -> int:
        return self._length(slide.this, self._kind(slide))

    def _advance(self, slide: exp.Expr) -> int:
        kind, written = self._kind(slide), slide.args.get("advance")
        if written is not None:
            return self._length(written, kind)
        if slide.args["form"] == "tumble":
            return self._size(slide)
        if kind == "tuples":  # the granule: a tuple, or the second in which SIZE is given
            return 1
        if self._size(slide) % UNITS["s"]:
            raise self._reader.error("a SIZE of broken seconds needs an ADVANCE", slide)
        return UNITS["s"]

    def gap(self, slide: exp.Expr, node: Node) -> int:
        """Return the gap that ends a session."""
        if self._kind(slide) == "tuples":
            raise self._reader.error(
                "a session ends after a time without tuples; write [SESSION 30 SECONDS]", slide
            )
        if slide.args.get("offset") is not None or slide.args.get("partial"):
            raise self._reader.error("a session begins with a tuple; leave out OFFSET and PARTIAL", slide)
        gap = self._size(slide)
        self._check_unit(slide, node, gap, gap + UNITS[node.clock.unit])
        return gap

    def _check_unit(self, slide: exp.Expr, node: Node, *lengths: int) -> None:
        """Refuse lengths that the times of a stream cannot count."""
        unit = UNITS[node.clock.unit]
        if any(length % unit for length in lengths):
            raise self._reader.error(
                f"the window is finer than the times of the stream, which count {node.clock.unit}", slide
            )
        if max(lengths) > LONGEST * unit:
            raise self._reader.error(
                f"the window is longer than 2^62 {node.clock.unit}, in which the stream counts its times; "
                "declare times in a coarser unit, such as timestamp(0)", slide
            )  # fmt: skip

    def _length(self, node: exp.Expr, kind: str) -> int:
        """Return a length in nanoseconds or tuples."""
        number, unit = node.this, node.args.get("unit")
        if kind == "tuples":
            if not re.fullmatch("[0-9]{1,12}", str(number.this)):
                raise self._reader.error(f"a number of tuples is whole, not {number.this}", node)
            length = int(number.this)
        else:
            length = duration(number, self._reader, unit or "s")
        if length == 0:
            given = f"{number.this} {(unit or 's') if kind != 'tuples' else kind}"
            raise self._reader.error(f"a length of a window is more than 0; {given} was given", node)
        return length
