"""The model repository over HTTP: what there is, loading and unloading."""

import asyncio
import binascii
import re
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

from tpx.errors import InvalidRequest, Unsupported
from tpx.protocol.http1.server import JSON_TYPE, HttpRequest
from tpx.serving.dataplane import DataPlane, IndexEntry
from tpx.serving.frontends.http_answers import answer_json, answer_when_done
from tpx.serving.frontends.http_routes import Route, json_object, route
from tpx.serving.repository.overrides import LoadParameter

_REPOSITORY = r"/v2/repository(?:/(?P<repository>[^/]+))?"
_SHORT_BYTES = 64 << 10
_TOLD = ("name", "version", "state", "reason")


class HttpControl:
    """Index, load and unload."""

    def __init__(self, plane: DataPlane) -> None:
        self._plane = plane

    def routes(self) -> list[Route]:
        model = _REPOSITORY + "/models/(?P<model>[^/]*)"
        return [
            route(_REPOSITORY + "/index", "model-repository", POST=self._index),
            route(model + "/load", "model-repository", POST=self._load),
            route(model + "/unload", "model-repository", POST=self._unload),
        ]

    def _index(self, request: HttpRequest, match: re.Match[str]) -> None:
        _refuse_repository(match)
        ready = json_object(request).get("ready", False)
        if not isinstance(ready, bool):
            raise InvalidRequest("Invalid value for 'ready': expected a boolean")
        if ready:
            _answer_index(request, self._plane.index(ready_only=True))
        else:
            self._answer(request, self._answer_complete_index(request))

    async def _answer_complete_index(self, request: HttpRequest) -> None:
        _answer_index(request, await self._plane.complete_index())

    def _load(self, request: HttpRequest, match: re.Match[str]) -> None:
        _refuse_repository(match)
        self._plane.control.check_explicit()
        self._answer(request, self._answer_load(request, match["model"]))

    async def _answer_load(self, request: HttpRequest, name: str) -> None:
        if len(request.body) <= _SHORT_BYTES:
            parameters = _load_parameters(request)
        else:  # files: what takes long to decode must not hold up others
            loop = asyncio.get_running_loop()
            parameters = await loop.run_in_executor(None, _load_parameters, request)
        await self._plane.load(name, parameters)
        request.respond(200, JSON_TYPE)

    def _unload(self, request: HttpRequest, match: re.Match[str]) -> None:
        _refuse_repository(match)
        self._plane.control.check_explicit()
        dependents = False
        for key, value in _parameters(request).items():
            if key != "unload_dependents":
                raise InvalidRequest(f"unrecognized unload parameter '{key}'.")
            if not isinstance(value, bool):
                raise InvalidRequest(
                    "Unable to parse 'unload_dependents': attempt to access JSON non-boolean as boolean"
                )
            dependents = value
        self._answer(request, self._answer_unload(request, match["model"], unload_dependents=dependents))

    async def _answer_unload(self, request: HttpRequest, name: str, *, unload_dependents: bool) -> None:
        await self._plane.unload(name, unload_dependents=unload_dependents)
        request.respond(200, JSON_TYPE)

    def _answer(self, request: HttpRequest, work: Coroutine[Any, Any, None]) -> None:
        self._plane.control.tasks.start(answer_when_done(request, work))


def _answer_index(request: HttpRequest, entries: Sequence[IndexEntry]) -> None:
    answer_json(
        request, [{key: value for key in _TOLD if (value := getattr(entry, key))} for entry in entries]
    )


def _parameters(request: HttpRequest) -> Mapping[str, Any]:
    parameters = json_object(request).get("parameters", {})
    if not isinstance(parameters, dict):
        raise InvalidRequest("Unable to parse 'parameters': it must be a JSON object")
    return parameters


def _load_parameters(request: HttpRequest) -> dict[str, LoadParameter]:
    """The parameters of a load request, files out of their base64. Raises InvalidRequest."""
    out: dict[str, LoadParameter] = {}
    for key, value in _parameters(request).items():
        if key.startswith("file:"):
            out[key] = _decoded(key, value)
        elif key != "config":
            raise InvalidRequest(
                f"unexpected error on creating Triton parameter: unrecognized load parameter '{key}'."
            )
        elif not isinstance(value, str):
            raise InvalidRequest("load parameter 'config': attempt to access JSON non-string as string")
        else:
            out[key] = value
    return out


def _decoded(key: str, value: Any) -> bytes:
    if not isinstance(value, str):
        raise InvalidRequest(f"load parameter '{key}': attempt to access JSON non-string as string")
    try:
        return binascii.a2b_base64("".join(value.split()), strict_mode=True)
    except ValueError as exc:
        raise InvalidRequest(f"load parameter '{key}' is no base64: {exc}") from exc


def _refuse_repository(match: re.Match[str]) -> None:
    if match["repository"]:
        raise Unsupported("'repository_name' specification is not supported")
