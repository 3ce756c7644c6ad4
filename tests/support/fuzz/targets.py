"""All targets by name."""

from __future__ import annotations

from fuzz import datagrams, files, options, state, texts
from fuzz.run import Check

__all__ = ["TARGETS"]

TARGETS: dict[str, Check] = {
    "predicates": texts.check_predicate,
    "queries": texts.check_query,
    "declarations": texts.check_declaration,
    "windows": texts.check_window,
    "addresses": texts.check_address,
    "csv": files.check_csv,
    "json": files.check_json,
    "columnar": files.check_columnar,
    "datagrams": datagrams.check_datagrams,
    "chunks": state.check_chunk,
    "blocks": state.check_blocks,
    "manifests": state.check_manifest,
    "logs": state.check_log,
    "options": options.check_options,
    "commands": options.check_command,
}
