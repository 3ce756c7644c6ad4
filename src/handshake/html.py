"""Tables and texts for notebooks, as small pieces of HTML."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

Facts = Iterable[tuple[str, object]]


def card(title: str, facts: Facts = (), text: str = "", rows: Iterable[Iterable[object]] = ()) -> str:
    """Return a title, names with values, a table and a text; all of it is escaped.

    Args:
        title: The heading.
        facts: Names and values; numbers get thousands separators.
        text: A text of fixed width, such as a plan.
        rows: A table; its first row has the names of the columns.

    >>> card("A <b>", text="x < y")
    '<div><b>A &lt;b&gt;</b><pre>x &lt; y</pre></div>'
    """
    parts = [f"<b>{escape(title)}</b>"]
    lines = [f"<tr>{_cell(name, 'th', 'left')}{_cell(value, 'td', 'left')}</tr>" for name, value in facts]
    parts += [f"<table>{''.join(lines)}</table>"] if lines else []
    table = [[*row] for row in rows]
    if len(table) > 1:
        head = "".join(_cell(cell, "th", "right") for cell in table[0])
        body = "".join(f"<tr>{''.join(_cell(c, 'td', 'right') for c in row)}</tr>" for row in table[1:])
        parts.append(f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>")
    parts += [f"<pre>{escape(text)}</pre>"] if text else []
    return f"<div>{''.join(parts)}</div>"


def _cell(value: object, tag: str, align: str) -> str:
    shown = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    return f'<{tag} style="text-align:{align}">{escape(shown)}</{tag}>'
