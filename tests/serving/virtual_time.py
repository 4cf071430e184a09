"""An event loop whose time passes only while nothing else can happen, so that long waits take no time."""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any


class _Selector(selectors.DefaultSelector):
    """Instead of waiting for a timer, moves the time to it."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> Any:
        events = super().select(timeout if timeout is None else 0)
        if not events and timeout:
            self.now_s += timeout
        return events


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Not for work in threads: timers do not wait for it."""

    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now_s


def run(scene: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a scene in virtual time."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(scene())
