"""The join circuit as a picture: cores in a line, mergers above them, streams through both."""

from __future__ import annotations

from collections.abc import Iterator

from handshake.engines.circuit.join.design import Design

__all__ = ["draw"]

WIDE, HIGH, GAP, LEFT = 132, 92, 46, 150
_CLASSES = ("title", "small")
_STYLE = (
    "text{font:13px sans-serif;fill:#222} .small{font-size:11px;fill:#555} rect{stroke:#333;rx:6} "
    ".core{fill:#dceaf7} .merger{fill:#e3f3e6} .driver{fill:#fbe9d3} "
    "path{fill:none;stroke:#333;stroke-width:1.6;marker-end:url(#tip)} .r{stroke:#0072b2} .s{stroke:#d55e00} "
    ".o{stroke:#009e73}"
)


def draw(design: Design) -> str:
    """Return an SVG of the circuit of a design.

    >>> draw(Design(4, 32, 32)).count('class="core"')
    4
    """
    levels = list(_levels(design.cores))
    floor = 60 + (HIGH + GAP) * (len(levels) - 1)
    width = 2 * LEFT + design.cores * (WIDE + GAP)
    parts = [*_streams(design, floor), *_cores(design, floor), *_mergers(levels, floor)]
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {floor + HIGH + 70}">\n'
        f"<title>Handshake join of {design.cores} cores</title>\n<style>{_STYLE}</style>\n"
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        'orient="auto"><path d="M0 0 8 4 0 8z" style="fill:#333;stroke:none;marker-end:none"/></marker>'
        "</defs>\n"
        f"{body}\n</svg>\n"
    )


def _levels(cores: int) -> Iterator[list[float]]:
    """Yield the middles of the blocks of each level, cores first; a merger lies over what it merges."""
    level = [LEFT + i * (WIDE + GAP) + WIDE / 2 for i in range(cores)]
    while True:
        yield level
        if len(level) == 1:
            return
        pairs = [(a + b) / 2 for a, b in zip(level[::2], level[1::2], strict=False)]
        level = pairs + level[len(level) - len(level) % 2 :]


def _block(middle: float, top: float, high: float, kind: str, *lines: str) -> str:
    texts = "".join(
        f'<text x="{middle}" y="{top + 20 + 17 * i}" text-anchor="middle" class="{_CLASSES[i > 0]}">{line}'
        "</text>"
        for i, line in enumerate(lines)
    )
    return f'<rect class="{kind}" x="{middle - WIDE / 2}" y="{top}" width="{WIDE}" height="{high}"/>{texts}'


def _wire(kind: str, *points: tuple[float, float]) -> str:
    return f'<path class="{kind}" d="M' + " L".join(f"{x:g} {y:g}" for x, y in points) + '"/>'


def _streams(design: Design, floor: float) -> Iterator[str]:
    """Draw the driver, which gives R to the first core and S to the last one."""
    last = LEFT + design.cores * (WIDE + GAP) - GAP
    low = floor + HIGH + 38
    yield _block(WIDE / 2 + 4, floor, HIGH, "driver", "driver", "admits arrivals,", "flushes at the end")
    yield _wire("r", (WIDE + 4, floor + 34), (LEFT, floor + 34))
    yield _wire(
        "s",
        (WIDE / 2, floor + HIGH),
        (WIDE / 2, low),
        (last + 24, low),
        (last + 24, floor + 66),
        (last, floor + 66),
    )
    yield f'<text class="small" x="{LEFT}" y="{low - 6}">S tuples, queued for the last core</text>'


def _cores(design: Design, floor: float) -> Iterator[str]:
    for index, (left, right) in enumerate(design.segments):
        start = LEFT + index * (WIDE + GAP)
        texts = (
            f"join core {index}",
            f"R segment: {left} tuples",
            f"S segment: {right} tuples",
            "buffer: " + str(design.buffer),
        )
        yield _block(start + WIDE / 2, floor, HIGH, "core", *texts)
        if index + 1 < design.cores:
            yield _wire("r", (start + WIDE, floor + 34), (start + WIDE + GAP, floor + 34))
            yield _wire("s", (start + WIDE + GAP, floor + 66), (start + WIDE, floor + 66))


def _mergers(levels: list[list[float]], floor: float) -> Iterator[str]:
    for depth, level in enumerate(levels[1:], 1):
        top, below = floor - depth * (HIGH + GAP), levels[depth - 1]
        count = len(below) // 2
        for index, middle in enumerate(level[:count]):
            yield _block(middle, top + 30, HIGH - 46, "merger", "merger", "two in, one out")
            for side, source in ((-22, below[2 * index]), (22, below[2 * index + 1])):
                start = floor if depth == 1 else top + HIGH + GAP + 30
                bend = top + HIGH + 2
                yield _wire(
                    "o",
                    (source, start),
                    (source, bend),
                    (middle + side, bend),
                    (middle + side, top + HIGH - 16),
                )
    root = levels[-1][0]
    top = floor - (len(levels) - 1) * (HIGH + GAP) + 30 if len(levels) > 1 else floor
    yield _wire("o", (root, top), (root, 14))
    yield f'<text class="small" x="{root + 10}" y="26">results</text>'
