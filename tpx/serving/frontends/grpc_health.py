"""The health service of gRPC: what load balancers and orchestrators ask.

It speaks for the server as a whole: the service that a client names does not matter, as with Triton. Triton
has Check only; clients with health checking of their own (`healthCheckConfig`) use Watch.
"""

import asyncio
from typing import Any

from google.protobuf.message import DecodeError

from tpx.errors import InvalidRequest
from tpx.protocol import messages
from tpx.protocol.grpc.server_call import Method, ServerCall
from tpx.protocol.tensors import Buffer
from tpx.serving.dataplane import DataPlane
from tpx.serving.frontends.grpc_answers import fail
from tpx.serving.frontends.grpc_verbs import Rpc, unary_later

_SERVICE = "/grpc.health.v1.Health/"
_LOOK_EVERY_S = 0.25
"""How late a watcher may learn of a change."""


class GrpcHealth:
    """Check and Watch."""

    def __init__(self, plane: DataPlane) -> None:
        self._plane = plane

    def rpcs(self) -> list[Rpc]:
        check = unary_later(_SERVICE + "Check", "HealthCheckRequest", self._check, self._plane.control.tasks)
        return [
            Rpc(category="health", method=check),
            Rpc(category="health", method=Method(_SERVICE + "Watch", stream=self._watch)),
        ]

    async def _check(self, request: Any) -> Any:  # noqa: ARG002
        return _health(ready=await self._plane.says_ready())

    def _watch(self, call: ServerCall) -> "_Watch":
        return _Watch(call, self._plane)


def _health(*, ready: bool) -> Any:
    response = messages.HealthCheckResponse
    return response(status=response.SERVING if ready else response.NOT_SERVING)


class _Watch:
    """The sink of one Watch: the health at once and whenever it changes, until the server ends."""

    def __init__(self, call: ServerCall, plane: DataPlane) -> None:
        self._call = call
        self._plane = plane
        self._told = -1
        self._timer: asyncio.TimerHandle | None = None

    def message(self, message: Buffer) -> None:
        try:
            messages.HealthCheckRequest.FromString(bytes(message))
        except DecodeError:
            fail(self._call, InvalidRequest("Unable to parse request: it is not a HealthCheckRequest"))
            return
        if self._timer is None:
            self._look()

    def half_closed(self) -> None:
        """The client has asked its one question; it waits for the answers."""
        if self._timer is None:
            fail(self._call, InvalidRequest("Watch needs one request message, got none"))

    def gone(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        health = _health(ready=self._plane.ready())
        if health.status != self._told:
            self._told = health.status
            data = health.SerializeToString()
            self._call.send((data,), len(data))
        if self._plane.exiting:
            self._call.finish()
        else:
            self._timer = asyncio.get_running_loop().call_later(_LOOK_EVERY_S, self._look)
