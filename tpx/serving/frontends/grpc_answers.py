"""Answers over gRPC: messages and statuses."""

import logging
from typing import Any

from tpx.errors import TpxError
from tpx.protocol.grpc.server_call import ServerCall
from tpx.protocol.grpc.status import Status, from_code

log = logging.getLogger(__name__)


def answer(call: ServerCall, message: Any) -> None:
    """Answer with one protobuf message."""
    data = message.SerializeToString()
    call.respond((data,), len(data))


def fail(call: ServerCall, error: TpxError) -> None:
    """Answer with the status of the error's code."""
    call.fail(from_code(error.code), error.message)


def fail_internally(call: ServerCall, what: str, error: Exception) -> None:
    """An error of our own: the log has the traceback, the client learns that it is not its fault."""
    log.error("%s failed", what, exc_info=error)
    call.fail(Status.INTERNAL, "internal error: see the log of the server")
