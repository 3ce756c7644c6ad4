"""The changes of a join that its state does not allow, by the properties of both definitions."""

from __future__ import annotations

import re
from typing import Any

from handshake.engines.spark.joins.definition import Definition
from handshake.engines.spark.state.manifest import describe_value
from handshake.engines.spark.state.store import StateError
from handshake.joins.spec import SIDES
from handshake.plan.expr import Column, walk
from handshake.windows import Windows, windows_of


def windows_in(plan: dict[str, Any]) -> Windows:
    """Return the windows of the properties of a join."""
    both = re.fullmatch(r"left (.+), right (.+)", plan["windows"])
    return windows_of(*((None, both[1], both[2]) if both else (plan["windows"],)))


def check_state(held: dict[str, Any], definition: Definition) -> None:
    """Refuse another kind of state, and all changes of a join without a directory.

    A definition has a segment with the key 0, whatever the number of segments and partitions. So there is a
    segment that finds its state and refuses.
    """
    plan, now = ({"state": "directory", "kind": "inner", **each} for each in (held, definition.properties))
    if plan["state"] != now["state"]:
        raise _refusal("state", plan, now, "windows stay where they are")
    changed = next((name for name in now if plan.get(name) != now[name]), None)
    if now["state"] == "store" and changed is not None:
        raise _refusal(changed, plan, now, 'windows with state="store" stay as they are')


def check_change(held: dict[str, Any], definition: Definition) -> None:
    """Refuse a change that rows in the state do not allow."""
    plan, now = ({"kind": "inner", **each} for each in (held, definition.properties))
    for name, why in _FIXED.items():
        if plan.get(name) != now.get(name):
            raise _refusal(name, plan, now, why)
    if "best match" in now:
        changed = next(name for name in now if plan.get(name) != now[name])
        raise _refusal(changed, plan, now, "as-of and nearest joins do not change on a checkpoint")
    both = windows_in(plan), definition.windows
    before, after = ([None if window is None else window.held for window in windows] for windows in both)
    if before != after:
        why = "a window by time and one by number of tuples need other stamps of rows that have come"
        raise _refusal("windows", plan, now, why)
    _check_columns(plan, now, definition)
    if plan["predicate"] != now["predicate"] and any(definition.anchored):
        why = "which rows have matched was decided by the old one"
        raise _refusal("predicate", plan, now, why)


_FIXED = {
    "kind": "segments keep other rows for each kind",
    "best match": "rows wait for one rule",
    "time columns": "rows are held by their times",
}


def _check_columns(plan: dict[str, Any], now: dict[str, Any], definition: Definition) -> None:
    parts = [*walk(definition.spec.analysis.predicate)]
    for side, name in enumerate(f"{side} columns" for side in SIDES):
        for field in (definition.left, definition.right)[side]:
            stored = _stored_type(plan[name], field.name)
            if stored not in (None, str(field.type)):
                raise _refusal(name, plan, now, f"column '{field.name}' was {stored} and is {field.type}")
            used = any(isinstance(p, Column) and (p.side, p.name) == (side, field.name) for p in parts)
            if used and stored is None:
                raise _refusal("predicate", plan, now, f"rows in the state have no column '{field.name}'")


def _stored_type(columns: list[str], name: str) -> str | None:
    """Return the type of a column in a list such as `["x int32"]`; None if it is not in there."""
    types = [text.removeprefix(f"{name} ") for text in columns if text.startswith(f"{name} ")]
    return next((kind for kind in types if re.fullmatch(r"\w+([\[<(].*)?", kind)), None)


def _refusal(name: str, plan: dict[str, Any], now: dict[str, Any], why: str) -> StateError:
    verb = "were" if name.endswith("s") else "was"
    return StateError(
        f"the {name} of a join cannot change from {describe_value(plan.get(name))} to "
        f"{describe_value(now.get(name))} on a checkpoint: {why}; put back what {verb} there, or start "
        "from a new checkpoint"
    )
