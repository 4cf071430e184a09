"""The access log. Its lines name this file, as shown in docs/serve/logs-and-traces.md."""

import logging
import time
from functools import partial

from tpx.protocol.grpc.server_call import ServerCall
from tpx.protocol.grpc.status import Status
from tpx.protocol.http1.request import HttpRequest
from tpx.serving.logs import LogControl

log = logging.getLogger(__name__)


class AccessLog:
    """Logs one line per request, whatever its outcome, while verbose logging is on."""

    def __init__(self, logs: LogControl) -> None:
        self._logs = logs

    # read the peer address now: it is gone once the connection breaks

    def http(self, request: HttpRequest) -> None:
        if self._logs.verbose:
            request.on_answered = partial(_log_http, request, request.peer)

    def grpc(self, call: ServerCall) -> None:
        if self._logs.verbose:
            call.on_answered = partial(_log_grpc, call, call.peer)


def log_tokens(request: HttpRequest, model: str, tokens: tuple[int, int], began_ns: int) -> None:
    """Log the tokens of a request to a language model at its end, while verbose logging is on."""
    if log.isEnabledFor(logging.DEBUG):
        path, took_us = request.head.path.decode("latin-1"), _measure_elapsed_us(began_ns)
        log.debug("Tokens: %s %s: %d of the prompt, %d generated, %d us", path, model, *tokens, took_us)


def _log_http(request: HttpRequest, peer: str, status: int) -> None:
    method, path = (part.decode("latin-1") for part in (request.head.method, request.head.path))
    log.debug(
        "HTTP request: %s %s %d %d us %s", method, path, status, _measure_elapsed_us(request.began_ns), peer
    )


def _log_grpc(call: ServerCall, peer: str, status: Status) -> None:
    path = call.head.path.decode("latin-1")
    log.debug("GRPC request: %s %s %d us %s", path, status.name, _measure_elapsed_us(call.began_ns), peer)


def _measure_elapsed_us(began_ns: int) -> int:
    return (time.perf_counter_ns() - began_ns) // 1000
