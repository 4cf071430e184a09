"""The other end of an HTTP/2 connection, frame by frame, with hpack's own encoder and decoder."""

import asyncio
import ssl
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from hpack import Decoder, Encoder

from tests.protocol.turns import PATIENCE_S
from tpx.protocol.grpc.framing import frame_message
from tpx.protocol.http2 import frames
from tpx.protocol.http2.frames import (
    CONTINUATION,
    DATA,
    DEFAULT_FRAME_BYTES,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PREFACE,
    ErrorCode,
    Setting,
)

Header = tuple[bytes, bytes]


def grpc_headers(path: str, *extra: Header) -> list[Header]:
    """The headers of a gRPC request."""
    return [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", path.encode()),
        (b":authority", b"test"),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
        *extra,
    ]


@dataclass
class Frame:
    """One frame as it came."""

    kind: int
    flags: int
    stream_id: int
    payload: bytes

    @property
    def code(self) -> int:
        """The error code of RST_STREAM or GOAWAY."""
        at = 4 if self.kind == frames.GOAWAY else 0
        return int.from_bytes(self.payload[at : at + 4], "big")

    @property
    def reason(self) -> str:
        return self.payload[8:].decode()


@dataclass
class Answer:
    """What came on one stream."""

    blocks: list[dict[bytes, bytes]] = field(default_factory=list)
    data: bytearray = field(default_factory=bytearray)
    reset: int | None = None
    ended: bool = False

    @property
    def status(self) -> int:
        return int(self.blocks[-1][b"grpc-status"])

    @property
    def message(self) -> bytes:
        return bytes(self.data[5:])


class RawPeer:
    """Reads and writes frames; what it does not look for is kept in `seen`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer
        self.encoder = Encoder()
        self.decoder = Decoder()
        self.answers: dict[int, Answer] = {}
        self.seen: list[Frame] = []
        self._unacknowledged = 1
        self._block = b""

    @classmethod
    async def connect(
        cls,
        port: int,
        *,
        settings: dict[Setting, int] | None = None,
        preface: bytes = PREFACE,
        tls: ssl.SSLContext | None = None,
    ) -> Self:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls, limit=1 << 22)
        peer = cls(reader, writer)
        writer.write(preface + frames.settings_frame(settings or {}))
        return peer

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.writer.close()
        with suppress(ConnectionError, ssl.SSLError):
            await asyncio.wait_for(self.writer.wait_closed(), 5)

    def send(self, kind: int, flags: int = 0, stream_id: int = 0, payload: bytes = b"") -> None:
        self.writer.write(frames.frame(kind, flags, stream_id, payload))

    def open(self, stream_id: int, path: str, *extra: Header, end_stream: bool = False) -> None:
        """A gRPC request's HEADERS."""
        self.send_headers(stream_id, grpc_headers(path, *extra), end_stream=end_stream)

    def send_headers(self, stream_id: int, headers: Sequence[Header], *, end_stream: bool = False) -> None:
        block = self.encoder.encode(list(headers))
        self.send(HEADERS, END_HEADERS | (END_STREAM if end_stream else 0), stream_id, block)

    def send_message(self, stream_id: int, message: bytes, *, end_stream: bool = False) -> None:
        """One gRPC message in frames that every peer takes."""
        framed = frame_message(message)
        for at in range(0, len(framed), DEFAULT_FRAME_BYTES):
            last = end_stream and at + DEFAULT_FRAME_BYTES >= len(framed)
            self.send(DATA, END_STREAM if last else 0, stream_id, framed[at : at + DEFAULT_FRAME_BYTES])

    def call(self, stream_id: int, path: str, message: bytes = b"", *extra: Header) -> None:
        """A whole unary call."""
        self.open(stream_id, path, *extra)
        self.send_message(stream_id, message, end_stream=True)

    def grant(self, stream_id: int, increment: int) -> None:
        """WINDOW_UPDATE."""
        self.send(frames.WINDOW_UPDATE, 0, stream_id, increment.to_bytes(4, "big"))

    def reset(self, stream_id: int, code: ErrorCode = ErrorCode.CANCEL) -> None:
        self.send(frames.RST_STREAM, 0, stream_id, int(code).to_bytes(4, "big"))

    async def sent_away(self) -> Frame:
        """The GOAWAY of a server that has had enough; the connection ends behind it."""
        goaway = await self.goaway()
        assert await self.closed()
        return goaway

    async def sync(self) -> None:
        """Wait until the other end has read everything sent so far."""
        self.send(frames.SETTINGS)
        self._unacknowledged += 1
        while self._unacknowledged:
            await self.frame()

    async def frame(self, timeout_s: float = PATIENCE_S) -> Frame:
        """The next frame; raises IncompleteReadError where the connection ends."""
        async with asyncio.timeout(timeout_s):
            head = await self._reader.readexactly(9)
            high, low, kind, flags, stream_id = frames.header_at(head, 0)
            payload = await self._reader.readexactly(high << 16 | low)
        frame = Frame(kind, flags, stream_id, payload)
        self._note(frame)
        return frame

    def _note(self, frame: Frame) -> None:
        self.seen.append(frame)
        if frame.kind == frames.SETTINGS and frame.flags & frames.ACK:
            self._unacknowledged -= 1
        if not frame.stream_id or frame.kind not in (DATA, HEADERS, CONTINUATION, frames.RST_STREAM):
            return
        answer = self.answers.setdefault(frame.stream_id, Answer())
        if frame.kind == DATA:
            answer.data += frame.payload
        elif frame.kind == frames.RST_STREAM:
            answer.reset = frame.code
            return
        else:
            self._block += frame.payload
            if frame.flags & END_HEADERS:
                block, self._block = self._block, b""
                answer.blocks.append(dict(self.decoder.decode(block, raw=True)))
        answer.ended |= frame.kind != CONTINUATION and frame.flags & END_STREAM != 0

    async def next(self, kind: int, timeout_s: float = PATIENCE_S) -> Frame:
        """The next frame of a kind."""
        while True:
            frame = await self.frame(timeout_s)
            if frame.kind == kind:
                return frame

    async def goaway(self, timeout_s: float = PATIENCE_S) -> Frame:
        return await self.next(frames.GOAWAY, timeout_s)

    async def answer(self, stream_id: int, timeout_s: float = PATIENCE_S) -> Answer:
        """What came on a stream, once it has ended."""
        while True:
            answer = self.answers.get(stream_id)
            if answer is not None and (answer.ended or answer.reset is not None):
                return answer
            await self.frame(timeout_s)

    async def closed(self, timeout_s: float = PATIENCE_S) -> bool:
        """Read on until the other end closes; False if it does not in time."""
        try:
            while True:
                await self.frame(timeout_s)
        except TimeoutError:
            return False
        except (asyncio.IncompleteReadError, ConnectionError):
            return True
