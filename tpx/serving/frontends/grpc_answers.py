"""Answers over gRPC: messages and statuses."""

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from tpx.errors import TpxError
from tpx.protocol.grpc.server_call import ServerCall
from tpx.protocol.grpc.status import Status, from_code
from tpx.serving.repository.on_demand import NotLoaded

log = logging.getLogger(__name__)


def answer(call: ServerCall, message: Any) -> None:
    """Answer with one protobuf message."""
    data = message.SerializeToString()
    call.respond((data,), len(data))


def when_loaded(call: ServerCall, absent: NotLoaded, work: Callable[[], None]) -> None:
    """Do what was asked of a model once it is loaded. `work` answers whatever happens, and fails where the
    model is gone again."""
    try:
        call.on_gone = absent.then(work, partial(fail, call))
    except TpxError as exc:
        fail(call, exc)


def fail(call: ServerCall, error: TpxError) -> None:
    """Answer with the status of the error's code."""
    call.fail(from_code(error.code), error.message)


def fail_internally(call: ServerCall, what: str, error: Exception) -> None:
    """An error of our own: the log has the traceback, the client learns that it is not its fault."""
    log.error("%s failed", what, exc_info=error)
    call.fail(Status.INTERNAL, "internal error: see the log of the server")
