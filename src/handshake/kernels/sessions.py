"""Sessions of rows, one row at a time: which session a row extends, opens, or makes one of two."""

from __future__ import annotations

from typing import Any

import numpy as np

from handshake.kernels.compile_cache import compile_loop

Array = np.ndarray[Any, Any]


@compile_loop(nogil=True)
def assign_sessions(
    groups: Array, times: Array, timed: Array, clocks: Array, passed: Array, reach: int,
    head: Array, following: Array, group_of: Array, starts: Array, lasts: Array, births: Array,
    owner: Array, used: int, born: int, out: Array,
) -> tuple[int, int]:  # fmt: skip
    """Write the session of each row to `out`, -1 if it has none; return the sessions used, and late rows.

    A session is open at a clock below its last time plus `reach`. The sessions of a group do not overlap and
    are linked from the latest to the earliest, so rows in the order of time look at one of them. A session
    that ended up in another has that one as its `owner`; else it is its own. An empty `timed` means that all
    rows have a time. No row to come has a clock below `passed`.
    """
    late, everything = 0, len(timed) == 0
    for i in range(len(times)):
        out[i] = -1
        if not (everything or timed[i]):
            continue
        time, clock, group = times[i], clocks[i], groups[i]
        if time + reach <= clock:
            late += 1
            continue
        target, before, here = -1, -1, head[group]
        while here >= 0:
            if lasts[here] + reach <= passed[i]:  # this one and all earlier ones can grow no more
                here = -1
                break
            if time - lasts[here] >= reach:
                break
            if starts[here] - time >= reach:
                before = here
            elif lasts[here] + reach <= clock:
                break
            elif target < 0:
                target = here
            else:
                owner[here] = target
                starts[target] = min(starts[target], starts[here])
                births[target] = min(births[target], births[here])
            here = following[here]
        if target < 0:
            target, used = used, used + 1
            owner[target], group_of[target], births[target] = target, group, born + i
            starts[target] = lasts[target] = time
        following[target] = here
        if before < 0:
            head[group] = target
        else:
            following[before] = target
        starts[target] = min(starts[target], time)
        lasts[target] = max(lasts[target], time)
        out[i] = target
    return used, late
