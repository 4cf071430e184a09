"""A server's answer to one request, byte for byte, as a server that does nothing else can repeat it."""

import re
import socket
from collections.abc import Iterator
from typing import BinaryIO

from benchmarks.payloads import CHECK_S, Payload, Protocol
from tpx.errors import MeasurementError
from tpx.protocol.http2 import frames
from tpx.protocol.http2.hpack import encode_stateless

_LENGTH = re.compile(rb"\r\ncontent-length: (\d+)\r\n", re.IGNORECASE)
_STREAM = 1


def record(request: Payload, protocol: Protocol, port: int) -> bytes:
    """Send the request once. Returns head and body of the answer, or over gRPC the frames of its stream.

    Raises MeasurementError where there is no answer.
    """
    ask = _ask_grpc if protocol == "grpc" else _ask_http
    try:
        with socket.create_connection(("127.0.0.1", port), CHECK_S) as connection:
            return ask(request, f"127.0.0.1:{port}", connection)
    except OSError as exc:
        raise MeasurementError(f"{protocol} {request.path} does not answer: {exc}") from exc


def _ask_http(request: Payload, host: str, connection: socket.socket) -> bytes:
    headers = {"Host": host, "Content-Length": str(len(request.body)), **request.headers}
    lines = [f"POST {request.path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    connection.sendall("\r\n".join([*lines, "", ""]).encode() + request.body)
    with connection.makefile("rb") as stream:
        head = b"".join(iter(stream.readline, b"\r\n")) + b"\r\n"
        size = _LENGTH.search(head)
        if size is None:
            raise MeasurementError(f"{request.path} answers without Content-Length: {head[:200]!r}")
        return head + stream.read(int(size[1]))


def _ask_grpc(request: Payload, host: str, connection: socket.socket) -> bytes:
    """Send the request as h2load does, once the server has announced its windows."""
    connection.sendall(frames.PREFACE + frames.settings_frame({}))
    pseudo = {":method": "POST", ":scheme": "http", ":authority": host, ":path": request.path}
    fields = [(name.encode(), value.encode()) for name, value in {**pseudo, **request.headers}.items()]
    most = frames.DEFAULT_FRAME_BYTES
    pieces = [request.body[at : at + most] for at in range(0, len(request.body), most)]
    flags = [*[0] * (len(pieces) - 1), frames.END_STREAM]
    answer = b""
    with connection.makefile("rb") as stream:
        for kind, _, _, _ in _frames(stream):
            if kind == frames.WINDOW_UPDATE:
                break
        block = encode_stateless(fields)
        connection.sendall(
            frames.headers_frames(_STREAM, block, end_stream=False, max_frame_bytes=most)
            + b"".join(
                frames.frame(frames.DATA, flag, _STREAM, piece)
                for flag, piece in zip(flags, pieces, strict=True)
            )
        )
        for kind, flag, stream_id, frame in _frames(stream):
            if stream_id == _STREAM and kind in (frames.HEADERS, frames.DATA):
                answer += frame
                if flag & frames.END_STREAM:
                    return answer
    raise MeasurementError(f"{request.path} ends the connection")


def _frames(stream: BinaryIO) -> Iterator[tuple[int, int, int, bytes]]:
    """Yield kind, flags and stream of each frame, and its bytes."""
    while len(head := stream.read(frames.HEADER_BYTES)) == frames.HEADER_BYTES:
        high, low, kind, flags, stream_id = frames.header_at(head, 0)
        yield kind, flags, stream_id, head + stream.read(high << 16 | low)
