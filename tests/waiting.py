"""Waiting in tests: for a condition and with a deadline, not for a time to pass."""

import asyncio
import time
from collections.abc import Callable

TIMEOUT_S = 25.0
"""What a loaded machine may take; a test that is a coroutine has 30 s."""
_LOOK_EVERY_S = 0.001
_TURNS = 20
"""Turns of the loop that most conditions need at the most; only then time has to pass."""
_LONGEST_REST_S = 0.02
_STANDS_S = 0.1


def eventually(true: Callable[[], object], timeout_s: float = TIMEOUT_S) -> None:
    """Wait until a condition holds; fails if it does not in time."""
    ends, rest_s = time.monotonic() + timeout_s, _LOOK_EVERY_S
    while not true():
        assert time.monotonic() < ends, "it did not come true"
        time.sleep(rest_s)
        rest_s = min(1.5 * rest_s, _LONGEST_REST_S)


async def until(true: Callable[[], object], timeout_s: float = TIMEOUT_S) -> None:
    """Wait until a condition holds, in the time of the running loop; fails if it does not in time."""
    loop = asyncio.get_running_loop()
    ends, turns = loop.time() + timeout_s, 0
    while not true():
        assert loop.time() < ends, "it did not come true"
        await asyncio.sleep(_LOOK_EVERY_S if turns > _TURNS else 0)
        turns += 1


def stands(count: Callable[[], int], looks: int = 4) -> int:
    """Return a count once it is not zero and the same at `looks` looks in a row; fails if it goes on."""
    seen = [count()]

    def still() -> bool:
        time.sleep(_STANDS_S)
        seen.append(count())
        return seen[-1] != 0 and seen[-looks:] == seen[-1:] * looks

    eventually(still)
    return seen[-1]
