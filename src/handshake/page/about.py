"""Facts about a query that do not change: its plan as a picture and as text, and its windows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from handshake.api import explain, spark_module, why
from handshake.errors import HandshakeError
from handshake.io.frames import is_spark
from handshake.joins.driver import StreamLike
from handshake.joins.join import MultiJoin, MultiReplay, PushJoin
from handshake.joins.plan import JoinPlan, MultiPlan
from handshake.joins.replay import TableReplay
from handshake.joins.spec import SIDES
from handshake.joins.why.rows import typed_row
from handshake.operators.query import Query
from handshake.plan.algebra import Node, Plan
from handshake.plan.explain import label

Tree = dict[str, Any]


def describe(thing: Any, plan: Any = None) -> dict[str, Any]:
    """Return the plan of a thing as a tree and as text, its windows, and whether it can say why.

    Args:
        thing: The join, query or run that is shown.
        plan: A plan, text, or DataFrame that describes it better, such as that of a streaming query.
    """
    held = getattr(thing, "plan", None)
    explained = thing if hasattr(thing, "explain") else getattr(thing, "plan", thing)
    return {
        "tree": frame_tree(plan) if is_spark(plan) else _tree(held),
        "text": _text(explained if plan is None else plan),
        "windows": _windows(held), "why": _asked_streams(thing, plan),
    }  # fmt: skip


def _text(thing: Any) -> str:
    if not (hasattr(thing, "explain") or isinstance(thing, (str, Plan))) or hasattr(thing, "lastProgress"):
        return ""
    try:
        return explain(thing)
    except HandshakeError as error:
        return str(error)


def _windows(plan: Any) -> dict[str, str]:
    """Return the window of each stream as text."""
    if not isinstance(plan, (JoinPlan, MultiPlan)):
        return {}
    streams: Sequence[StreamLike] = plan.spec.streams
    windows = zip(streams, plan.spec.windows, strict=True)
    return {stream.name: "no window" if window is None else str(window) for stream, window in windows}


def _tree(plan: Any) -> Tree | None:
    if isinstance(plan, Plan):
        roots = [_node(output) for output in plan.outputs]
        return roots[0] if len(roots) == 1 else {"label": "results", "children": roots}
    if not isinstance(plan, (JoinPlan, MultiPlan)):
        return None
    how = plan.spec.kind.name if isinstance(plan, JoinPlan) else "inner"
    # the local engine keeps columns of both inputs apart by a NUL until the result names them
    names = [name.replace("\0", "_") for name in plan.output_schema.names]
    return _draw_join(how, plan.spec.text, names, _windows(plan))


def _node(node: Node) -> Tree:
    return {"label": label(node), "children": [_node(child) for child in node.children]}


def frame_tree(frame: Any) -> Tree | None:
    """Return the tree of a join of Spark DataFrames; None for other DataFrames, and for best matches."""
    plan = spark_module("joins.explain").recall(frame)
    if plan is None or plan.definition.best is not None or plan.definition.ranking is not None:
        return None
    held = plan.definition
    windows = {side: str(window or "no window") for side, window in zip(SIDES, held.windows, strict=True)}
    return _draw_join(held.kind.name, held.spec.text, held.output.names, windows)


def _draw_join(how: str, on: str, names: Sequence[str], windows: dict[str, str]) -> Tree:
    streams = [
        {"label": f"window of {window}", "children": [{"label": name, "children": []}]}
        for name, window in windows.items()
    ]
    join = {"label": f"{how} join on {on}", "children": streams}
    return {"label": f"results ({', '.join(names)})", "children": [join]}


def _asked_streams(thing: Any, plan: Any) -> list[dict[str, Any]] | None:
    """Return the name and the columns of each stream, if the thing can explain rows."""
    if (asked := StateOf.join(thing, plan)) is not None:
        streams = dict(zip(SIDES, asked.columns, strict=True))
    else:
        streams = {name: list(schema.names) for name, schema in asked_streams(thing).items()}
    return [{"name": name, "columns": columns} for name, columns in streams.items()] or None


def asked_streams(thing: Any) -> dict[str, pa.Schema]:
    """Return the columns of the streams of which a thing explains rows; nothing if it does not."""
    return thing.streams if isinstance(thing, (PushJoin, TableReplay, Query)) else {}


def explain_rows(thing: Any, rows: Sequence[Mapping[str, Any]]) -> str:
    """Explain rows, one per stream, given by texts and numbers."""
    streams = asked_streams(thing)
    typed = {
        name: typed_row(row, schema, name) for row, (name, schema) in zip(rows, streams.items(), strict=True)
    }
    if isinstance(thing, (MultiJoin, MultiReplay)):
        return str(thing.why(typed))
    if isinstance(thing, Query):
        return "\n\n".join(map(str, thing.why(typed)))
    return str(thing.why(*typed.values()))


@dataclass(frozen=True)
class StateOf:
    """The state of the join that a streaming query of Spark runs, which can be asked why."""

    root: str
    query: str
    name: str
    columns: list[list[str]]
    aliases: tuple[str, str] | None

    @classmethod
    def join(cls, thing: Any, frame: Any) -> StateOf | None:
        """Return where the state is, if `frame` is a join of two streams that keeps it in a directory."""
        if not hasattr(thing, "lastProgress") or not is_spark(frame):
            return None
        plan = spark_module("joins.explain").recall(frame)
        if plan is None or plan.runs != "streaming" or plan.definition.options.state != "directory":
            return None
        held = plan.definition
        columns = [list(held.left.names), list(held.right.names)]
        return cls(held.root, str(thing.id), str(plan.name), columns, held.aliases)

    def why(self, left: Any, right: Any) -> str:
        """Explain why two rows are a pair, or not, by what the state holds."""
        found = why(left, right, state=self.root, query=self.query, join=self.name, aliases=self.aliases)
        return str(found)
