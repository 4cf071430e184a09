"""What reads bytes from the network: HTTP/1.1 heads, bodies and conversations, HTTP/2 frames and blocks.

Where another implementation reads the same, it must see the same: h11 for HTTP/1.1, hpack for header blocks.
"""

import re
from collections.abc import Iterable, Sequence

import h11
from hpack import Decoder, Encoder

from tests.fuzz.base import Target, cut
from tests.fuzz.transport import Loop, Reader
from tests.protocol.grpc import service as grpc_service
from tests.protocol.http1.service import Service
from tests.protocol.http2.raw import grpc_headers
from tpx.protocol.compression import Inflater
from tpx.protocol.grpc.framing import frame_message
from tpx.protocol.grpc.limits import GrpcLimits
from tpx.protocol.grpc.server import connection_factory as grpc_connections
from tpx.protocol.http1.chunked import ChunkedDecoder
from tpx.protocol.http1.head import HttpError, parse_request_head
from tpx.protocol.http1.server import HttpLimits, connection_factory
from tpx.protocol.http2 import frames
from tpx.protocol.http2.connection import Http2Connection
from tpx.protocol.http2.frames import DATA, END_HEADERS, END_STREAM, HEADERS, PREFACE, Http2Error, Setting
from tpx.protocol.http2.hpack import MAX_HEADER_LIST_BYTES, BlockDecoder, Header, encode_stateless
from tpx.protocol.listener import Listener

LOOP = Loop()

HEADS = (
    b"GET /v2/models/m/versions/1?x=y HTTP/1.1\r\nHost: a\r\n\r\n",
    b"POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 12\r\n"
    b"Inference-Header-Content-Length: 5\r\n\r\n",
    b"POST http://a:80/v2 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nConnection: close, x\r\n\r\n",
    b"HEAD / HTTP/1.0\r\nConnection: keep-alive\r\nAccept-Encoding: gzip;q=0.5\r\n\r\n",
    b"PUT /x HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nUpgrade: h2c\r\nX:\t a b \t\r\n\r\n",
)


def run_http_head(raw: bytes) -> None:
    """A head that we take is one that h11 takes, and reads alike."""
    raw = raw.partition(b"\r\n\r\n")[0] + b"\r\n\r\n"
    try:
        ours = parse_request_head(raw)
    except HttpError:
        return
    peer = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 20)
    while raw.startswith(b"\r\n"):  # RFC 9112 section 2.2 lets us pass over empty lines, h11 does not
        raw = raw[2:]
    peer.receive_data(raw)
    theirs = peer.next_event()
    assert isinstance(theirs, h11.Request), theirs
    assert theirs.method == ours.method
    together: dict[bytes, bytes] = {}
    for name, value in theirs.headers:
        together[name] = together[name] + b", " + value if name in together else value
    if ours.chunked:
        ours.headers[b"transfer-encoding"] = ours.headers[b"transfer-encoding"].lower()  # as h11 does
    assert together == ours.headers
    framed = dict(theirs.headers)
    assert ours.chunked == (b"transfer-encoding" in framed)
    assert ours.content_length == int(framed.get(b"content-length", b"0"))


CHUNKS = (
    b"5\r\nhello\r\n0\r\n\r\n",
    b"3;a=b\r\nabc\r\nA\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\nGET / HTTP/1.1\r\n",
    b"0001\r\nx\r\n000\r\n\r\n",
    b"1\r\na\r\n" * 20 + b"0\r\n\r\n",
)

_SPACE_BEFORE_EXTENSION = re.compile(rb"[0-9A-Fa-f][ \t]+;")
"""RFC 9112 has a recipient take it (section 7.1.1, BWS); h11 does not."""


