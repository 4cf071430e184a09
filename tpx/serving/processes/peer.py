"""The engine's side of one frontend: its life, its frames, and its verbs other than inference."""

import logging
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from msgspec import Struct

from tpx.errors import TpxError
from tpx.protocol.grpc.server_call import Method
from tpx.protocol.memory_budget import MemoryBudget
from tpx.protocol.tensors import Buffer
from tpx.serving.dataplane import DataPlane
from tpx.serving.deferred import NotLoaded
from tpx.serving.frontends.http import HttpFrontend
from tpx.serving.processes import wire
from tpx.serving.processes.channel import (
    CLOSING,
    CONNECTIONS,
    Arrived,
    ChannelBroken,
    FrameChannel,
    ReceivedFrame,
)
from tpx.serving.processes.fast_frames import FastFrames
from tpx.serving.processes.peer_requests import PeerRequests
from tpx.serving.processes.relayed import RelayedCall, RelayedRequest
from tpx.serving.processes.templates import PeerTemplates
from tpx.serving.processes.wire import FrameKind
from tpx.serving.transport.memory import BlockMemory
from tpx.serving.turn import Turn

log = logging.getLogger(__name__)

_clock = time.perf_counter_ns
_PUBLISH_NS = 200_000
"""Time after which responses are published, without waiting for the others of the turn: to wake the
frontend takes 5 to 25 us.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineServices:
    """Services that the engine has for every frontend."""

    plane: DataPlane
    http: HttpFrontend
    methods: Mapping[str, Method]
    """Methods of gRPC by their path."""
    budget: MemoryBudget
    """Budget to which large responses are charged."""
    limit_bytes: int
    """Bytes of large responses that a frontend may hold."""
    on_serving: Callable[[], None]
    """Called when a frontend accepts connections."""
    on_end: "Callable[[Peer], None]"
    """Called once when a frontend has ended."""


class Peer:
    """A connected frontend, until it ends."""

    def __init__(
        self, services: EngineServices, sock: socket.socket, memory: Sequence[BlockMemory], index: int
    ) -> None:
        """`memory` is for large payloads to the frontend, and from it."""
        self._services = services
        self._plane = services.plane
        self.index = index
        self.serving = False
        self.channel = FrameChannel(
            sock,
            memory,
            self._on_frames,
            self._on_end,
            limit_bytes=services.limit_bytes,
            budget=services.budget,
        )
        templates = PeerTemplates(f"frontend{index}.{id(self)}")
        self._requests = PeerRequests(services.plane, self.channel, templates, index)
        self._fast = FastFrames(services.plane, self.channel, templates, self._requests.start)
        self.channel.on_backlog = self._requests.on_backlog

    @property
    def connections(self) -> int:
        """Number of connections, as last reported; at least 1 until the frontend has stopped accepting."""
        gauges = self.channel.peer_gauges
        return int(gauges[CONNECTIONS]) or int(not gauges[CLOSING])

    def _on_end(self, error: Exception | None) -> None:
        """Close the channel to a frontend that has ended, and cancel its requests."""
        if error is not None:
            log.error("frontend %d: its messages cannot be read", self.index, exc_info=error)
        self.channel.close()
        self._services.on_end(self)
        self._requests.cancel_all()

    def _on_frames(self, channel: FrameChannel, frames: Iterator[Arrived]) -> None:
        """Take frames for a limited time; the channel schedules another turn for the rest."""
        now_ns = _clock()
        channel.begin_turn(now_ns)
        turn = Turn(now_ns)
        for arrived in frames:
            known = self._fast.find(arrived[0])
            if known is not None:
                left = self._fast.compute(known, arrived, turn)
            else:
                left = self._handle_frames(arrived, turn)
            if channel.closed:
                return
            if left or turn.is_over(_clock()):
                channel.unread(arrived, left)
                return

    def _handle_frames(self, arrived: Arrived, turn: Turn) -> int:
        """Handle frames until the turn is over; return the number of the others."""
        left = len(arrived[1])
        for frame in self.channel.open(arrived):
            self._handle_frame(frame)
            del frame  # so that its block can be released
            left -= 1
            now_ns = _clock()
            self.channel.publish_late(now_ns, _PUBLISH_NS)
            if turn.is_over(now_ns):
                break
        return left

    def _handle_frame(self, frame: ReceivedFrame) -> None:
        match frame.kind:
            case FrameKind.INFER:
                self._requests.receive(frame)
            case FrameKind.CANCEL:
                self._requests.cancel(frame)
            case FrameKind.STALL:
                self._requests.stall(frame)
            case FrameKind.ASK_MODEL:
                name = wire.decode(wire.ModelName, frame.meta)
                self._describe_model(frame.number, name.name, name.version)
            case FrameKind.HTTP | FrameKind.GRPC:
                self._serve_verb(frame)
            case FrameKind.TRACE:
                self._requests.end_trace(frame)
            case FrameKind.SERVING:
                self.serving = True
                self._services.on_serving()
            case _:
                raise ChannelBroken(f"a frame of kind {frame.kind}")

    # requests other than inference

    def _serve_verb(self, frame: ReceivedFrame) -> None:
        number, verb = frame.number, wire.decode(wire.Verb, frame.meta)
        answer = partial(self._answer, number)
        if frame.kind == FrameKind.HTTP:
            request = RelayedRequest(verb, frame.payload, answer)
            self._requests.pending[number] = request.call_off
            self._services.http.serve(request)  # type: ignore[arg-type]
        else:
            call, serve = RelayedCall(answer), self._services.methods[verb.path.decode()].unary
            assert serve is not None
            self._requests.pending[number] = call.call_off
            serve(call, frame.payload)  # type: ignore[arg-type]

    def _answer(self, number: int, answer: Struct, parts: Sequence[Buffer] = ()) -> None:
        self._requests.pending.pop(number, None)
        try:
            self.channel.send(FrameKind.ANSWER, number=number, meta=wire.encode(answer), parts=parts)
        except TpxError as exc:
            self._requests.fail(FrameKind.ANSWER, number, exc)

    def _describe_model(self, number: int, name: str, version: str, *, waits: bool = True) -> None:
        try:
            model = self._plane.model(name, version)
        except NotLoaded as exc:
            work = partial(self._describe_model, number, name, version, waits=False)
            self._requests.wait_for_load(FrameKind.ANSWER, number, exc, work, waits=waits)
        except TpxError as exc:
            self._requests.fail(FrameKind.ANSWER, number, exc)
        else:
            self._answer(number, wire.Model.of(model))
