"""Requests that a model's process holds: their responses, and what the process may send beyond these."""

import asyncio
import socket
from typing import Any, cast

from tests.serving.backends.python.test_connection import tensor_memory
from tests.serving.fakes import request_of
from tpx.protocol.tensors import Tensor
from tpx.serving.backends.python.connection import WorkerConnection
from tpx.serving.backends.python.pending import PendingBatch, PendingRequest
from tpx.serving.backends.python.worker import frames
from tpx.serving.batch import Batch, EarlyResponse
from tpx.serving.request import InferRequest, InferResponse, response_like
from tpx.serving.transport.frame_socket import HEADER

DATA = b"\x0a\0\0\0ten bytes."


class Sink:
    """What a decoupled request uses of a CompletionSink."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []

    def responded(self, early: EarlyResponse) -> None:
        assert early.request.backpressure is not None
        early.request.backpressure.delivered(early.size)

    def streamed(
        self, request: InferRequest, pieces: list[bytes], index: int, begun_ns: int, now_ns: int
    ) -> None:
        self.pieces += pieces


async def test_pieces_give_the_process_as_much_credit_as_it_is_charged() -> None:
    ours, theirs = socket.socketpair()
    loop, sink = asyncio.get_running_loop(), Sink()
    connection = WorkerConnection(loop, ours, tensor_memory(), lambda arrived: None, lambda: None)
    request = request_of()
    request.template_of = lambda infer, response: sink.pieces.extend
    batch = PendingBatch(Batch([request]), cast("Any", sink), lambda: None, decoupled=True)
    held = PendingRequest(batch, 0, request, 7, connection)
    for _ in range(2):
        held.responded(response_like(Tensor("y", "BYTES", (1,), b""), DATA), final=False)
    assert held.repeats
    held.learn(InferResponse([]), b"start")
    charged = len(DATA) + frames.RESPONSE_BYTES
    enough = -(-frames.CREDIT_BYTES // charged) - 2
    for number in range(enough):
        held.pieces.append(DATA)
        if number % 2 or number == enough - 1:
            held.pass_pieces(number + 1)
    await asyncio.sleep(0)
    data = theirs.recv(1 << 10)
    assert HEADER.unpack_from(data) == (frames.CREDIT_BODY.size, frames.CREDIT)
    assert frames.CREDIT_BODY.unpack_from(data, HEADER.size) == (7, (enough + 2) * charged)
    assert sink.pieces == [DATA] * enough
    connection.close()
    theirs.close()
