"""The functions of the language. Each is one entry: its arguments, the type of its result, and its values."""

from handshake.plan.functions import choices, numbers, texts, times
from handshake.plan.functions.registry import ALIASES, FUNCTIONS

for _room in (choices, numbers, texts, times):
    FUNCTIONS.update((function.name, function) for function in _room.FUNCTIONS)
    ALIASES.update(_room.ALIASES)
