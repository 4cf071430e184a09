"""The server's side of the socket to a model's process."""

import asyncio
import itertools
import os
import socket
import threading
from collections.abc import Iterator

from tpx.errors import InvalidRequest, TpxError
from tpx.protocol.tensors import Buffer
from tpx.serving.backends.python.connection import WorkerConnection
from tpx.serving.backends.python.worker import frames
from tpx.serving.transport.memory import BlockMemory, reserve_memory


def tensor_memory() -> list[BlockMemory]:
    """Memory for both directions."""
    both = []
    for _ in range(2):
        descriptor, memory = reserve_memory()
        os.close(descriptor)
        both.append(memory)
    return both


async def test_a_flood_of_frames_leaves_turns_to_other_events() -> None:
    ours, theirs = socket.socketpair()
    milliseconds, gone = itertools.count(0, 1_000_000), asyncio.Event()
    taken: list[bytes] = []
    WorkerConnection(
        asyncio.get_running_loop(),
        ours,
        tensor_memory(),
        lambda arrived: taken.extend(bytes(body) for _, body in arrived),
        gone.set,
        clock=lambda: next(milliseconds),
    )
    sent = [b"%d" % number for number in range(20)]
    theirs.sendall(b"".join(frames.framed(frames.READY, [body]) for body in sent))
    theirs.shutdown(socket.SHUT_WR)
    after_turns = [0]
    async with asyncio.timeout(10):
        while not gone.is_set():
            await asyncio.sleep(0)
            after_turns.append(len(taken))
    assert taken == sent
    assert max(after - before for before, after in itertools.pairwise(after_turns)) <= 4
    theirs.close()


class Region:
    """A tensor of large zeros and one, or one that can no longer be read."""

    def __init__(self, size: int, *, readable: bool) -> None:
        self._size = size
        self._readable = readable
        self.threads: list[str] = []
        self.errors: list[str] = []

    def __len__(self) -> int:
        return self._size

    def read_into(self, memory: memoryview) -> None:
        self.threads.append(threading.current_thread().name)
        memory[:] = b"\1" * self._size
        if not self._readable:
            raise InvalidRequest("it is shorter")

    def fail(self, error: TpxError) -> None:
        self.errors.append(error.message)


async def test_large_tensors_are_copied_in_another_thread_and_no_frame_overtakes_theirs() -> None:
    ours, theirs = socket.socketpair()
    memory, size = tensor_memory(), 3 << 20
    connection = WorkerConnection(asyncio.get_running_loop(), ours, memory, lambda *_: None, lambda: None)
    connection.send(frames.READY, [b"before"])
    parts: list[Buffer] = []
    there, shrunk = Region(size, readable=True), Region(size, readable=False)
    connection.add_tensors(parts, [b"\2" * size, there, shrunk, b"small"])
    connection.send(frames.EXECUTE, parts)
    connection.send(frames.READY, [b"after"])
    theirs.setblocking(False)
    received = b""
    async with asyncio.timeout(10):
        while not received.endswith(b"after"):
            received += await asyncio.get_running_loop().sock_recv(theirs, 1 << 16)
    assert received.startswith(frames.framed(frames.READY, [b"before"]))
    at = received.index(b"".join(parts))
    tensors, _ = frames.take_tensors(memoryview(received), at, 4, memory[0])
    assert [bytes(tensor) for tensor in tensors] == [
        b"\2" * size, b"\1" * size, bytes(size), b"small",
    ]  # fmt: skip
    assert threading.current_thread().name not in there.threads
    assert (there.errors, shrunk.errors) == ([], ["it is shorter"])
    connection.close()
    theirs.close()


async def test_a_turn_has_a_limited_number_of_frames() -> None:
    ours, theirs = socket.socketpair()
    gone, turns = asyncio.Event(), list[int]()
    WorkerConnection(
        asyncio.get_running_loop(),
        ours,
        tensor_memory(),
        lambda arrived: turns.append(sum(1 for _ in arrived)),
        gone.set,
        clock=lambda: 1,
    )
    theirs.sendall(frames.framed(frames.READY, [b"x"]) * 700)
    theirs.shutdown(socket.SHUT_WR)
    await asyncio.wait_for(gone.wait(), 10)
    assert sum(turns) == 700
    assert 1 < max(turns) <= 256
    theirs.close()


async def test_a_connection_may_be_closed_by_a_frame_of_a_later_turn() -> None:
    ours, theirs = socket.socketpair()
    milliseconds, gone = itertools.count(0, 1_000_000), asyncio.Event()
    loop, failures = asyncio.get_running_loop(), []
    loop.set_exception_handler(lambda _, context: failures.append(context))
    taken: list[bytes] = []

    def take(arrived: Iterator[tuple[int, memoryview]]) -> None:
        for _, body in arrived:
            taken.append(bytes(body))
            if len(taken) == 10:
                connection.close()

    connection = WorkerConnection(
        loop, ours, tensor_memory(), take, gone.set, clock=lambda: next(milliseconds)
    )
    theirs.sendall(b"".join(frames.framed(frames.READY, [b"%d" % number]) for number in range(20)))
    await asyncio.wait_for(gone.wait(), 10)
    await asyncio.sleep(0)
    assert (len(taken), failures) == (10, [])
    theirs.close()
