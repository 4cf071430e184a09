"""Writes that leave together."""

import asyncio
import socket
from collections.abc import Callable

import pytest

from tpx.perf.loops import event_loop
from tpx.protocol.write_buffer import WriteBuffer, WriteCoalescing, direct_write


class Recorder(asyncio.Transport):
    """A transport that keeps what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[bytes | str] = []
        self.closing = False

    def write(self, data: "bytes | bytearray | memoryview") -> None:
        self.log.append(bytes(data))

    def writelines(self, parts: "object") -> None:
        assert isinstance(parts, list)
        self.log.append(b"".join(parts))

    def get_write_buffer_size(self) -> int:
        return 100

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True
        self.log.append("close")

    def abort(self) -> None:
        self.closing = True
        self.log.append("abort")

    def write_eof(self) -> None:
        self.log.append("eof")


async def test_what_one_read_makes_us_write_leaves_when_it_is_done_with() -> None:
    transport = Recorder()
    buffer = WriteBuffer(transport)
    buffer.hold()
    buffer.write(b"a")
    buffer.writelines([b"b", memoryview(b"c")])
    assert transport.log == []
    assert buffer.get_write_buffer_size() == 103
    buffer.release(expecting=False)
    assert transport.log == [b"abc"]
    assert (buffer.written, buffer.get_write_buffer_size()) == (3, 100)


@pytest.mark.parametrize(
    ("requests", "each_ns", "flushed"),
    [
        (64, 8000, [32, 32]),
        (100, 8000, [32, 32, 32, 4]),
        (40, 8000, [20, 20]),
        (16, 10_000, [8, 8]),
        (16, 5000, [16]),  # the other half ends before the peer is awake
        (40, 2000, [32, 8]),
        (12, 50_000, [12]),
        (1, 50_000, [1]),
    ],
)
async def test_half_of_a_long_round_leaves_early(requests: int, each_ns: int, flushed: list[int]) -> None:
    transport, now_ns = Recorder(), [10**9]
    buffer = WriteBuffer(transport, lambda: now_ns[0])
    for _ in range(10):
        transport.log.clear()
        buffer.hold()
        for _ in range(requests):
            now_ns[0] += each_ns
            buffer.write(b"r")
        buffer.release(expecting=False)
        now_ns[0] += 100_000  # the peer reads and sends the next ones
    assert [len(data) for data in transport.log] == flushed


async def test_rounds_that_follow_at_once_are_split_as_before() -> None:
    transport, now_ns = Recorder(), [10**9]
    buffer = WriteBuffer(transport, lambda: now_ns[0])
    for gap_ns in (100_000, 100_000, 1000, 1000):
        transport.log.clear()
        buffer.hold()
        for _ in range(40):
            now_ns[0] += 8000
            buffer.write(b"r")
        buffer.release(expecting=False)
        now_ns[0] += gap_ns
    assert [len(data) for data in transport.log] == [20, 20]


async def test_half_of_a_long_round_leaves_early_also_if_other_threads_computed_it() -> None:
    transport, now_ns = Recorder(), [10**9]
    buffer = WriteBuffer(transport, lambda: now_ns[0])
    for _ in range(3):
        transport.log.clear()
        buffer.hold()
        buffer.release(expecting=True)
        for _ in range(40):
            now_ns[0] += 8000
            buffer.write(b"r")
        await asyncio.sleep(0)
        now_ns[0] += 100_000
    assert [len(data) for data in transport.log] == [20, 20]


async def test_rounds_of_several_connections_are_not_split() -> None:
    now_ns, transports, coalescing = [10**9], [Recorder(), Recorder()], WriteCoalescing()
    buffers = [WriteBuffer(transport, lambda: now_ns[0]) for transport in transports]
    for buffer in buffers:
        buffer.coalesce_with(coalescing)
    for turn in range(20):
        buffers[turn % 2].hold()
        for _ in range(40):
            now_ns[0] += 8000
            buffers[turn % 2].write(b"r")
        buffers[turn % 2].release(expecting=False)
    assert [len(data) for data in transports[0].log] == [32, 8] * 10


async def test_what_is_written_at_other_times_leaves_at_the_end_of_the_turn() -> None:
    transport = Recorder()
    buffer = WriteBuffer(transport)
    buffer.write(b"a")
    asyncio.get_running_loop().call_soon(buffer.write, b"c")
    buffer.write(b"b")
    assert transport.log == []
    await asyncio.sleep(0)
    assert transport.log == [b"ab"]
    await asyncio.sleep(0)
    assert transport.log == [b"ab", b"c"]


async def test_answers_that_follow_in_the_same_turn_leave_together() -> None:
    transport = Recorder()
    buffer = WriteBuffer(transport)
    buffer.hold()
    loop = asyncio.get_running_loop()
    for number in range(3):
        loop.call_soon(buffer.write, b"%d" % number)
    buffer.release(expecting=True)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert transport.log == [b"012"]


def many() -> WriteCoalescing:
    """Those of an endpoint with many connections."""
    coalescing = WriteCoalescing()
    coalescing.connections = 16
    return coalescing


def buffer_of(transport: asyncio.Transport, coalescing: WriteCoalescing) -> WriteBuffer:
    buffer = WriteBuffer(transport)
    buffer.coalesce_with(coalescing)
    return buffer


async def test_what_is_owed_to_many_leaves_together_at_the_end_of_the_turn() -> None:
    log: list[bytes | str] = []
    coalescing, transports = many(), [Recorder() for _ in range(3)]
    buffers = [buffer_of(transport, coalescing) for transport in transports]
    for transport in transports:
        transport.log = log
    buffers[0].answer(b"first", reading=True)
    buffers[1].hold()
    buffers[1].write(b"sec")
    buffers[1].write(b"ond")
    buffers[1].release(expecting=False)
    buffers[2].answer(b"third", reading=True)
    assert log == []
    await asyncio.sleep(0)
    assert log == [b"first", b"second", b"third"]


async def test_who_answers_alone_does_so_at_once() -> None:
    transport, coalescing = Recorder(), many()
    buffer = buffer_of(transport, coalescing)
    buffer.answer(b"0", reading=True)
    buffer.answer(b"1", reading=True)
    assert transport.log == []  # behind what waits already
    await asyncio.sleep(0)
    buffer.answer(b"2", reading=True)
    assert transport.log == [b"01", b"2"]
    buffer_of(Recorder(), coalescing).answer(b"another", reading=True)
    buffer.answer(b"3", reading=True)
    assert transport.log == [b"01", b"2"]
    await asyncio.sleep(0)
    assert transport.log == [b"01", b"2", b"3"]


async def test_answers_that_come_together_anyway_leave_as_they_come() -> None:
    coalescing, transports = many(), [Recorder() for _ in range(3)]
    for transport in transports:
        buffer_of(transport, coalescing).answer(b"now", reading=False)
    assert [transport.log for transport in transports] == [[b"now"]] * 3


async def test_answers_to_few_do_not_wait_for_each_other() -> None:
    coalescing, transports = many(), [Recorder() for _ in range(3)]
    coalescing.connections -= 1
    for transport in transports:
        buffer_of(transport, coalescing).answer(b"now", reading=True)
    assert [transport.log for transport in transports] == [[b"now"]] * 3


async def test_the_first_of_many_answers_does_not_wait_for_all_of_them() -> None:
    coalescing, transports = many(), [Recorder() for _ in range(20)]
    for number, transport in enumerate(transports):
        buffer_of(transport, coalescing).answer(b"%d" % number, reading=True)
    assert [transport.log for transport in transports] == [[b"%d" % n] for n in range(16)] + [[]] * 4
    await asyncio.sleep(0)
    assert [transport.log for transport in transports] == [[b"%d" % n] for n in range(20)]


async def test_an_end_on_a_connection_that_was_reset_is_an_abort() -> None:
    class Reset(Recorder):
        def write_eof(self) -> None:
            raise OSError(107, "Transport endpoint is not connected")

    transport = Reset()
    WriteBuffer(transport).write_eof()
    assert transport.log == ["abort"]


async def test_much_is_not_held_back() -> None:
    transport = Recorder()
    buffer = WriteBuffer(transport)
    buffer.hold()
    buffer.write(bytes(300_000))
    assert transport.log == [bytes(300_000)]


async def test_an_end_comes_behind_what_was_written() -> None:
    for end, word in (("close", "close"), ("write_eof", "eof")):
        transport = Recorder()
        buffer = WriteBuffer(transport)
        buffer.write(b"last words")
        getattr(buffer, end)()
        assert transport.log == [b"last words", word]


async def test_an_abort_drops_what_was_held() -> None:
    transport = Recorder()
    buffer = WriteBuffer(transport)
    buffer.write(b"never")
    buffer.abort()
    await asyncio.sleep(0)
    assert transport.log == ["abort"]
    assert buffer.get_write_buffer_size() == 100


async def test_nothing_is_written_to_a_transport_that_is_closing() -> None:
    transport = Recorder()
    buffer = WriteBuffer(transport)
    buffer.close()
    buffer.write(b"too late")
    await asyncio.sleep(0)
    assert transport.log == ["close"]


LOOPS = pytest.mark.parametrize("factory", [asyncio.new_event_loop, event_loop])
Factory = Callable[[], asyncio.AbstractEventLoop]


async def transport_of(end: socket.socket) -> asyncio.Transport:
    end.setblocking(False)
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_connection(asyncio.Protocol, sock=end)
    return transport


@LOOPS
def test_a_direct_write_is_there_before_the_loop_turns(factory: Factory) -> None:
    async def scene() -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            theirs.setblocking(False)
            transport = await transport_of(ours)
            direct_write(transport)(b"request")
            assert theirs.recv(100) == b"request"
            buffer = WriteBuffer(transport)
            buffer.write_at_once()
            buffer.hold()
            buffer.write(b"call")
            assert theirs.recv(100) == b"call"
            transport.abort()

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(scene())


@LOOPS
def test_what_the_kernel_does_not_take_follows_in_order(factory: Factory) -> None:
    async def scene() -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            theirs.setblocking(False)
            transport = await transport_of(ours)
            write = direct_write(transport)
            sent = [bytes([i]) * 300_000 for i in range(10)]
            for piece in sent:
                write(piece)
            got = bytearray()
            while len(got) < 3_000_000:
                got += await asyncio.get_running_loop().sock_recv(theirs, 1 << 20)
            assert got == b"".join(sent)
            transport.abort()

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(scene())


@LOOPS
def test_nothing_is_written_to_a_connection_that_is_closed(factory: Factory) -> None:
    async def scene() -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            theirs.setblocking(False)
            transport = await transport_of(ours)
            write = direct_write(transport)
            transport.abort()
            write(b"late")
            await asyncio.sleep(0)
            assert theirs.recv(100) == b""

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(scene())