def run_chunked(data: bytes) -> None:
    """However a body is cut, it is the same body, and h11 reads it, too."""
    whole, pieces = _chunked([data]), _chunked(cut(data))
    assert whole == pieces
    if whole is None or _SPACE_BEFORE_EXTENSION.search(data):
        return
    body, rest = whole
    peer = h11.Connection(h11.SERVER)
    peer.receive_data(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + data)
    read = b""
    peer.next_event()
    while isinstance(event := peer.next_event(), h11.Data):
        read += event.data
    assert isinstance(event, h11.EndOfMessage)
    assert read == body
    assert peer.trailing_data[0] == rest


def _chunked(pieces: Iterable[bytes]) -> tuple[bytes, bytes] | None:
    """Body and rest; None for an error or an end too early."""
    decoder = ChunkedDecoder(1 << 16)
    waiting = list(pieces)
    try:
        while waiting:
            rest = decoder.feed(waiting.pop(0))
            if rest is not None:
                return bytes(decoder.body()), rest + b"".join(waiting)
    except HttpError:
        pass
    return None


CONVERSATIONS = (
    b"".join(HEADS[:1] * 3),
    HEADS[1] + b"hello, world" + HEADS[0],
    b"POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNKS[0] + HEADS[0],
    b"\r\nPOST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 3000\r\n\r\n" + bytes(3000) + HEADS[0],
    b"GET /hold HTTP/1.1\r\nHost: a\r\n\r\n" * 2,
    b"".join(
        b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nab%b" % end
        for end in (b"cd", b"ef", b"\r\n")
    ),
)


_MESSAGE = re.compile(rb"(?=POST )")
"""Where reads begin if each brings one message, as those of a client that waits for the answers."""
_ERROR = re.compile(rb'HTTP/1.1 4\d\d [^\r]+\r\n[^{]*\r\n\r\n\{"error": .*\}\Z')


def _without_error(answers: bytes) -> bytes:
    """The answers before one to what is no HTTP."""
    return _ERROR.sub(b"", answers)


def run_http_conversation(data: bytes) -> None:
    """However a conversation is cut, its answers are the same, and h11 can read them."""
    first = LOOP.converse(_http_connection, [data])
    # when an error is seen, and of several which, may depend on where the cuts are
    for pieces in (cut(data), _MESSAGE.split(data)):
        assert _without_error(LOOP.converse(_http_connection, pieces)) == _without_error(first)
    peer = h11.Connection(h11.CLIENT, max_incomplete_event_size=1 << 20)
    at = first
    while at:
        peer.send(h11.Request(method="GET", target="/", headers=[("Host", "a")]))
        peer.send(h11.EndOfMessage())
        peer.receive_data(at)
        event = peer.next_event()
        while isinstance(event, h11.InformationalResponse):
            event = peer.next_event()
        assert isinstance(event, h11.Response)
        assert event.status_code < 500 or event.status_code in (501, 505)
        if b"HEAD" in data[:4000]:
            return  # what was asked decides where an answer ends: only the server knows here
        while not isinstance(event, h11.EndOfMessage):
            event = peer.next_event()
            assert event is not h11.NEED_DATA, "the answer is not complete"
        at = peer.trailing_data[0]
        peer = h11.Connection(h11.CLIENT, max_incomplete_event_size=1 << 20)


def _http_connection() -> Reader:
    limits = HttpLimits(max_body_bytes=1 << 16)
    return connection_factory(Listener(), limits, Service(repeats=True).serve)()


def _call(path: str, *extra: Header, stream_id: int = 1, message: bytes = b"hello") -> bytes:
    block = encode_stateless(grpc_headers(path, *extra))
    head = frames.frame(HEADERS, END_HEADERS, stream_id, block)
    return head + frames.frame(DATA, END_STREAM, stream_id, frame_message(message))


