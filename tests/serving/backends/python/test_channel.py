"""The model's side of the socket: frames of many threads."""

import socket
import threading
from collections.abc import Iterator

import pytest

from tests.serving.backends.python.test_connection import tensor_memory
from tests.waiting import eventually
from tpx.serving.backends.python.worker import frames
from tpx.serving.backends.python.worker.channel import Channel
from tpx.serving.transport.frame_socket import HEADER

LARGE = bytes(4 << 20)
"""More than a socket takes before it is read."""


@pytest.fixture
def ends() -> Iterator[tuple[Channel, socket.socket]]:
    ours, theirs = socket.socketpair()
    theirs.settimeout(10)
    with ours, theirs:
        incoming, outgoing = tensor_memory()
        yield Channel(ours, incoming, outgoing, lambda kind, body: None), theirs


def bodies(sock: socket.socket, count: int) -> list[bytes]:
    """The bodies of the next frames."""
    with sock.makefile("rb") as file:
        return [file.read(HEADER.unpack(file.read(HEADER.size))[0]) for _ in range(count)]


def test_a_thread_does_not_wait_for_another_one_that_sends_unless_it_finishes(
    ends: tuple[Channel, socket.socket],
) -> None:
    channel, theirs = ends
    first = threading.Thread(target=channel.send, args=(frames.RESPONSE, [LARGE]))
    first.start()
    eventually(channel._sending.locked)
    for number in range(3):
        channel.send(frames.RESPONSE, [b"%d" % number])
    finishing = threading.Thread(target=channel.finish)
    finishing.start()
    assert first.is_alive()
    assert finishing.is_alive()
    assert bodies(theirs, 4) == [LARGE, b"0", b"1", b"2"]
    for thread in (first, finishing):
        thread.join()


def test_frames_of_threads_keep_their_order_each(ends: tuple[Channel, socket.socket]) -> None:
    channel, theirs = ends

    def send(name: bytes) -> None:
        for number in range(200):
            channel.send(frames.RESPONSE, [name, b"%d" % number])

    threads = [threading.Thread(target=send, args=(name,)) for name in (b"a", b"b", b"c")]
    for thread in threads:
        thread.start()
    got = bodies(theirs, 600)
    for thread in threads:
        thread.join()
    for name in (b"a", b"b", b"c"):
        assert [body for body in got if body.startswith(name)] == [b"%b%d" % (name, n) for n in range(200)]
