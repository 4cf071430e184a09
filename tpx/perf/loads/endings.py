"""Ending the sequences that are open when a load stops, so that they hold nothing on the server."""

import asyncio
from collections.abc import Iterable, Set
from typing import Any, Protocol, runtime_checkable

from tpx.errors import WireError
from tpx.perf.clients.base import Lane, Prepared
from tpx.perf.inputs.feed import Source


@runtime_checkable
class EndsSequences(Protocol):
    """What knows the sequences of a load that were ended before their time."""

    @property
    def unfinished(self) -> Set[int]: ...


def unfinished(*of: object) -> Set[int]:
    """The sequences that any of these had to end before their time."""
    return {number for each in of if isinstance(each, EndsSequences) for number in each.unfinished}


async def end_sequences(slots: Iterable[tuple[Lane, Source]], patience_s: float) -> None:
    """Send the request that ends each open sequence, over a lane that is at rest; none is counted."""
    closings = [(lane, request) for lane, source in slots if (request := source.closing()) is not None]
    if closings:
        await asyncio.gather(*(_send(lane, request, patience_s) for lane, request in closings))


async def _send(lane: Lane, request: Prepared, patience_s: float) -> None:
    answered = asyncio.Event()

    def on_response(_: Any) -> None:
        answered.set()

    def on_lost(_: WireError) -> None:
        answered.set()

    lane.on_lost = on_lost
    try:
        lane.send(request, on_response)
        async with asyncio.timeout(patience_s):
            await answered.wait()
    except (WireError, TimeoutError):
        return  # the server forgets the sequence when it has been idle for long
