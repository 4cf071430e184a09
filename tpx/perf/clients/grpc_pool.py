"""The HTTP/2 connections to one server that many lanes share."""

import asyncio
import ssl
from collections.abc import Callable, Sequence
from typing import Any, cast

from tpx.perf.clients.base import Failure, Lane, OnResponse, nobody_listens
from tpx.perf.clients.endpoint import Endpoint
from tpx.protocol.grpc import client as wire
from tpx.protocol.grpc.client import GrpcClientConnection
from tpx.protocol.grpc.client_call import GrpcResponse
from tpx.protocol.grpc.status import Status


class GrpcPool:
    """A number of connections, each replaced when it ends."""

    def __init__(self, endpoint: Endpoint, tls: ssl.SSLContext | None) -> None:
        self._endpoint = endpoint
        self._tls = tls
        self._replacing = asyncio.Lock()
        self.connections: list[GrpcClientConnection] = []

    async def resize(self, count: int) -> None:
        """Exactly `count` connections, none of which has ended. Raises WireError."""
        for surplus in self.connections[count:]:
            surplus.close()
        del self.connections[count:]
        while len(self.connections) < count:
            self.connections.append(await self._connect())
        for i, connection in enumerate(self.connections):
            if connection.closing:
                self.connections[i] = await self._connect()

    async def instead_of(self, broken: GrpcClientConnection) -> GrpcClientConnection:
        """The connection in the place of one that has ended, opened by whoever asks first; WireError."""
        async with self._replacing:
            if broken not in self.connections:
                return min(self.connections, key=lambda c: c.in_flight)
            fresh = await self._connect()
            self.connections[self.connections.index(broken)] = fresh
            return fresh

    def close(self) -> None:
        for connection in self.connections:
            connection.close()
        self.connections.clear()

    async def _connect(self) -> GrpcClientConnection:
        connection = await wire.connect(self._endpoint.host, self._endpoint.port, tls=self._tls)
        if self._endpoint.at_once:
            connection.write_at_once()
        return connection


def spread(lanes: Sequence[Lane], carriers: Sequence[object]) -> list[tuple[Lane, object]]:
    """Which lanes go to which carrier, so that all have the same number of them.

    A lane that is in use stays where it is as long as its carrier is there.
    """
    load = dict.fromkeys(map(id, carriers), 0)
    homeless = []
    for lane in lanes:
        if lane.on_lost is nobody_listens or id(lane.connection) not in load:
            homeless.append(lane)
        else:
            load[id(lane.connection)] += 1
    moves = []
    for lane in homeless:
        carrier = min(carriers, key=lambda c: load[id(c)])
        load[id(carrier)] += 1
        moves.append((lane, carrier))
    return moves


LANES_PER_CONNECTION = 16
"""Fewer connections cost the client less, more of them let a server with a thread for each use its cores."""


Send = Callable[[Any, OnResponse], int]
"""Sends a request; returns the number of its call."""


def unary_send(connection: GrpcClientConnection) -> Send:
    """The connection's own way to make a unary call."""
    return connection.call


class GrpcLanes:
    """Lanes for calls, some to a connection; `sends` gives what makes a call on one."""

    def __init__(
        self,
        endpoint: Endpoint,
        tls: ssl.SSLContext | None,
        sends: Callable[[GrpcClientConnection], Send] = unary_send,
    ) -> None:
        self._pool = GrpcPool(endpoint, tls)
        self._sends = sends
        self._lanes: list[Lane] = []

    async def open(self, count: int) -> Sequence[Lane]:
        """Exactly `count` of them. Raises WireError."""
        await self._pool.resize(-(-count // LANES_PER_CONNECTION))
        connections = self._pool.connections
        del self._lanes[count:]
        while len(self._lanes) < count:
            self._lanes.append(Lane(None, self._sends(connections[0])))
        for lane, connection in spread(self._lanes, connections):
            self._attach(lane, cast("GrpcClientConnection", connection))
        return self._lanes

    async def renew(self, lane: Lane, call: object) -> None:
        """A call in flight is cancelled; a connection that ended is replaced for all of its lanes."""
        broken: GrpcClientConnection = lane.connection
        if isinstance(call, int):
            broken.cancel(call)
        if broken.closing:
            fresh = await self._pool.instead_of(broken)
            for each in self._lanes:
                if each.connection is broken:
                    self._attach(each, fresh)

    def close(self) -> None:
        self._pool.close()

    def _attach(self, lane: Lane, connection: GrpcClientConnection) -> None:
        lane.connection, lane.send = connection, self._sends(connection)


def call_failure(response: GrpcResponse) -> Failure:
    """What an unsuccessful call says."""
    return Failure(f"gRPC {Status(response.status).name}", response.message or "(no message)")
