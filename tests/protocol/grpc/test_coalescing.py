"""Answers to many local clients leave together, over gRPC, too."""

import asyncio

import pytest

from tests.fuzz.transport import MemoryTransport
from tests.protocol.grpc.service import ECHO, Service
from tests.protocol.http2.raw import grpc_headers
from tpx.protocol.compression import Inflater
from tpx.protocol.grpc.framing import frame_message
from tpx.protocol.grpc.limits import GrpcLimits
from tpx.protocol.grpc.server import connection_factory
from tpx.protocol.http2 import frames
from tpx.protocol.http2.frames import DATA, END_HEADERS, END_STREAM, HEADERS, PREFACE
from tpx.protocol.http2.hpack import encode_stateless
from tpx.protocol.listener import Listener

BEGIN = PREFACE + frames.settings_frame({})
CALL = frames.frame(HEADERS, END_HEADERS, 1, encode_stateless(grpc_headers(ECHO))) + frames.frame(
    DATA, END_STREAM, 1, frame_message(b"hello")
)


@pytest.mark.parametrize("ends", [True, False], ids=["and then the client's end", "and then the loop's turn"])
@pytest.mark.parametrize("count", [15, 16])
async def test_answers_to_many_clients_leave_together(count: int, ends: bool) -> None:
    connect = connection_factory(Listener(), GrpcLimits(), Service().methods(), Inflater())
    connections = [connect() for _ in range(count)]
    transports = [MemoryTransport() for _ in range(count)]
    for connection, transport in zip(connections, transports, strict=True):
        transport.set_protocol(connection)
        connection.connection_made(transport)
        transport.feed(BEGIN)
    await asyncio.sleep(0)
    for transport in transports[:10]:
        transport.feed(CALL)
    assert [b"hello" in transport.written for transport in transports[:10]] == [count < 16] * 10
    for connection in connections[:10] if ends else []:
        connection.eof_received()
    if not ends:
        await asyncio.sleep(0)
    assert all(b"hello" in transport.written for transport in transports[:10])
