"""An event loop in virtual time, whose connections are in memory: it never waits, and a busy machine does not
show. Nothing takes time in it but what a test waits for."""

import asyncio
import selectors
import sys
from collections.abc import Callable, Coroutine
from time import perf_counter_ns
from typing import Any, TypeVar

import pytest

from tests.fuzz.transport import MemoryTransport, Reader
from tpx.protocol.tensors import Buffer

T = TypeVar("T")


class _Selector(selectors.SelectSelector):
    """Lets time pass instead of waiting."""

    now_ns = 1_000_000_000

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "every task waits, and nothing will happen"
        self.now_ns += max(0, round(timeout * 1e9))
        return []


class _Wire(MemoryTransport):
    """One end of a connection; what it writes reaches the other end in the loop's next turn."""

    def __init__(self, loop: asyncio.AbstractEventLoop, protocol: Reader) -> None:
        super().__init__()
        self._loop = loop
        self.reader = protocol
        self.other = self
        self.set_protocol(protocol)  # type: ignore[arg-type]

    def write(self, data: Buffer) -> None:
        if not self.closed and len(data):
            self._loop.call_soon(self.other.feed, bytes(data))

    def close(self) -> None:
        for end in (self, self.other):  # what was written before arrives first
            self._loop.call_soon(end.end)

    def end(self) -> None:
        if not self.closed:
            self.closed = True
            self.reader.connection_lost(None)

    abort = close


class VirtualLoop(asyncio.SelectorEventLoop):
    """Connects every client to protocols made by `serve`."""

    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)
        self.serve: Callable[[], Reader] | None = None

    def time(self) -> float:
        return self._virtual.now_ns / 1e9

    def now_ns(self) -> int:
        return self._virtual.now_ns

    async def create_connection(  # type: ignore[override]  # for the client's own calls
        self, factory: Any, *address: Any, **options: Any
    ) -> Any:
        assert self.serve is not None
        near, far = _Wire(self, factory()), _Wire(self, self.serve())
        near.other, far.other = far, near
        for end in (far, near):
            end.reader.connection_made(end)
        return near, near.reader


def run_virtually(
    monkeypatch: pytest.MonkeyPatch, work: Callable[[VirtualLoop], Coroutine[Any, Any, T]]
) -> T:
    """Run `work` in a virtual loop; every module of the load generator reads its clock meanwhile."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, VirtualLoop)
        for name, module in list(sys.modules.items()):
            if name.startswith("tpx."):
                for own, value in list(vars(module).items()):
                    if value is perf_counter_ns:
                        monkeypatch.setattr(module, own, loop.now_ns)
        return runner.run(work(loop))
