"""Shutdown of a server, in the order that load balancers, clients, and models need."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Protocol

from tpx.serving.dataplane import DataPlane
from tpx.serving.served import Served

log = logging.getLogger(__name__)

_LINGER_S = 5
"""Grace period after the last computation, for partly received requests and for clients to read responses."""
_LOOK_EVERY_S = 0.05


class Accepting(Protocol):
    """A listener, or all listeners of the frontend processes."""

    shares_port: bool

    @property
    def connections(self) -> int: ...
    def release(self) -> None:
        """Ask clients to reconnect."""

    def stop_accepting(self) -> None:
        """Close the port and idle connections."""


class Shutdown:
    """Shuts down the `listeners`; the models are unloaded afterwards.

    1. Not ready: load balancers start to remove the server. All requests are served for `drain_s`
    seconds; in the second half clients are asked to reconnect. 2. Stopping: new requests are refused.
    Requests in flight and started sequences may finish within `exit_timeout_s` seconds; ports and
    connections stay open. 3. Closing: connections end once their responses are read.
    """

    def __init__(
        self, plane: DataPlane, listeners: Sequence[Accepting], *, drain_s: int, exit_timeout_s: int
    ) -> None:
        self._plane = plane
        self._listeners = listeners
        self._drain_s = drain_s
        self._exit_timeout_s = exit_timeout_s

    async def run(self) -> float | None:
        """Shut down. Return the seconds left, or None if time ran out while something was busy."""
        self._plane.exiting = True
        if self._drain_s:
            await self._serve_on()
        self._plane.stopping = True
        self._plane.control.stop()
        for listener in self._listeners:
            if listener.shares_port:
                listener.release()
        ends = asyncio.get_running_loop().time() + self._exit_timeout_s
        if not await self._finished(ends):
            return None
        return await self._closed(ends)

    async def _serve_on(self) -> None:
        log.info("Draining: not ready, and serving for %d s more", self._drain_s)
        await asyncio.sleep(self._drain_s / 2)
        for listener in self._listeners:
            listener.release()
        await asyncio.sleep(self._drain_s / 2)

    async def _finished(self, ends: float) -> bool:
        """Wait for requests in flight and sequences. Return False at the deadline if requests or loads
        are left; sequences are abandoned then.
        """
        log.info("Waiting for in-flight requests to complete.")
        control, told_s = self._plane.control, -1
        while True:
            busy = [model for model in self._serving() if _is_busy(model)]
            left_s = ends - asyncio.get_running_loop().time()
            if told_s != max(0, round(left_s)):
                told_s = max(0, round(left_s))
                _log_waiting(told_s, busy, control.loads.busy)
            if not busy and not control.loads.busy:
                return True
            if left_s <= 0:
                return not control.loads.busy and not any(model.in_flight for model in busy)
            await asyncio.sleep(min(_LOOK_EVERY_S, left_s))

    async def _closed(self, ends: float) -> float:
        """Close connections and wait for them to end, at most until the deadline. Return the seconds left."""
        for listener in self._listeners:
            listener.stop_accepting()
        loop = asyncio.get_running_loop()
        patience = min(ends, loop.time() + _LINGER_S)
        while sum(listener.connections for listener in self._listeners) and loop.time() < patience:  # noqa: ASYNC110 (an event would add a check to every connection)
            await asyncio.sleep(_LOOK_EVERY_S)
        return max(0.0, ends - loop.time())

    def _serving(self) -> list[Served]:
        return [*self._plane.served(), *self._plane.control.retirement.draining]


def _is_busy(model: Served) -> bool:
    return model.sequences > 0 or (model.in_flight > 0 and not model.abandoned)


def _log_waiting(timeout_s: int, busy: Sequence[Served], changes: int) -> None:
    log.info("Timeout %d: Found %d model versions that have in-flight inferences", timeout_s, len(busy))
    for model in busy:
        count = max(model.in_flight, model.sequences)
        log.info("Model '%s' (version %d) has %d in-flight inferences", model.name, model.version, count)
    if changes:
        log.info("%d loads or unloads have not ended", changes)
