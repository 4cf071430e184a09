"""Trace and log settings over HTTP."""

import re
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from tpx.errors import InvalidRequest
from tpx.protocol.http1.server import HttpRequest
from tpx.serving.dataplane import DataPlane
from tpx.serving.frontends.http_answers import answer_json
from tpx.serving.frontends.http_routes import Route, json_object, route
from tpx.serving.frontends.log_changes import changed, refuse_log_file
from tpx.serving.tracing.settings import parse_update

_MODEL = r"/v2/models/(?P<model>[^/]+)/trace/setting"
"""Of all its versions: a path with one names nothing."""


class HttpSettings:
    """What of the server can be asked and changed while it runs."""

    def __init__(self, plane: DataPlane) -> None:
        self._plane = plane

    def routes(self) -> list[Route]:
        return [
            route(r"/v2/logging", "logging", GET=self._get_log, POST=self._set_log),
            route(r"/v2/trace/setting", "trace", GET=self._get_trace, POST=self._set_trace),
            route(_MODEL, "trace", GET=self._get_model_trace, POST=self._set_model_trace),
        ]

    def _get_log(self, request: HttpRequest, _: re.Match[str]) -> None:
        answer_json(request, asdict(self._plane.logs.settings))

    def _set_log(self, request: HttpRequest, match: re.Match[str]) -> None:
        given = {name: value for name, value in _changes(request).items() if value is not None}
        if "log_file" in given:
            refuse_log_file()
        self._plane.logs.update(changed(self._plane.logs.settings, given, "HTTP"))
        self._get_log(request, match)

    def _get_trace(self, request: HttpRequest, _: re.Match[str]) -> None:
        self._answer_trace(request, "")

    def _set_trace(self, request: HttpRequest, _: re.Match[str]) -> None:
        self._update_trace(request, "")

    def _get_model_trace(self, request: HttpRequest, match: re.Match[str]) -> None:
        self._answer_trace(request, self._plane.traced_model(match["model"]))

    def _set_model_trace(self, request: HttpRequest, match: re.Match[str]) -> None:
        self._update_trace(request, self._plane.traced_model(match["model"]))

    def _update_trace(self, request: HttpRequest, model: str) -> None:
        given = {name: _texts(name, value) for name, value in _changes(request).items()}
        tracer = self._plane.tracer
        tracer.update(parse_update(given, tracer.setting().fixed, got="got:"), model)
        self._answer_trace(request, model)

    def _answer_trace(self, request: HttpRequest, model: str) -> None:
        texts = self._plane.tracer.setting(model).as_texts()
        answer_json(request, {name: t if name == "trace_level" else ",".join(t) for name, t in texts.items()})


def _changes(request: HttpRequest) -> dict[str, Any]:
    """The body, which says something. Raises InvalidRequest."""
    if not len(request.body):
        raise InvalidRequest("failed to parse the request JSON buffer: The document is empty. at 0")
    return json_object(request)


def _texts(name: str, value: Any) -> Sequence[str] | None:
    """A trace setting as texts, None for null. Raises InvalidRequest."""
    if value is None or name == "trace_file":
        return None
    if name == "trace_level":
        if not isinstance(value, list):
            raise InvalidRequest("attempt to access JSON non-array as array")
        values = value
    else:
        values = [value]
    if not all(isinstance(item, str) for item in values):
        raise InvalidRequest("attempt to access JSON non-string as string")
    return values
