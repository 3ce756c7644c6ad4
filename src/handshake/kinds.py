"""Kinds of joins: which rows are results beside the pairs, and which columns results have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from handshake.errors import UnsupportedError, suggest

Sides = tuple[bool, bool]
"""A fact about the left side and about the right one."""


@dataclass(frozen=True)
class JoinKind:
    """A kind of join of two streams.

    >>> kind_of_join("LeftOuter").preserved
    (True, False)
    """

    name: str
    help: str
    preserved: Sides = (False, False)
    """Sides whose rows without a match are results."""
    shown: Sides = (True, True)
    """Sides whose columns results have."""
    pairs: Literal["all", "first", "best", "none"] = "all"
    """The pairs that give results: all, the first one of each row of the side that is shown, the best ones of
    each left row, or none."""
    announced: bool = False
    """Whether every row of a preserved side is a result once it is final, also if it has matched."""

    @property
    def preserves(self) -> bool:
        """True if rows without a match are results."""
        return any(self.preserved)

    @property
    def tracked(self) -> Sides:
        """Sides of which the join must know which rows have matched."""
        first, best = self.pairs == "first", self.pairs == "best"
        left = self.preserved[0] or best or (first and self.shown[0])
        return left, self.preserved[1] or (first and self.shown[1])


INNER = JoinKind("inner", "each matching pair")
_LEFT, _RIGHT, _BOTH = (True, False), (False, True), (True, True)
_EACH = (
    INNER,
    JoinKind("left", "the pairs, and left rows without a match, with NULLs", _LEFT),
    JoinKind("right", "the pairs, and right rows without a match, with NULLs", _RIGHT),
    JoinKind("full", "the pairs, and rows of both sides without a match, with NULLs", _BOTH),
    JoinKind("left_semi", "left rows with a match, once", shown=_LEFT, pairs="first"),
    JoinKind("left_anti", "left rows without a match", _LEFT, _LEFT, "none"),
    JoinKind("right_semi", "right rows with a match, once", shown=_RIGHT, pairs="first"),
    JoinKind("right_anti", "right rows without a match", _RIGHT, _RIGHT, "none"),
)
NEAREST = JoinKind("nearest", "the best pairs of each left row, once it is final", _LEFT, announced=True)
"""The kind of joins that choose pairs when a left row is final; it has no name that users can ask for."""
KINDS: dict[str, JoinKind] = {kind.name: kind for kind in _EACH}
"""All kinds by name."""
BEST: dict[str, JoinKind] = {
    "left": JoinKind("left", "each left row with its best match, or with NULLs", _LEFT, pairs="best"),
    "inner": JoinKind("inner", "each left row that has a match, with its best one", pairs="best"),
}
"""The kinds of as-of and nearest joins, by name."""
_SPELLINGS = {
    **{name.replace("_", ""): name for name in KINDS},
    "cross": "inner", "leftouter": "left", "rightouter": "right", "outer": "full", "fullouter": "full",
    "semi": "left_semi", "anti": "left_anti",
}  # fmt: skip
"""The spellings that Spark accepts, and those of the right side; case, spaces and `_` do not matter."""


def kind_of_join(how: str | JoinKind) -> JoinKind:
    """Return the kind of join that a user asks for.

    Args:
        how: A name in `KINDS`, or another spelling that Spark accepts; or the kind itself.

    Raises:
        UnsupportedError: There is no such kind.

    >>> [kind_of_join(how).name for how in ("outer", "semi", "LEFT ANTI", "right_outer")]
    ['full', 'left_semi', 'left_anti', 'right']
    """
    if isinstance(how, JoinKind):
        return how
    name = _name_of(how)
    if name is None:
        choices = ", ".join(KINDS)
        raise UnsupportedError(
            f"no kind of join {how!r}; choose one of {choices}{suggest(str(how), [*KINDS, *_SPELLINGS])}"
        )
    return KINDS[name]


def kind_of_best(how: Any, join: str) -> JoinKind:
    """Return the kind of an as-of or nearest join that a user asks for.

    Args:
        how: A spelling of `left` or `inner`.
        join: The join, for errors: `an as-of join`.

    Raises:
        UnsupportedError: Such a join has no such kind.

    >>> kind_of_best("LEFT OUTER", "an as-of join").name
    'left'
    """
    name = _name_of(how)
    if name not in BEST:
        raise UnsupportedError(
            f"{join} keeps left rows without a match (how='left') or drops them (how='inner'), "
            f"not how={how!r}{suggest(str(how), [each for each in _SPELLINGS if _name_of(each) in BEST])}"
        )
    return BEST[name]


def _name_of(how: Any) -> str | None:
    """Return the name of the kind that a user spells; None if there is none."""
    return _SPELLINGS.get(str(how).lower().replace("_", "").replace(" ", ""))
