"""Plans as SVG drawings, made without other software."""

from __future__ import annotations

from xml.sax.saxutils import escape

from handshake.plan.algebra import Group, Node, Plan, Windowing
from handshake.plan.explain import label

_ROW, _BOX, _GAP, _LETTER = 56, 30, 24, 7.6


class _Drawing:
    """The places of nodes in columns and rows; results are on top, inputs at the bottom, as in the paper."""

    def __init__(self) -> None:
        self.right = float(_GAP)
        self.depth = 0
        self.shapes: list[str] = []

    def draw(self, node: Node, depth: int) -> float:
        """Draw a plan and return the middle of its top."""
        self.depth = max(self.depth, depth)
        text = label(node)
        width = _LETTER * len(text) + 20
        if not node.children:
            middle = self.right + width / 2
            self.right += width + _GAP
        else:
            before = self.right
            below = [self.draw(child, depth + 1) for child in node.children]
            middle = max((below[0] + below[-1]) / 2, before + width / 2)
            self.right = max(self.right, middle + width / 2 + _GAP)
            for at, x in enumerate(below):
                self._line(middle, x, depth, isinstance(node, (Group, Windowing)) and at == 1)
        self._box(middle, depth, width, text)
        return middle

    def _line(self, above: float, below: float, depth: int, body: bool) -> None:
        top, bottom = depth * _ROW + _GAP + _BOX, (depth + 1) * _ROW + _GAP
        dashes = ' stroke-dasharray="4 3"' if body else ""
        self.shapes.append(
            f'<line x1="{above:.0f}" y1="{top}" x2="{below:.0f}" y2="{bottom}" stroke="#555"{dashes}/>'
        )

    def _box(self, middle: float, depth: int, width: float, text: str) -> None:
        y = depth * _ROW + _GAP
        self.shapes.append(
            f'<rect x="{middle - width / 2:.0f}" y="{y}" width="{width:.0f}" height="{_BOX}" rx="5" '
            'fill="#fff" stroke="#333"/>'
        )
        self.shapes.append(f'<text x="{middle:.0f}" y="{y + 20}" text-anchor="middle">{escape(text)}</text>')


def svg(plan: Plan) -> str:
    """Return a plan as an SVG drawing; dashed lines lead to the sub-plans of windows and groups."""
    drawing = _Drawing()
    for output in plan.outputs:
        drawing.draw(output, 0)
    width, height = round(drawing.right), (drawing.depth + 1) * _ROW + _GAP
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="13">'
    )
    return "\n".join([head, *drawing.shapes, "</svg>"]) + "\n"
