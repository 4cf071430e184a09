"""Inference over either transport: replies, and remembered heads with the fast paths of their requests.

A client that repeats a request sends the same head in front of different tensors. A head is decoded and
validated once; later requests look it up by its bytes.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Generic, Protocol, TypeVar

import msgspec

from tpx.errors import TpxError
from tpx.protocol.tensors import Buffer, Tensor
from tpx.protocol.v2 import Parameter
from tpx.serving.frontends.outputs import takes_long
from tpx.serving.inference_plane import FastPath, InferencePlane, RemoteResponse
from tpx.serving.request import InferRequest, InferResponse, RequestHead


class Exchange(Protocol):
    """A request of either transport, which awaits one response."""

    on_gone: Callable[[], None] | None
    """Called when the client leaves before the response, and reset to None then."""


E = TypeVar("E", bound=Exchange)
Encoded = TypeVar("Encoded")


class Replies(msgspec.Struct, Generic[E, Encoded], frozen=True):
    """Answers the requests of one transport."""

    plane: InferencePlane
    encode: Callable[[InferRequest, list[Tensor], dict[str, Parameter] | None], Encoded]
    """Encodes outputs and parameters. Raises TpxError."""
    respond: Callable[[E, Encoded], None]
    fail: Callable[[E, TpxError], None]
    fail_internally: Callable[[E, Exception], None]

    def reply(self, infer: InferRequest, response: InferResponse) -> None:
        """Answer a request with the only response of its model."""
        exchange: E = infer.context
        if response.error is not None:
            self.fail(exchange, response.error)
            return
        outputs, parameters = response.outputs, response.parameters
        if infer.head.converted and takes_long(infer.head, outputs):
            infer.buffers, infer.unread = [], ()  # they need not be held until this is encoded
            work = partial(self.encode, infer, outputs, parameters)
            respond, fail = partial(self.respond, exchange), partial(self.fail, exchange)
            self.plane.offload.encode(response.size_bytes, work, respond, fail, alone=True)
            return
        try:
            encoded = self.encode(infer, outputs, parameters)
        except TpxError as exc:
            self.fail(exchange, exc)
        except Exception as exc:  # noqa: BLE001 (one request's boundary)
            self.fail_internally(exchange, exc)
        else:
            self.respond(exchange, encoded)

    def submit_late(self, exchange: E, infer: InferRequest) -> None:
        """Compute a request that waited with a callback in `on_gone`; its client may have left meanwhile."""
        if exchange.on_gone is None:
            infer.cancel()
        exchange.on_gone = infer.cancel
        try:
            self.plane.infer(infer)
        except TpxError as exc:
            self.fail(exchange, exc)
        except Exception as exc:  # noqa: BLE001 (one request's boundary)
            self.fail_internally(exchange, exc)


class CachedHead(ABC, Generic[E, Encoded]):
    """A remembered head and the fast path for its requests. Implements RemoteAnswers."""

    __slots__ = ("_replies", "_size", "fast", "head", "quick", "remote")

    def __init__(self, head: RequestHead, replies: Replies[E, Encoded], *, contiguous: bool) -> None:
        """Take a fast path only if the tensors of requests are `contiguous`."""
        self.head = head
        self._replies = replies
        self._size = 0 if head.shared is not None else head.total_size
        """Bytes of tensors in a request."""
        plane = replies.plane
        self.fast = plane.fast_path(head) if contiguous and not head.converted else None
        self.remote = plane.remote_path(head) if contiguous else None
        self.quick = self.fast is not None or self.remote is not None

    def start(self, exchange: E, tensors: Buffer) -> bool:
        """Answer a request on the fast path, or send it on the remote one. Return False if neither is
        possible.
        """
        fast, remote, plane = self.fast, self.remote, self._replies.plane
        if len(tensors) != self._size or plane.stopping or plane.tracer.on:
            return False
        if fast is not None:
            if fast.most > 1:
                exchange.on_gone = _wait
                return fast.gather(tensors, partial(self._take_gathered, exchange, fast, tensors))
            outputs = fast.compute_one(tensors)
            if outputs is not None:
                self.answer(exchange, fast, outputs)
            return outputs is not None
        if remote is not None:
            exchange.on_gone = remote.send(tensors, self, exchange)
        return exchange.on_gone is not None

    def _take_gathered(
        self, exchange: E, fast: FastPath, tensors: Buffer, outputs: Sequence[bytes] | None
    ) -> None:
        if outputs is not None:
            self.answer(exchange, fast, outputs)
            return
        buffers = cut_tensors(self.head, tensors, 0)
        self._replies.submit_late(exchange, InferRequest(self.head, buffers, self._replies.reply, exchange))

    def request(self, context: E) -> InferRequest:
        """Return a request that was sent to another process."""
        return InferRequest(self.head, [], self._replies.reply, context)

    @abstractmethod
    def answer(self, exchange: E, fast: FastPath, outputs: Sequence[Buffer]) -> None:
        """Respond with outputs computed on the fast path."""

    @abstractmethod
    def answered(self, context: E, response: RemoteResponse, payload: Buffer) -> None:
        """Respond with the outputs in `payload`."""


def _wait() -> None:
    """Do nothing for a gathered request: it is cancelled if it has to take the regular path."""


def cut_tensors(head: RequestHead, body: Buffer, start: int) -> list[Buffer]:
    """Return the tensors that lie in `body` one after another from `start`."""
    view = memoryview(body)
    buffers: list[Buffer] = []
    for bound in head.inputs:
        buffers.append(view[start : start + bound.size])
        start += bound.size
    return buffers
