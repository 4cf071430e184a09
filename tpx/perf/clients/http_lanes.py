"""Lanes over HTTP/1.1: a connection for each, since it carries one request at a time."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tpx.errors import WireError
from tpx.perf.clients.base import Lane, OnResponse, Prepared, nobody_listens
from tpx.protocol.http1.client import HttpClientConnection, HttpConnector

CONNECTS_AT_ONCE = 64
"""Below the listen backlog of usual servers."""

Send = Callable[[Prepared, OnResponse], Any]


class HttpLanes:
    """A number of lanes; `sends` gives what sends on a connection."""

    def __init__(self, connector: HttpConnector, sends: Callable[[HttpClientConnection], Send]) -> None:
        self._connector = connector
        self._sends = sends
        self._lanes: list[Lane] = []

    async def open(self, count: int) -> Sequence[Lane]:
        """Exactly `count` of them. Raises WireError."""
        for lane in self._lanes[count:]:
            lane.connection.close()
        del self._lanes[count:]
        for lane in self._lanes:
            if lane.connection.closing and lane.on_lost is nobody_listens:
                await self.renew(lane)
        while missing := count - len(self._lanes):
            batch = (self._add() for _ in range(min(missing, CONNECTS_AT_ONCE)))
            for failed in await asyncio.gather(*batch, return_exceptions=True):
                if failed is not None:
                    raise failed
        return self._lanes

    async def renew(self, lane: Lane) -> None:
        """Give a lane another connection. Raises WireError."""
        lane.connection.close()
        self._attach(lane, await self._connector.connect())

    def close(self) -> None:
        for lane in self._lanes:
            lane.connection.close()
        self._lanes.clear()

    async def _add(self) -> None:
        connection = await self._connector.connect()
        lane = Lane(connection, connection.send)
        self._attach(lane, connection)
        self._lanes.append(lane)

    def _attach(self, lane: Lane, connection: HttpClientConnection) -> None:
        lane.connection, lane.send = connection, self._sends(connection)
        connection.on_lost = partial(_lost, lane, connection)


def plain_send(connection: HttpClientConnection) -> Send:
    """The connection's own way to send: nothing of ours stands between the load and the wire."""
    return connection.send


def _lost(lane: Lane, connection: HttpClientConnection, error: WireError) -> None:
    if lane.connection is connection:
        lane.on_lost(error)
