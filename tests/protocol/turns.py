"""Time for what is on its way between two ends on one event loop."""

import asyncio

PATIENCE_S = 25
"""What a loaded machine may take; a test has 30 s."""
_TURN_S = 0.001


async def pause(seconds: float) -> None:
    """Let so much time pass, and the loop turn once for each millisecond: where a machine has no time for
    this process, time alone would pass and nothing happen."""
    for _ in range(round(seconds / _TURN_S)):
        await asyncio.sleep(_TURN_S)
