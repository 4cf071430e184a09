"""All frontends of an engine: accepts them, announces changes, counts connections, and closes them."""

import asyncio
import logging
import os
import socket
import struct
from collections.abc import Sequence
from contextlib import suppress

from tpx.protocol.memory_budget import MemoryBudget
from tpx.serving.dataplane import DataPlane
from tpx.serving.frontends.grpc import GrpcFrontend
from tpx.serving.frontends.http import HttpFrontend
from tpx.serving.frontends.metrics.text import Family
from tpx.serving.processes import wire
from tpx.serving.processes.channel import CONNECTIONS, GENERATION, IN_FLIGHT, PENDING, READY
from tpx.serving.processes.peer import EngineServices, Peer
from tpx.serving.processes.supervisor import EngineSpec
from tpx.serving.processes.wire import FrameKind
from tpx.serving.transport.memory import BlockMemory

log = logging.getLogger(__name__)

_HELLO_S = 5
_LOOK_EVERY_S = 0.1
_START_S = 60
"""Seconds for the frontends to connect and to listen."""
_WORD = struct.Struct("=3i")  # struct ucred: pid, uid, gid


class FrontendHub:
    """All frontends of an engine."""

    def __init__(
        self, plane: DataPlane, spec: EngineSpec, http: HttpFrontend, grpc: GrpcFrontend, budget: MemoryBudget
    ) -> None:
        """Frontends connect to a socket of `spec`, which outlives the engine in the supervisor. Large
        responses are charged to the engine's `budget`, of which a frontend may hold its share: twice what it
        may hold by its own budget, so that it drops what is not read before the engine refuses requests.
        """
        self._plane = plane
        self._listening = spec.listening
        self._count = spec.count
        self._changed = asyncio.Event()
        """Set when a frontend connects, serves or ends."""
        self._services = EngineServices(
            plane=plane,
            http=http,
            methods={method.path: method for method in grpc.methods()},
            budget=budget,
            limit_bytes=budget.limit_bytes // max(1, spec.count),
            on_serving=self._changed.set,
            on_end=self._remove,
        )
        self._tasks: set[asyncio.Task[None]] = set()
        self._peers: list[Peer] = []
        self.shares_port = False
        self._stopped = False
        plane.control.repository.on_change = self._announce_generation

    async def listen(self) -> None:
        """Accept frontends; return once all of them serve, or after a time limit."""
        self._listening.setblocking(False)
        self._start_task(self._accept_frontends())
        self._start_task(self._watch_readiness())
        with suppress(TimeoutError):
            async with asyncio.timeout(_START_S):
                while sum(peer.serving for peer in self._peers) < self._count:
                    self._changed.clear()
                    await self._changed.wait()
                self._announce_readiness()
                return
        log.error("only %d of %d frontends serve after %d s", len(self._peers), self._count, _START_S)

    def _start_task(self, work: "asyncio._CoroutineLike[None]") -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept_frontends(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            sock, _ = await loop.sock_accept(self._listening)
            self._start_task(self._meet_frontend(sock))

    async def _meet_frontend(self, sock: socket.socket) -> None:
        """Begin to serve a frontend."""
        loop = asyncio.get_running_loop()
        try:
            # an abstract socket has no file permissions: any local user could connect
            user = _WORD.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _WORD.size))[1]
            if user != os.geteuid():
                log.warning("a process of user %d has tried to connect as a frontend", user)
                return
            index, memory = await loop.run_in_executor(None, _receive_hello, sock)
        except (OSError, ValueError) as exc:
            log.warning("a frontend could not connect: %s", exc)
            sock.close()
            return
        peer = Peer(self._services, sock, memory, index)
        self._peers.append(peer)
        self._announce_readiness()
        self._announce_generation()
        self._send_state(peer)
        self._changed.set()

    def _remove(self, peer: Peer) -> None:
        """Remove a frontend that has ended."""
        self._peers.remove(peer)
        self._changed.set()
        if not self._stopped:
            log.warning("frontend %d has ended, and so have its connections", peer.index)

    async def _watch_readiness(self) -> None:
        while True:
            self._announce_readiness()
            self._announce_load()
            await asyncio.sleep(_LOOK_EVERY_S)

    def _announce_readiness(self) -> None:
        ready = self._plane.ready()
        for peer in self._peers:
            peer.channel.gauges[READY] = ready

    def _announce_load(self) -> None:
        load = self._plane.server_load()
        for peer in self._peers:
            peer.channel.gauges[IN_FLIGHT], peer.channel.gauges[PENDING] = load

    def _announce_generation(self) -> None:
        """Make frontends ask again for changed models."""
        for peer in self._peers:
            peer.channel.gauges[GENERATION] = self._plane.generation

    def tell_state(self) -> None:
        """Send the current log and trace settings to all frontends."""
        for peer in self._peers:
            self._send_state(peer)

    def _send_state(self, peer: Peer) -> None:
        tracer = self._plane.tracer
        state = wire.EngineState(self._plane.logs.settings, tracer.on, tracer.accepts_callers)
        peer.channel.send(FrameKind.STATE, meta=wire.encode(state))

    def families(self) -> Sequence[Family]:
        """Return the metrics of frontends."""
        connections = Family(
            name="tpx_frontend_connections",
            kind="gauge",
            help="Number of connections that a frontend has, of HTTP and gRPC",
            lines=[
                (f'{{frontend="{peer.index}"}}', peer.channel.peer_gauges[CONNECTIONS])
                for peer in sorted(self._peers, key=lambda peer: peer.index)
            ],
        )
        return [connections]

    # the listener interface, for the shutdown

    @property
    def connections(self) -> int:
        return sum(peer.connections for peer in self._peers)

    def release(self) -> None:
        """Make clients reconnect."""
        self._send_to_all(FrameKind.RELEASE_CLIENTS)

    def stop_accepting(self) -> None:
        """Make frontends close their ports and idle connections."""
        self._send_to_all(FrameKind.STOP_ACCEPTING)

    def _send_to_all(self, kind: FrameKind) -> None:
        self._announce_readiness()  # first: a Watch call ends with the last status
        for peer in self._peers:
            peer.channel.send(kind)

    def close(self) -> None:
        """End the frontends."""
        self._stopped = True
        self._send_to_all(FrameKind.END)
        for peer in list(self._peers):
            peer.channel.publish()
        for task in self._tasks:
            task.cancel()


def _receive_hello(sock: socket.socket) -> tuple[int, list[BlockMemory]]:
    """Return a frontend's number, and memory for payloads to it and from it. Raises OSError, ValueError."""
    sock.settimeout(_HELLO_S)
    hello, fds, _, _ = socket.recv_fds(sock, 1, 2)
    try:
        if len(hello) != 1 or len(fds) != 2:
            raise ValueError(f"it has sent {len(hello)} bytes and {len(fds)} descriptors")
        return hello[0], [BlockMemory(fd) for fd in fds]
    finally:
        for fd in fds:
            os.close(fd)
