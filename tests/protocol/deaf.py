"""A client that lets its server's answers wait."""

import asyncio
import socket
from typing import Self


class Deaf:
    """A client on a bare socket that reads only when told."""

    def __init__(self, port: int) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self._socket.setblocking(False)
        self._port = port

    async def __aenter__(self) -> Self:
        await asyncio.get_running_loop().sock_connect(self._socket, ("127.0.0.1", self._port))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._socket.close()

    async def send(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self._socket, data)

    async def read(self, size: int) -> bytes:
        data = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(self._socket, size), 5)
        assert data, "the server closed the connection"
        return data
