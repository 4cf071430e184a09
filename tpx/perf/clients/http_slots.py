"""Slots over HTTP/1.1: a connection for each, since it carries one request at a time."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tpx.errors import WireError
from tpx.perf.clients.base import OnResponse, Prepared, Slot, nobody_listens
from tpx.protocol.http1.client import HttpClientConnection, HttpConnector

CONNECTS_AT_ONCE = 64
"""Below the listen backlog of usual servers."""

Send = Callable[[Prepared, OnResponse], Any]


class HttpSlots:
    """A number of slots; `sends` gives what sends on a connection."""

    def __init__(self, connector: HttpConnector, sends: Callable[[HttpClientConnection], Send]) -> None:
        self._connector = connector
        self._sends = sends
        self._slots: list[Slot] = []

    async def open(self, count: int) -> Sequence[Slot]:
        """Exactly `count` of them. Raises WireError."""
        for slot in self._slots[count:]:
            slot.connection.close()
        del self._slots[count:]
        for slot in self._slots:
            if slot.connection.closing and slot.on_lost is nobody_listens:
                await self.renew(slot)
        while missing := count - len(self._slots):
            batch = (self._add() for _ in range(min(missing, CONNECTS_AT_ONCE)))
            for failed in await asyncio.gather(*batch, return_exceptions=True):
                if failed is not None:
                    raise failed
        return self._slots

    async def renew(self, slot: Slot) -> None:
        """Give a slot another connection. Raises WireError."""
        slot.connection.close()
        self._attach(slot, await self._connector.connect())

    def close(self) -> None:
        for slot in self._slots:
            slot.connection.close()
        self._slots.clear()

    async def _add(self) -> None:
        connection = await self._connector.connect()
        slot = Slot(connection, connection.send)
        self._attach(slot, connection)
        self._slots.append(slot)

    def _attach(self, slot: Slot, connection: HttpClientConnection) -> None:
        slot.connection, slot.send = connection, self._sends(connection)
        connection.on_lost = partial(_lost, slot, connection)


def plain_send(connection: HttpClientConnection) -> Send:
    """The connection's own way to send: nothing of ours stands between the load and the wire."""
    return connection.send


def _lost(slot: Slot, connection: HttpClientConnection, error: WireError) -> None:
    if slot.connection is connection:
        slot.on_lost(error)
