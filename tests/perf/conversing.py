"""HTTP servers of their own making: one loop in one thread, and a function that answers."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request as it came; names of headers in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


Answer = Callable[[Request, asyncio.StreamWriter], Awaitable[bool]]
"""Writes the answer, and tells whether the connection goes on."""


class _Conversations:
    def __init__(self, answer: Answer, port: int) -> None:
        self._answer = answer
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._writers: list[asyncio.StreamWriter] = []
        self.port = port
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    def start(self) -> None:
        self._thread.start()
        assert self._ready.wait(5)

    def stop(self) -> None:
        assert self._loop is not None
        assert self._stop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(5)

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._converse, "127.0.0.1", self.port)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stop.wait()
        await asyncio.sleep(0.05)  # what is accepted while a server closes is left open by asyncio
        server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for writer in self._writers:
            writer.transport.abort()  # closing would wait for a client that reads no more
        await asyncio.sleep(0.05)  # for the transports to close their sockets

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        try:
            while await self._answer(await _read(reader), writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()


async def _read(reader: asyncio.StreamReader) -> Request:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in head[1:] if line)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    method, path, _ = head[0].split(" ")
    return Request(method=method, path=path, headers=headers, body=body)


@contextmanager
def conversing(answer: Answer, port: int = 0) -> Iterator[str]:
    """A running server, on a free port unless one is given; yields host:port."""
    server = _Conversations(answer, port)
    server.start()
    try:
        yield f"127.0.0.1:{server.port}"
    finally:
        server.stop()
