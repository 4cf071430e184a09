"""The life of a model's process: its start, its end, its restart after a crash, and whether it is ready."""

import asyncio
import json
import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from tpx.errors import Code, LoadError
from tpx.protocol.json_values import JsonObject
from tpx.serving.backends.python.connection import WorkerConnection
from tpx.serving.backends.python.process import ChildProcess, Restarts
from tpx.serving.backends.python.services import Services
from tpx.serving.backends.python.worker import frames
from tpx.serving.host import Host
from tpx.serving.request import RequestTrace

log = logging.getLogger(__name__)

_clock = time.perf_counter_ns
_FIRST_READY_S = 5.0
_NEXT_READY_S = 0.5
"""Time for `is_ready` once the model has answered before; probes wait for 1 s by default."""
_HANGING_NS = 60 * 10**9
"""A question that is older, and not held up by an execution, will never be answered."""
_KILLED_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceSettings:
    """Settings of an instance."""

    name: str
    model: str
    arguments: JsonObject
    """Arguments for `initialize`."""
    decoupled: bool
    end_timeout_s: float
    start: Callable[[], ChildProcess]
    """Start a process; blocks."""


class ProcessOwner(Protocol):
    """The instance that a process computes for."""

    @property
    def computing(self) -> int:
        """Return the number of the batch that is computing, as far as known here; 0 for none."""

    def handle_frames(self, arrived: Iterator[tuple[int, memoryview]]) -> None:
        """Handle frames of the process, and give those of its life to `ModelProcess.handle_frame`."""

    def fail_held(self, begun: int) -> None:
        """Fail what the process held when it ended; `begun` is the last batch that it started."""

    def find_trace(self, handle: int) -> RequestTrace | None:
        """Return the trace of a request that the process holds."""

    def notify(self) -> None:
        """Handle a process that has become alive or has failed for good."""


