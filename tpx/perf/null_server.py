"""A server that only answers inference requests, so that a load generator meets only its own limits.

Run it as a process: `python -m tpx.perf.null_server http|grpc`. It prints its port, serves on loopback,
and ends when its standard input is closed.
"""

import asyncio
import re
import socket
import sys
from typing import cast

from tpx.perf.loops import event_loop
from tpx.protocol import messages
from tpx.protocol.grpc.framing import frame_message
from tpx.protocol.http2 import frames
from tpx.protocol.http2.frames import ACK, DATA, END_HEADERS, END_STREAM, HEADER_BYTES, HEADERS, Setting
from tpx.protocol.http2.hpack import encode_stateless

_HEAD_END = b"\r\n\r\n"
_BODY = b'{"model_name":"null","model_version":"1","outputs":[]}'
_HTTP_ANSWER = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(_BODY)
) + _BODY
_WINDOW = 1 << 30


class HttpNull(asyncio.Protocol):
    """Answers every request with the same success; a request head seen before is not parsed again."""

    def __init__(self) -> None:
        self._pending = b""
        self._sizes: dict[bytes, int] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        data = self._pending + data if self._pending else data
        at = answers = 0
        while (end := data.find(_HEAD_END, at)) >= 0:
            head = data[at:end]
            size = self._sizes.get(head)
            if size is None:
                found = re.search(rb"^content-length:\s*(\d+)", head, re.IGNORECASE | re.MULTILINE)
                body = int(found[1]) if found else 0
                size = self._sizes[head] = len(head) + len(_HEAD_END) + body
            if len(data) - at < size:
                break
            at += size
            answers += 1
        self._pending = data[at:]
        if answers:
            self._transport.write(_HTTP_ANSWER * answers)


class GrpcNull(asyncio.Protocol):
    """Answers every stream with the same success once the request has ended, whatever it contains."""

    def __init__(self) -> None:
        self._pending = b""
        self._greeting_left = len(frames.PREFACE)
        self._received = 0
        message = frame_message(messages.ModelInferResponse(model_name="null").SerializeToString())
        head = encode_stateless([(b":status", b"200"), (b"content-type", b"application/grpc")])
        trailers = encode_stateless([(b"grpc-status", b"0")])
        # everything is prebuilt but the last 4 bytes of each frame header, the stream number
        self._head = frames.frame_header(HEADERS, END_HEADERS, 0, len(head))[:5]
        self._data = head + frames.frame_header(DATA, 0, 0, len(message))[:5]
        flags = END_HEADERS | END_STREAM
        self._trailers = message + frames.frame_header(HEADERS, flags, 0, len(trailers))[:5]
        self._end = trailers

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        settings = {Setting.INITIAL_WINDOW_SIZE: _WINDOW, Setting.MAX_FRAME_SIZE: 1 << 20}
        self._transport.write(frames.settings_frame(settings) + frames.window_update(0, _WINDOW))

    def data_received(self, data: bytes) -> None:
        data = self._pending + data if self._pending else data
        if self._greeting_left:
            at = min(self._greeting_left, len(data))
            self._greeting_left -= at
        else:
            at = 0
        out: list[bytes] = []
        while len(data) - at >= HEADER_BYTES:
            high, low, kind, flags, stream_id = frames.header_at(data, at)
            stop = at + HEADER_BYTES + (high << 16 | low)
            if stop > len(data):
                break
            if kind == DATA:
                self._received += stop - at
                if flags & END_STREAM:
                    number = (stream_id & frames.MAX_STREAM_ID).to_bytes(4, "big")
                    out += self._head, number, self._data, number, self._trailers, number, self._end
            elif kind in (frames.SETTINGS, frames.PING) and not flags & ACK:
                payload = data[at + HEADER_BYTES : stop] if kind == frames.PING else b""
                out.append(frames.frame(kind, ACK, 0, payload))
            at = stop
        self._pending = data[at:]
        if self._received > _WINDOW // 2:
            out.append(frames.window_update(0, self._received))
            self._received = 0
        if out:
            self._transport.write(b"".join(out))


PROTOCOLS: dict[str, type[asyncio.Protocol]] = {"http": HttpNull, "grpc": GrpcNull}


async def serve(protocol: str) -> None:
    """Serve until standard input is closed."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(PROTOCOLS[protocol], "127.0.0.1", 0, backlog=socket.SOMAXCONN)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    over = asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), over.set)
    await over.wait()
    server.close()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=event_loop) as runner:
        runner.run(serve(sys.argv[1]))
