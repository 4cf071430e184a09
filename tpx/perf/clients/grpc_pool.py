"""The HTTP/2 connections to one server that many slots share."""

import asyncio
import ssl
from collections.abc import Callable, Sequence
from typing import Any, cast

from tpx.perf.clients.base import Failure, OnResponse, Slot, nobody_listens
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


def spread(slots: Sequence[Slot], carriers: Sequence[object]) -> list[tuple[Slot, object]]:
    """Which slots go to which carrier, so that all have the same number of them.

    A slot that is in use stays where it is as long as its carrier is there.
    """
    load = dict.fromkeys(map(id, carriers), 0)
    homeless = []
    for slot in slots:
        if slot.on_lost is nobody_listens or id(slot.connection) not in load:
            homeless.append(slot)
        else:
            load[id(slot.connection)] += 1
    moves = []
    for slot in homeless:
        carrier = min(carriers, key=lambda c: load[id(c)])
        load[id(carrier)] += 1
        moves.append((slot, carrier))
    return moves


SLOTS_PER_CONNECTION = 16
"""Fewer connections cost the client less, more of them let a server with a thread for each use its cores."""


Send = Callable[[Any, OnResponse], int]
"""Sends a request; returns the number of its call."""


def unary_send(connection: GrpcClientConnection) -> Send:
    """The connection's own way to make a unary call."""
    return connection.call


class GrpcSlots:
    """Slots for calls, some to a connection; `sends` gives what makes a call on one."""

    def __init__(
        self,
        endpoint: Endpoint,
        tls: ssl.SSLContext | None,
        sends: Callable[[GrpcClientConnection], Send] = unary_send,
    ) -> None:
        self._pool = GrpcPool(endpoint, tls)
        self._sends = sends
        self._slots: list[Slot] = []

    async def open(self, count: int) -> Sequence[Slot]:
        """Exactly `count` of them. Raises WireError."""
        await self._pool.resize(-(-count // SLOTS_PER_CONNECTION))
        connections = self._pool.connections
        del self._slots[count:]
        while len(self._slots) < count:
            self._slots.append(Slot(None, self._sends(connections[0])))
        for slot, connection in spread(self._slots, connections):
            self._attach(slot, cast("GrpcClientConnection", connection))
        return self._slots

    async def renew(self, slot: Slot, call: object) -> None:
        """A call in flight is cancelled; a connection that ended is replaced for all of its slots."""
        broken: GrpcClientConnection = slot.connection
        if isinstance(call, int):
            broken.cancel(call)
        if broken.closing:
            fresh = await self._pool.instead_of(broken)
            for each in self._slots:
                if each.connection is broken:
                    self._attach(each, fresh)

    def close(self) -> None:
        self._pool.close()

    def _attach(self, slot: Slot, connection: GrpcClientConnection) -> None:
        slot.connection, slot.send = connection, self._sends(connection)


def call_failure(response: GrpcResponse) -> Failure:
    """What an unsuccessful call says."""
    return Failure(f"gRPC {Status(response.status).name}", response.message or "(no message)")
