"""Responses of many requests that share frames."""

import socket
import struct
import threading
from typing import Any

from tests.serving.backends.python.test_channel import LARGE
from tests.serving.backends.python.test_connection import tensor_memory
from tests.waiting import eventually
from tpx.serving.backends.python.worker import frames
from tpx.serving.backends.python.worker.channel import Channel
from tpx.serving.backends.python.worker.execution import Execution
from tpx.serving.backends.python.worker.outbox import AHEAD_BYTES, Outbox
from tpx.serving.backends.python.worker.services import Reports
from tpx.serving.transport.frame_socket import HEADER


class Process:
    """The model's side of a socket, and the frames that it sends."""

    def __init__(self, *, by_step: bool = False) -> None:
        ours, self._theirs = socket.socketpair()
        self._theirs.settimeout(10)
        incoming, outgoing = tensor_memory()
        self.channel = Channel(ours, incoming, outgoing, lambda kind, body: None)
        self._ours = ours
        self.execution = Execution(self.channel, "m", Reports(), decoupled=True)
        self.outbox = Outbox(self.execution, by_step=by_step)

    def frame(self) -> bytes:
        """The body of the next frame, which has responses."""
        size, kind = HEADER.unpack(self._exactly(HEADER.size))
        assert kind == frames.RESPONSE
        return self._exactly(size)

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self._theirs.recv(size - len(data))
            assert more
            data += more
        return data

    def close(self) -> None:
        self._theirs.close()
        self._ours.close()


def responses(body: bytes) -> list[tuple[int, int, list[bytes]]]:
    """Handle, flags and the tensors of each response in a frame."""
    found: list[Any] = []
    at = 0
    while at < len(body):
        handle, flags = frames.RESPONSE_START.unpack_from(body, at)
        at += frames.RESPONSE_START.size
        tensors: list[bytes] = []
        if flags & frames.COUNTED:
            tensors = [body[at : at + frames.COUNTS.size]]
            at += frames.COUNTS.size
        elif not flags & frames.EMPTY:
            status, size = frames.STATUS.unpack_from(body, at)
            at += frames.STATUS.size
            assert status == frames.TENSORS
            count = len(frames.decode_head(body[at : at + size]).tensors)
            buffers, at = frames.take_tensors(memoryview(body), at + size, count, None)  # type: ignore[arg-type]
            tensors = [bytes(buffer) for buffer in buffers]
        found.append((handle, flags, tensors))
    return found


def test_the_responses_of_a_step_share_a_frame() -> None:
    process = Process()
    process.outbox.expect(4)
    process.outbox.post(1, [("text", b"first")])
    for handle in (2, 3):
        process.outbox.post(handle, [("text", b"ab"), ("count", handle)])
    process.outbox.expect(-1)
    process.outbox.finish(2, 7, 1)  # three requests have responses now: the step is complete
    together = responses(process.frame())
    process.close()
    assert together == [
        (1, 0, [struct.pack("<I", 5) + b"first"]),
        (2, 0, [struct.pack("<I", 2) + b"ab", struct.pack("<I", 2)]),
        (3, 0, [struct.pack("<I", 2) + b"ab", struct.pack("<I", 3)]),
        (2, frames.FINAL | frames.EMPTY | frames.COUNTED, [struct.pack("<II", 7, 1)]),
    ]


def test_a_response_does_not_wait_long_for_others_of_its_step() -> None:
    process = Process()
    process.outbox.expect(2)
    for text in (b"a", b"b"):
        process.outbox.post(1, [("text", text)])
        assert responses(process.frame()) == [(1, 0, [struct.pack("<I", 1) + text])]
    process.close()


def test_responses_that_come_while_a_frame_is_sent_follow_it() -> None:
    process = Process()
    sender = threading.Thread(target=process.channel.send, args=(frames.RESPONSE, [LARGE]))
    sender.start()
    eventually(process.channel._sending.locked)
    process.outbox.post(1, [("text", b"first")])
    process.outbox.post(2, [("text", b"second")])
    assert process.frame() == LARGE
    found = [handle for _ in range(2) for handle, _, _ in responses(process.frame())]
    sender.join()
    process.close()
    assert found == [1, 2]


def test_a_client_that_is_far_behind_is_reported_and_never_waited_for() -> None:
    process = Process()
    piece = b"x" * (AHEAD_BYTES // 4)
    kept = [process.outbox.post(7, [("text", piece)]) for _ in range(5)]
    assert kept == [True, True, True, False, False]
    process.execution.credit(7, 5 * (len(piece) + 4 + frames.RESPONSE_BYTES))
    assert process.outbox.post(7, [("text", b"y")])
    process.close()


def test_an_engine_of_steps_sends_what_a_step_has_made_at_its_end() -> None:
    process = Process(by_step=True)
    process.outbox.expect(1)
    process.outbox.post(1, [("text", b"a")])
    process.outbox.post(2, [("text", b"b")])
    process.outbox.flush()
    process.outbox.flush()  # nothing is left to send
    process.outbox.finish(1)
    process.outbox.flush()
    frames_sent = [[handle for handle, _, _ in responses(process.frame())] for _ in range(2)]
    process.close()
    assert frames_sent == [[1, 2], [1]]
