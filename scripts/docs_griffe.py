"""Show bare doctests of docstrings as examples on the API pages."""

from __future__ import annotations

from typing import Any

from griffe import Extension, Object


class DoctestExamples(Extension):
    """An extension that puts doctests outside a section under the heading "Examples:"."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Rewrite the docstring of an object if it has bare doctests."""
        if obj.docstring is not None:
            obj.docstring.value = _with_heading(obj.docstring.value)


def _with_heading(text: str) -> str:
    """Return a docstring with its bare doctests in a section of their own."""
    head, found, tail = text.partition("\n>>> ")
    if not found or "Examples:" in text:
        return text
    examples = ("    " + line if line else "" for line in (">>> " + tail).splitlines())
    return "\n".join([head, "Examples:", *examples])
