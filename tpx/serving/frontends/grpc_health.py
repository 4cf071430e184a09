"""The gRPC health service, used by load balancers and orchestrators.

It reports the server as a whole: the requested service name is ignored, as in Triton. Triton only has
Check; clients with client-side health checking (`healthCheckConfig`) use Watch.
"""

import asyncio

from tpx.errors import InvalidRequest
from tpx.protocol import messages
from tpx.protocol.grpc.server_call import Method, ServerCall
from tpx.protocol.tensors import Buffer
from tpx.serving.dataplane import DataPlane
from tpx.serving.frontends.grpc_verbs import Rpc, decode, fail, rpc_later

_SERVICE = "/grpc.health.v1.Health/"
_LOOK_EVERY_S = 0.25
"""Polling interval, and so the maximum delay before a watcher sees a change."""


class GrpcHealth:
    """Serves Check and Watch."""

    def __init__(self, plane: DataPlane) -> None:
        self._plane = plane
        self.watchers: set[_HealthWatch] = set()
        self._looking: asyncio.TimerHandle | None = None

    def rpcs(self) -> list[Rpc]:
        watch = Method(_SERVICE + "Watch", stream=lambda call: _HealthWatch(call, self))
        return [
            rpc_later("HealthCheck", "health", self._check, self._plane.tasks, path=_SERVICE + "Check"),
            Rpc(category="health", method=watch),
        ]

    async def _check(self, request: messages.HealthCheckRequest) -> messages.HealthCheckResponse:  # noqa: ARG002
        return _make_response(ready=await self._plane.check_ready())

    def enter(self, watch: "_HealthWatch") -> None:
        """Send a watcher the current health, and later every change."""
        self.watchers.add(watch)
        watch.notify(_make_response(ready=self._plane.ready()))
        if self._looking is None:
            self._schedule_update()

    def part(self, watch: "_HealthWatch") -> None:
        """Send a watcher the health for the last time."""
        self.watchers.discard(watch)
        watch.notify(_make_response(ready=self._plane.ready()))

    def _schedule_update(self) -> None:
        self._looking = asyncio.get_running_loop().call_later(_LOOK_EVERY_S, self._update_watchers)

    def _update_watchers(self) -> None:
        """Check the health once for all watchers."""
        self._looking = None
        if not self.watchers:
            return
        health = _make_response(ready=self._plane.ready())
        for watch in list(self.watchers):
            watch.notify(health)
        if self.watchers:
            self._schedule_update()


def _make_response(*, ready: bool) -> messages.HealthCheckResponse:
    response = messages.HealthCheckResponse
    return response(status=response.SERVING if ready else response.NOT_SERVING)


class _HealthWatch:
    """Sink of one Watch call: sends the health at once and on every change until the server stops."""

    __slots__ = ("_call", "_health", "_told")

    def __init__(self, call: ServerCall, health: GrpcHealth) -> None:
        self._call = call
        self._health = health
        self._told = -1
        # a client that does not read has at most its last status buffered: stalls need no handling
        call.listen(on_stall=lambda _: None, on_drain=self._end)

    def message(self, message: Buffer) -> None:
        try:
            decode("HealthCheckRequest", message)
        except InvalidRequest as exc:
            fail(self._call, exc)
            return
        if self._told < 0:
            self._health.enter(self)

    def half_closed(self) -> None:
        """Reject a stream without a request; otherwise keep sending responses."""
        if self._told < 0:
            fail(self._call, InvalidRequest("Watch needs one request message, got none"))

    def gone(self) -> None:
        self._health.watchers.discard(self)

    def notify(self, health: messages.HealthCheckResponse) -> None:
        """Send the health if it has changed."""
        if health.status != self._told:
            self._told = health.status
            data = health.SerializeToString()
            self._call.send((data,), len(data))

    def _end(self) -> None:
        """Send the last status and finish: the server is stopping."""
        self._health.part(self)
        self._call.finish()
