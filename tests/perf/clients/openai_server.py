"""A small service with OpenAI's API whose tokens come at known times."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Script:
    """What the service does with every request."""

    tokens: int = 4
    first_s: float = 0.02
    gap_s: float = 0.005
    status: int = 200
    usage: bool = True
    breaks_after: int = -1
    """Tokens after which the stream tells of an error; -1: never."""
    chunked: bool = True
    """Whether the body is chunked, or ends with the connection."""
    splits: bool = False
    """Whether events come in pieces that end anywhere."""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[str] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)


class OpenAiServer:
    """One loop in one thread."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._writers: list[asyncio.StreamWriter] = []
        self.port = 0
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
        server = await asyncio.start_server(self._converse, "127.0.0.1", 0)
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
            while await self._answer(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        script = self._script
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in head[1:] if line)}
        body = json.loads(await reader.readexactly(int(headers["content-length"])))
        script.bodies.append(body)
        script.headers.append(headers.get("authorization", ""))
        script.paths.append(head[0].split(" ")[1])
        if script.status != 200:
            self._whole(writer, script.status, {"error": {"message": "no such model", "type": "x"}})
        elif body.get("stream"):
            return await self._stream(writer, chat="messages" in body)
        else:
            await asyncio.sleep(script.first_s)
            usage = {"usage": {"completion_tokens": script.tokens}} if script.usage else {}
            self._whole(writer, 200, {"choices": [{"message": {"content": "all"}}], **usage})
        return True

    def _whole(self, writer: asyncio.StreamWriter, status: int, answer: Any) -> None:
        data = json.dumps(answer).encode()
        head = b"HTTP/1.1 %d X\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        writer.write(head % (status, len(data)) + data)

    async def _stream(self, writer: asyncio.StreamWriter, *, chat: bool) -> bool:
        script = self._script
        framing = b"Transfer-Encoding: chunked" if script.chunked else b"Connection: close"
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n" + framing + b"\r\n\r\n")
        if chat:
            await self._event(writer, {"choices": [{"delta": {"role": "assistant", "content": ""}}]})
        await asyncio.sleep(script.first_s)
        for number in range(script.tokens):
            if number:
                await asyncio.sleep(script.gap_s)
            if number == script.breaks_after:
                await self._event(writer, {"error": {"message": "out of memory"}})
                break
            piece = {"delta": {"content": f"t{number}"}} if chat else {"text": f"t{number}"}
            await self._event(writer, {"choices": [piece]})
        if script.usage:
            await self._event(writer, {"choices": [], "usage": {"completion_tokens": 2 * script.tokens}})
        await self._write(writer, b"data: [DONE]\n\n")
        if script.chunked:
            writer.write(b"0\r\n\r\n")
        return script.chunked

    async def _event(self, writer: asyncio.StreamWriter, event: Any) -> None:
        await self._write(writer, b"data: " + json.dumps(event).encode() + b"\n\n")

    async def _write(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        halves = [data[: len(data) // 2], data[len(data) // 2 :]] if self._script.splits else [data]
        for half in halves:
            writer.write(b"%x\r\n%b\r\n" % (len(half), half) if self._script.chunked else half)
            await writer.drain()
            await asyncio.sleep(0)


@contextmanager
def openai_server(script: Script) -> Iterator[str]:
    """A running service; yields host:port."""
    server = OpenAiServer(script)
    server.start()
    try:
        yield f"127.0.0.1:{server.port}"
    finally:
        server.stop()
