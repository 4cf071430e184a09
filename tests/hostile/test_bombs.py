"""Compressed requests that become large: all of them together take no more than their budget."""

import gzip
import json
import socket
from collections.abc import Iterator

import pytest

from tests.hostile import wire
from tests.hostile.conftest import MIB
from tests.hostile.siege import GOOD, SERVICE, Siege, besieged, write_good_models
from tests.protocol.http2.raw import grpc_headers
from tpx.protocol.grpc.framing import pack_prefix
from tpx.protocol.http2 import frames
from tpx.protocol.http2.frames import DATA, END_HEADERS, END_STREAM, HEADERS, PREFACE
from tpx.protocol.http2.hpack import encode_stateless

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

BUDGET = 128 * MIB
BOMB = 90 * MIB
"""Of zeros: one at a time fits."""
BESIDE = 96 * MIB
"""What decodes, and what the runtime keeps for its next run."""
BYSTANDER_S = 1.0
CONNECTIONS, CALLS = 3, 8


@pytest.fixture
def siege(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Siege]:
    """A server that takes large messages, and inflates little at a time."""
    folder = tmp_path_factory.mktemp("bombs")
    write_good_models(folder)
    limits = (f"--grpc-max-message-size={BOMB}", f"--http-max-input-size={BOMB}")
    with besieged(folder, *limits, f"--max-inflated-bytes={BUDGET}") as server:
        server.alive()
        yield server


def bombs(siege: Siege, packed: bytes) -> socket.socket:
    """A connection with many calls, each of one compressed message."""
    block = encode_stateless([*grpc_headers(SERVICE + "ModelInfer"), (b"grpc-encoding", b"gzip")])
    message = pack_prefix(1, len(packed)) + packed
    data = PREFACE + frames.settings_frame({})
    for stream_id in range(1, 2 * CALLS, 2):
        data += frames.frame(HEADERS, END_HEADERS, stream_id, block)
        for at in range(0, len(message), 16_000):
            flags = END_STREAM if at + 16_000 >= len(message) else 0
            data += frames.frame(DATA, flags, stream_id, message[at : at + 16_000])
    sock = wire.connect(siege.grpc)
    sock.sendall(data)
    return sock


def http_bomb() -> bytes:
    """A request over HTTP whose binary tensor is too long."""
    head = json.dumps(GOOD).encode()
    body = gzip.compress(head + bytes(BOMB - len(head)))
    lines = f"Content-Encoding: gzip\r\nInference-Header-Content-Length: {len(head)}\r\n"
    lines += f"Content-Length: {len(body)}\r\n\r\n"
    return b"POST /v2/models/double/infer HTTP/1.1\r\nHost: localhost\r\n" + lines.encode() + body


def ended_calls(sock: socket.socket) -> int:
    """Wait until every call is answered, with whatever status; the number of calls."""
    sock.settimeout(60)
    data, ended = b"", 0
    while ended < CALLS:
        chunk = sock.recv(1 << 16)
        assert chunk, "the server closed the connection"
        data += chunk
        while len(data) >= 9 and len(data) >= 9 + (size := int.from_bytes(data[:3])):
            ended += data[3] == HEADERS and bool(data[4] & END_STREAM)
            data = data[9 + size :]
    return ended


def test_f3_bombs_on_many_streams_take_no_more_than_one_budget_and_delay_nobody(siege: Siege) -> None:
    packed = gzip.compress(bytes(BOMB))
    before = siege.forget_peak()
    with siege.bystander() as others:
        attackers = [bombs(siege, packed) for _ in range(CONNECTIONS)]
        with wire.connect(siege.http) as over_http:
            over_http.settimeout(60)
            over_http.sendall(http_bomb())
            assert wire.read_answer(over_http).status in (400, 503)
        for sock in attackers:
            with sock:
                assert ended_calls(sock) == CALLS
    assert siege.peak() - before < BUDGET + BESIDE
    assert others.worst_s < BYSTANDER_S
    after = siege.settles(lambda now: now.resident_bytes < before + BESIDE)
    assert after.resident_bytes < before + BESIDE
