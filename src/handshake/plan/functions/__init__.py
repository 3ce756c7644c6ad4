"""The functions of the language. Each is one entry: its arguments, the type of its result, and its values."""

from handshake.plan.functions import choices, numbers, texts, times
from handshake.plan.functions.registry import (
    ALIASES,
    FUNCTIONS,
    Function,
    bind_call,
    call_values,
    no_function,
    spelled_names,
)
from handshake.plan.functions.times import FIELDS

__all__ = [
    "ALIASES",
    "FIELDS",
    "FUNCTIONS",
    "Function",
    "bind_call",
    "call_values",
    "no_function",
    "spelled_names",
]

for _room in (choices, numbers, texts, times):
    FUNCTIONS.update((function.name, function) for function in _room.FUNCTIONS)
    ALIASES.update(_room.ALIASES)
