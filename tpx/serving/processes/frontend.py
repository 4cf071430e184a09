"""Frontend process: accepts connections, speaks HTTP and gRPC, and sends requests to the engine."""

import asyncio
import gc
import logging
import os
import signal
import socket
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from tpx.protocol.memory_budget import MemoryBudget
from tpx.protocol.tensors import allocate_with
from tpx.serving.endpoints import Endpoints
from tpx.serving.heap import MemoryWatch, buffered_bytes, keep_freed_memory
from tpx.serving.logs import LogControl
from tpx.serving.options import ServeConfig
from tpx.serving.processes.channel import CLOSING, CONNECTIONS, FrameChannel
from tpx.serving.processes.relayed import VerbRelay
from tpx.serving.processes.remote import RemotePlane
from tpx.serving.processes.wire import EngineState, FrameKind
from tpx.serving.transport.memory import reserve_memory

log = logging.getLogger(__name__)

_AGAIN_S = 0.05
"""Seconds between attempts to connect to the engine."""
_LOOK_EVERY_S = 0.1
_WELCOME_S = 600
"""Seconds that an engine may take to load its models before the frontend connects again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontendSpec:
    """Number, engine address and sockets of a frontend process."""

    index: int
    count: int
    engine: str | bytes
    """Address of the engine's socket."""
    sockets: Mapping[str, Sequence[socket.socket]]
    """Bound sockets by service, for example "http".

    The supervisor holds them, too, so that connections wait in their backlogs while a frontend
    restarts.
    """
    started: int
    """File descriptor to write to when the frontend listens for the first time."""


class FrontendProcess:
    """Serves until the engine ends it."""

    def __init__(self, config: ServeConfig, logs: LogControl, spec: FrontendSpec) -> None:
        self._spec = spec
        self._logs = logs
        # frontends have no metrics page: the engine has one for all
        self._config = config
        # half of the engine's, which holds responses for as long as they are not sent here
        share = buffered_bytes(config.server.max_buffered_bytes) // (2 * spec.count)
        self._budget = MemoryBudget(max(1, share), config.server.max_buffered_wait_secs)
        self._memory_watch = MemoryWatch(self._budget)
        self._plane = RemotePlane(logs, config.server.max_string_elements, self._budget)
        self._plane.on_state, self._plane.on_order = self._apply_state, self._follow_order
        self._endpoints = Endpoints(
            self._config, self._plane, None, self._budget, relay=VerbRelay(self._plane), bound=spec.sockets
        )
        self._logs.watch(lambda _: self._endpoints.observe())
        self._plane.tracer.watch(self._endpoints.observe)
        self._welcome = asyncio.Event()
        self._lost = asyncio.Event()
        self._ended = False
        self._listens = self._closing = False
        self._channel: FrameChannel | None = None

    async def run(self) -> None:
        """Serve, and reconnect whenever the engine restarts."""
        # service managers signal every process; frontends end when the engine tells them to
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        keep_freed_memory()
        allocate_with(self._plane.allocate)
        watch = asyncio.create_task(self._report_loop())
        try:
            while not self._ended:
                try:
                    await self._serve_with_engine()
                except OSError as exc:
                    log.warning("frontend %d cannot reach the engine: %s", self._spec.index, exc)
                if not self._ended:
                    await asyncio.sleep(_AGAIN_S)
        finally:
            watch.cancel()
            self._endpoints.close()
            self._memory_watch.stop()
            self._plane.offload.close()

    async def _serve_with_engine(self) -> None:
        """Connect to an engine and serve until it ends. Raises OSError."""
        loop = asyncio.get_running_loop()
        self._welcome.clear()
        self._lost.clear()
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.setblocking(False)
            await loop.sock_connect(sock, self._spec.engine)
            with ExitStack() as descriptors:
                to_frontend, theirs = reserve_memory()
                descriptors.callback(os.close, to_frontend)
                to_engine, own = reserve_memory()
                descriptors.callback(os.close, to_engine)
                socket.send_fds(sock, [bytes([self._spec.index])], [to_frontend, to_engine])
            channel = self._channel = FrameChannel(
                sock, (own, theirs), self._plane.on_frames, self._handle_end, eager=True
            )
            try:
                async with asyncio.timeout(_WELCOME_S):
                    await self._welcome.wait()
                if not channel.closed:
                    await self._serve_until_lost(channel)
            finally:
                channel.close()
                self._plane.lose()

    async def _serve_until_lost(self, channel: FrameChannel) -> None:
        self._plane.use(channel)
        if not self._listens:
            self._listens = True
            await self._endpoints.listen()
            os.write(self._spec.started, b"1")
            self._memory_watch.start()
            # objects created at startup stay alive: exclude them from later collections
            gc.collect()
            gc.freeze()
        self._plane.tell(FrameKind.SERVING)
        await self._lost.wait()
        if not self._ended:
            log.error("frontend %d has lost the engine: requests fail until it is back", self._spec.index)

    def _handle_end(self, error: Exception | None) -> None:
        if error is not None:
            log.error("frontend %d: the engine's messages cannot be read", self._spec.index, exc_info=error)
        self._lost.set()
        self._welcome.set()

    def _apply_state(self, state: EngineState) -> None:
        if state.logs != self._logs.settings:
            self._logs.update(state.logs)
        self._plane.tracer.set(on=state.tracing, accepts_callers=state.accepts_callers)
        self._welcome.set()

    def _follow_order(self, order: FrameKind) -> None:
        if order is FrameKind.RELEASE_CLIENTS:
            for listener in self._endpoints.serving:
                listener.release()
        elif order is FrameKind.STOP_ACCEPTING:
            for listener in self._endpoints.serving:
                listener.stop_accepting()
            self._closing = True
            self._report_connections()
        else:
            self._ended = True
            self._lost.set()

    async def _report_loop(self) -> None:
        while True:
            self._report_connections()
            await asyncio.sleep(_LOOK_EVERY_S)

    def _report_connections(self) -> None:
        channel = self._channel
        if channel is not None and not channel.closed:
            count = sum(listener.connections for listener in self._endpoints.serving)
            channel.gauges[CONNECTIONS] = count
            channel.gauges[CLOSING] = self._closing


def end_with(parent: int) -> None:
    """Make the kernel kill this process when its parent exits."""
    import ctypes

    ctypes.CDLL(None, use_errno=True).prctl(1, 9, 0, 0, 0)  # PR_SET_PDEATHSIG, SIGKILL
    if os.getppid() != parent:
        os._exit(1)
