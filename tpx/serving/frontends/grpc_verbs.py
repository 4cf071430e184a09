"""Methods of the gRPC API: calling a verb and answering with a message or a status."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import msgspec
from google.protobuf.message import DecodeError, Message

from tpx.errors import InvalidRequest, TpxError
from tpx.protocol import messages
from tpx.protocol.grpc.server_call import Method, ServerCall
from tpx.protocol.grpc.status import Status, from_code
from tpx.protocol.tensors import Buffer
from tpx.serving.deferred import NotLoaded, Tasks
from tpx.serving.frontends.access import Category

log = logging.getLogger(__name__)


def answer(call: ServerCall, message: Message | bytes) -> None:
    """Answer with one protobuf message, serialized or not."""
    call.respond((message if isinstance(message, bytes) else message.SerializeToString(),))


def when_loaded(call: ServerCall, absent: NotLoaded, work: Callable[[], None]) -> None:
    """Run `work`, which must always answer, once a model is loaded; fail the call if the load fails."""
    try:
        call.on_gone = absent.then(work, partial(fail, call))
    except TpxError as exc:
        fail(call, exc)


def fail(call: ServerCall, error: TpxError) -> None:
    """Answer with the status of the error's code."""
    call.fail(from_code(error.code), error.message)


def fail_internally(call: ServerCall, error: Exception, what: str) -> None:
    """Answer an internal error. The traceback is logged; the client only learns that the server failed."""
    log.error("%s failed", what, exc_info=error)
    call.fail(Status.INTERNAL, "internal error: see the log of the server")


SERVICE = "/inference.GRPCInferenceService/"

_SHORT_BYTES = 64 << 10
"""Maximum size of messages decoded on the event loop by `rpc_later`; longer ones use a thread."""

_MAX_BYTES = 1 << 20
"""Maximum size of messages, which are handled on the event loop."""
_UNLIMITED = ("RepositoryModelLoadRequest",)
"""Messages that contain files, and are decoded in a thread."""

Verb = Callable[[Any], Message]
"""Takes a request message, returns a response message, raises TpxError."""


class Rpc(msgspec.Struct, frozen=True, kw_only=True):
    """A method and its API category."""

    category: Category
    method: Method


def decode(request_type: str, message: Buffer) -> Any:
    """Decode a message. Raises InvalidRequest."""
    if len(message) > _MAX_BYTES and request_type not in _UNLIMITED:
        raise InvalidRequest(f"a {request_type} takes at most {_MAX_BYTES} bytes, got {len(message)}")
    try:
        return getattr(messages, request_type).FromString(bytes(message))
    except DecodeError as exc:
        raise InvalidRequest(f"Unable to parse request: it is not a {request_type}") from exc


def rpc(name: str, category: Category, verb: Verb) -> Rpc:
    """Return a unary method that decodes the request, calls the verb, encodes its result and maps errors."""

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
            fail_internally(call, exc, name)

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
    """Return a unary method for an asynchronous verb; `check` may reject the call before decoding.

    `path` is given for methods outside the inference service.
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
            fail_internally(call, exc, name)

    def serve(call: ServerCall, message: Buffer) -> None:
        try:
            check()
        except TpxError as exc:
            fail(call, exc)
        else:
            tasks.start(work(call, message))

    return Rpc(category=category, method=Method(path or SERVICE + name, unary=serve))
