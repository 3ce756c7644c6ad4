"""All targets by name."""

from __future__ import annotations

from fuzz import datagrams, files, options, state, texts
from fuzz.run import Target

__all__ = ["TARGETS"]

TARGETS: dict[str, Target] = {
    "predicates": Target(texts.make_predicate, texts.check_predicate),
    "queries": Target(texts.make_query, texts.check_query),
    "declarations": Target(texts.make_declaration, texts.check_declaration),
    "windows": Target(texts.make_window, texts.check_window),
    "addresses": Target(texts.make_address, texts.check_address),
    "csv": Target(files.make_csv, files.check_csv),
    "json": Target(files.make_json, files.check_json),
    "columnar": Target(files.make_columnar, files.check_columnar),
    "datagrams": Target(datagrams.make_datagrams, datagrams.check_datagrams),
    "chunks": Target(state.make_chunk, state.check_chunk),
    "blocks": Target(state.make_blocks, state.check_blocks),
    "manifests": Target(state.make_manifest, state.check_manifest),
    "logs": Target(state.make_log, state.check_log),
    "options": Target(options.make_options, options.check_options),
    "commands": Target(options.make_command, options.check_command),
}