class ModelProcess:
    """A model's process and those that replace it."""

    def __init__(self, settings: InstanceSettings, host: Host, owner: ProcessOwner) -> None:
        self.alive = False
        self.failure = ""
        """Reason why the process is not restarted any more."""
        self.has_readiness_hook = False
        self.connection: WorkerConnection | None = None
        self.services: Services | None = None
        self._name = settings.name
        self._settings = settings
        self._host = host
        self._owner = owner
        self._loop = host.loop
        self._restarts = Restarts()
        self._process: ChildProcess | None = None
        self._initialized: asyncio.Future[JsonObject] | None = None
        self._finalized: asyncio.Future[None] | None = None
        self._asked: asyncio.Future[bool] | None = None
        """Pending answer to `is_ready`, shared by all callers that ask meanwhile."""
        self._asked_ns = 0
        self._asked_during = 0
        """Number of the batch that was computing when the question was asked."""
        self._was_ready: bool | None = None
        self._closing = asyncio.Event()
        self._restarting: asyncio.Task[None] | None = None
        self._starting: Future[None] | None = None

    def launch(self, process: ChildProcess | None) -> None:
        """Begin to initialize the model in `process`, or in a new one. Not on the event loop."""
        self._starting = asyncio.run_coroutine_threadsafe(self._start(process), self._loop)

    def wait(self) -> None:
        """Wait until the model is initialized. Raises LoadError. Not on the event loop."""
        assert self._starting is not None
        self._starting.result()

    @property
    def unhealthy(self) -> str:
        """Error of requests to a process that has ended."""
        return f"Stub process '{self._name}' is not healthy."

    async def _start(self, process: ChildProcess | None = None) -> None:
        """Initialize the model. Raises LoadError."""
        if process is None:
            process = await self._loop.run_in_executor(None, self._settings.start)
        self._process = process
        if self._closing.is_set():
            await self._loop.run_in_executor(None, process.abandon)
            raise LoadError(f"{self._name} is no longer needed")
        self._initialized = self._loop.create_future()
        connection = self.connection = WorkerConnection(
            self._loop, process.socket, process.memory, self._take_frames, self._handle_exit
        )
        if process.exited >= 0:
            self._loop.add_reader(process.exited, self._kill_survivors)
        self.services = Services(connection, self._host, self._settings.model, self._owner.find_trace)
        connection.send(frames.INITIALIZE, [json.dumps(self._settings.arguments).encode()])
        answer = await self._initialized
        if "error" in answer or not connection.open:
            connection.close()
            raise LoadError(answer.get("error", self.unhealthy))
        self.has_readiness_hook = answer["asks_ready"]
        self._was_ready = None
        self.alive = True
        self._owner.notify()

    def close(self) -> None:
        """Finalize the model and end its process; not on the event loop."""
        try:
            ending = asyncio.run_coroutine_threadsafe(self._shut_down(), self._loop)
            ending.result(self._settings.end_timeout_s + 5)
            if self._starting is not None:
                self._starting.exception(_KILLED_S)  # a process that was starting has been killed too
        except (RuntimeError, FutureTimeout):
            log.warning("the process of %s did not end in time", self._name)
        if self._process is not None:
            self._process.end(1.0)

    async def _shut_down(self) -> None:
        self._closing.set()
        self.alive = False
        connection = self.connection
        initialized = self._initialized
        if self._process is not None and initialized is not None and not initialized.done():
            self._process.kill()  # the load has failed: another instance of the model did
        elif connection is not None and connection.open:
            self._finalized = self._loop.create_future()
            connection.send(frames.FINALIZE, [])
            try:
                await asyncio.wait_for(self._finalized, self._settings.end_timeout_s)
            except TimeoutError:
                log.warning("finalize of %s did not end in time: it is killed", self._name)
                if self._process is not None:
                    self._process.kill()
        if connection is not None:
            connection.close()
        if self._restarting is not None:
            await asyncio.wait([self._restarting], timeout=_KILLED_S)

    def _kill_survivors(self) -> None:
        """Kill what the exited process forked: it holds the socket open, which would hide the exit."""
        assert self._process is not None
        self._loop.remove_reader(self._process.exited)
        self._process.kill()

    def _handle_exit(self) -> None:
        """Handle the exit of the process or the end of its socket."""
        if self._process is not None and self._process.exited >= 0:
            self._loop.remove_reader(self._process.exited)
        was_alive, self.alive = self.alive, False
        if self.services is not None:
            self.services.close()
        if self._finalized is not None and not self._finalized.done():
            self._finalized.set_result(None)
        self._resolve_readiness(False)
        if self._initialized is not None and not self._initialized.done():
            self._initialized.set_result({"error": self.unhealthy})
            return
        assert self.connection is not None
        self._owner.fail_held(self.connection.begun)
        if was_alive:
            log.error("the process of %s has ended unexpectedly", self._name)
            self._restarting = self._loop.create_task(self._restart())

    async def _restart(self) -> None:
        """Restart the process with increasing delays; give up if it keeps crashing."""
        name = self._name
        try:
            while True:
                if self._process is not None:
                    await self._loop.run_in_executor(None, self._process.end, 1.0)
                delay_s = self._restarts.died(_clock())
                if delay_s is None:
                    self.failure = (
                        f"Stub process '{name}' is not healthy: it has died repeatedly and is no longer "
                        "restarted. Fix the cause, then load the model again."
                    )
                    log.error("%s", self.failure)
                    self._owner.notify()
                    return
                if await self._wait_for_close(delay_s):
                    return
                try:
                    await self._start()
                except LoadError as exc:
                    if self._closing.is_set():
                        return
                    log.error("cannot restart %s: %s", name, exc.message)
                    if exc.code is Code.RESOURCE_EXHAUSTED:
                        await self._wait_for_close(self._restarts.pardon())
                    continue
                log.warning("restarted the process of %s", name)
                return
        finally:
            self._restarting = None

    async def _wait_for_close(self, seconds: float) -> bool:
        """Wait `seconds`, or until the instance closes; return whether it does."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._closing.wait(), seconds)
        return self._closing.is_set()

    async def ready(self) -> bool:
        """Return whether the model reports ready."""
        if not self.alive or self.connection is None:
            return False
        if not self.has_readiness_hook:
            return True
        if self._asked is None:
            assert self._process is not None
            self._asked = self._loop.create_future()
            self._asked_ns, self._asked_during = _clock(), self._owner.computing
            self._process.ask_ready()
        timeout_s = _FIRST_READY_S if self._was_ready is None else _NEXT_READY_S
        try:
            return await asyncio.wait_for(asyncio.shield(self._asked), timeout_s)
        except TimeoutError:
            return self._assume_ready()

    def _assume_ready(self) -> bool:
        """Return the last answer: `is_ready` still computes, or `execute` holds the interpreter lock."""
        executes = self._asked_during and self._asked_during == self._owner.computing
        if not executes and _clock() - self._asked_ns > _HANGING_NS:
            return False
        return self._was_ready is not False

    def _resolve_readiness(self, ready: bool) -> None:
        pending, self._asked, self._was_ready = self._asked, None, ready
        if pending is not None:
            pending.set_result(ready)

    # frames

    def _take_frames(self, arrived: Iterator[tuple[int, memoryview]]) -> None:
        try:
            self._owner.handle_frames(arrived)
        except Exception:  # one process' boundary: an invalid frame
            log.exception("the process of %s has sent an invalid frame and is stopped", self._name)
            if self._process is not None:
                self._process.kill()
            if self.connection is not None:
                self.connection.close()

    def handle_frame(self, kind: int, body: memoryview) -> None:
        """Handle a frame about the process, or a call of the model."""
        if kind == frames.INITIALIZED:
            assert self._initialized is not None
            self._initialized.set_result(json.loads(bytes(body)))
        elif kind == frames.READY:
            self._resolve_readiness(bool(body[0]))
        elif kind == frames.FINALIZED:
            if self._finalized is not None and not self._finalized.done():
                self._finalized.set_result(None)
        else:
            assert self.services is not None
            self.services.take(kind, body)
