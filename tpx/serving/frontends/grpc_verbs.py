"""The methods of the gRPC API: how verbs are called, and how they answer with messages and statuses."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any

from google.protobuf.message import DecodeError, Message

from tpx.errors import InvalidRequest, TpxError
from tpx.protocol import messages
from tpx.protocol.grpc.server_call import Method, ServerCall
from tpx.protocol.grpc.status import Status, from_code
from tpx.protocol.tensors import Buffer
from tpx.serving.frontends.access import Category
from tpx.serving.repository.on_demand import NotLoaded
from tpx.serving.repository.retirement import Tasks

log = logging.getLogger(__name__)


def answer(call: ServerCall, message: Message | bytes) -> None:
    """Answer with one protobuf message, which may be serialized already."""
    call.respond((message if isinstance(message, bytes) else message.SerializeToString(),))


def when_loaded(call: ServerCall, absent: NotLoaded, work: Callable[[], None]) -> None:
    """Do `work` once a model is loaded; it answers in any case, and fails if the model is gone again."""
    try:
        call.when_gone(absent.then(work, partial(fail, call)))
    except TpxError as exc:
        fail(call, exc)


def fail(call: ServerCall, error: TpxError) -> None:
    """Answer with the status of the error's code."""
    call.fail(from_code(error.code), error.message)


def fail_internally(call: ServerCall, what: str, error: Exception) -> None:
    """Answer a defect of ours: the log has the traceback, the client learns that it is not its fault."""
    log.error("%s failed", what, exc_info=error)
    call.fail(Status.INTERNAL, "internal error: see the log of the server")


SERVICE = "/inference.GRPCInferenceService/"

_SHORT_BYTES = 64 << 10
"""Longer messages of verbs that take their time are decoded in another thread."""

Verb = Callable[[Any], Message]
"""Takes a request message, returns a response message, raises TpxError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rpc:
    """A method, and the part of the API it belongs to."""

    category: Category
    method: Method


def decode(request_type: str, message: Buffer) -> Any:
    """Decode a message. Raises InvalidRequest."""
    try:
        return getattr(messages, request_type).FromString(bytes(message))
    except DecodeError as exc:
        raise InvalidRequest(f"Unable to parse request: it is not a {request_type}") from exc


def rpc(name: str, category: Category, verb: Verb) -> Rpc:
    """Return a unary method around a verb: decode, call, encode, and map errors."""

    def serve(call: ServerCall, message: Buffer, *, waits: bool = True) -> None:
        try:
            answer(call, verb(decode(f"{name}Request", message)))
        except NotLoaded as exc:
            if waits:
                when_loaded(call, exc, partial(serve, call, message, waits=False))
            else:
                fail(call, exc)
        except TpxError as exc:
            fail(call, exc)
        except Exception as exc:  # noqa: BLE001 (one request's boundary)
            fail_internally(call, name, exc)

    return Rpc(category=category, method=Method(SERVICE + name, unary=serve))


def rpc_later(
    name: str,
    category: Category,
    verb: Callable[[Any], Coroutine[object, object, Message | bytes]],
    tasks: Tasks,
    check: Callable[[], None] = lambda: None,
    *,
    path: str = "",
) -> Rpc:
    """Return a unary method whose verb takes its time; `check` may refuse before the message is decoded.

    `path` is that of another service than inference.
    """
    request_type = f"{name}Request"

    async def work(call: ServerCall, message: Buffer) -> None:
        try:
            if len(message) <= _SHORT_BYTES:
                request = decode(request_type, message)
            else:
                request = await asyncio.to_thread(decode, request_type, message)
            answer(call, await verb(request))
        except TpxError as exc:
            fail(call, exc)
        except Exception as exc:  # noqa: BLE001 (one request's boundary)
            fail_internally(call, name, exc)

    def serve(call: ServerCall, message: Buffer) -> None:
        try:
            check()
        except TpxError as exc:
            fail(call, exc)
        else:
            tasks.start(work(call, message))

    return Rpc(category=category, method=Method(path or SERVICE + name, unary=serve))