_METHODS = (grpc_service.ECHO, grpc_service.HOLD, grpc_service.CHAT, grpc_service.QUIT)
STARTS = PREFACE + frames.settings_frame({})
STREAMS = (
    STARTS + _call(grpc_service.ECHO) + _call(grpc_service.CHAT, stream_id=3),
    STARTS
    + _call(grpc_service.HOLD, (b"grpc-timeout", b"1S"))
    + frames.rst_stream(1, frames.ErrorCode.CANCEL)
    + frames.frame(frames.PING, 0, 0, bytes(8)),
    STARTS
    + frames.settings_frame({Setting.INITIAL_WINDOW_SIZE: 3, Setting.MAX_FRAME_SIZE: 20000})
    + _call(grpc_service.QUIT, message=b"300")
    + frames.window_update(1, 300)
    + frames.window_update(0, 1 << 20),
    STARTS
    + frames.frame(
        HEADERS, END_HEADERS | frames.PADDED | frames.PRIORITIZED, 1, b"\x01" + bytes(5) + b"\x83\x00"
    )
    + frames.goaway(0, frames.ErrorCode.NO_ERROR),
    STARTS + _call(grpc_service.ECHO, (b"grpc-encoding", b"gzip"), message=bytes(40_000))[:30_000],
)


def run_http2(data: bytes) -> None:
    """Whatever comes, what we say is HTTP/2, and nothing is kept."""
    made: list[Http2Connection] = []

    def make() -> Reader:
        methods = [m for m in grpc_service.Service().methods() if m.path in _METHODS]
        limits = GrpcLimits(max_message_bytes=1 << 16)
        made.append(grpc_connections(Listener(), limits, methods, Inflater())())
        return made[-1]

    said = LOOP.converse(make, cut(data))
    assert not made[0].streams
    assert not made[0].sender.queued
    if b"HTTP/1.1 400" not in said:
        _read_frames(said)


def _read_frames(data: bytes) -> None:
    """Fails unless these are whole frames with header blocks that make sense."""
    decoder = Decoder()
    at = 0
    while at < len(data):
        high, low, kind, flags, stream_id = frames.header_at(data, at)
        start, at = at + 9, at + 9 + (high << 16 | low)
        assert at <= len(data)
        assert kind in range(10)
        if kind == HEADERS:
            assert flags & END_HEADERS
            assert stream_id & 1
            names = [name for name, _ in decoder.decode(data[start:at], raw=True)]
            assert names


def _blocks(*lists: Sequence[Header]) -> bytes:
    encoder = Encoder()
    blocks = [encoder.encode(list(headers)) for headers in lists]
    return b"".join(len(block).to_bytes(2, "big") + block for block in blocks)


BLOCKS = (
    _blocks(grpc_headers("/a"), grpc_headers("/a"), grpc_headers("/b", (b"x", b"y"))),
    _blocks([(b"a", b"b" * 3000)], [(b"c", b"d" * 3000)], [(b"a", b"b" * 3000)]),
    b"\x00\x02\x20\x82\x00\x03\x3f\xe1\x1f\x00\x01\xbe",
    b"\x00\x05" + encode_stateless([(b":method", b"POST"), (b"x", b"")]),
)


def run_hpack(data: bytes) -> None:
    """Blocks mean to us, who remember them, what they mean to hpack, which does not."""
    ours = BlockDecoder(list)
    theirs = Decoder(MAX_HEADER_LIST_BYTES)
    at = 0
    while at + 2 <= len(data):
        size = int.from_bytes(data[at : at + 2], "big")
        block, at = data[at + 2 : at + 2 + size], at + 2 + size
        try:
            got = ours.get(block)
            if got is None:
                got = ours.add(block)
        except Http2Error:
            return  # the connection ends
        assert [tuple(header) for header in got] == [tuple(h) for h in theirs.decode(block, raw=True)]


TARGETS = (
    Target(name="http_head", seeds=HEADS, run=run_http_head, examples=200),
    Target(name="chunked", seeds=CHUNKS, run=run_chunked, examples=200),
    Target(name="http_conversation", seeds=CONVERSATIONS, run=run_http_conversation),
    Target(name="http2", seeds=STREAMS, run=run_http2),
    Target(name="hpack", seeds=BLOCKS, run=run_hpack, examples=200),
)
