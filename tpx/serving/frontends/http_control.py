"""All HTTP verbs except inference: health, metadata, statistics, repository, shared memory, settings."""

import asyncio
import base64
import binascii
import re
from collections.abc import Coroutine, Mapping, Sequence
from functools import partial

import orjson

from tpx.errors import InvalidRequest, NotReady
from tpx.protocol import model_config
from tpx.protocol.http1.server import JSON_TYPE, HttpRequest
from tpx.protocol.json_values import JsonObject, JsonValue
from tpx.serving.dataplane import DataPlane, RepositoryEntry
from tpx.serving.frontends.http_answers import answer_json, answer_when_done
from tpx.serving.frontends.http_routes import MODEL, Route, json_object, of_model, route
from tpx.serving.offload import Coalesced, in_steps
from tpx.serving.repository.discovery import LoadParameter
from tpx.serving.shared_memory.regions import CudaRegion, Region, SystemRegion

_REPOSITORY = "/v2/repository[/{repository}]"
_REPOSITORY_MODEL = _REPOSITORY + "/models/{model*}"
_TRACED_MODEL = "/v2/models/{model}/trace/setting"
"""Trace settings apply to all versions of a model, so the path has no version."""
_REGION_KINDS: dict[str, type[Region]] = {"system": SystemRegion, "cuda": CudaRegion}
_SHORT_BYTES = 64 << 10
_INDEX_KEYS = ("name", "version", "state", "reason")


class HttpControlPlane:
    """Decodes requests, calls the data plane and encodes the results."""

    def __init__(self, plane: DataPlane) -> None:
        self._plane = plane
        self._every_statistic = Coalesced(self._make_statistics)
        self._ready_index = Coalesced(self._make_ready_index)
        self._complete_index = Coalesced(self._make_complete_index)

    def routes(self) -> list[Route]:
        """Return the paths, each with its API category."""
        return [
            route("/v2[/]", "metadata", GET=self._server_metadata),
            route("/v2/health/live", "health", GET=self._live),
            route("/v2/health/ready", "health", GET=self._ready),
            route("/v2/models/stats", "statistics", GET=self._all_statistics),
            route(MODEL, "metadata", GET=self._model_metadata),
            route(MODEL + "/ready", "health", GET=self._model_ready),
            route(MODEL + "/config", "model-config", GET=self._model_config),
            route(MODEL + "/stats", "statistics", GET=self._statistics),
            route(_REPOSITORY + "/index", "model-repository", POST=self._index),
            route(_REPOSITORY_MODEL + "/load", "model-repository", POST=self._load),
            route(_REPOSITORY_MODEL + "/unload", "model-repository", POST=self._unload),
            *(each for kind in _REGION_KINDS for each in self._region_routes(kind)),
            route("/v2/logging", "logging", GET=self._get_log, POST=self._set_log),
            route("/v2/trace/setting", "trace", GET=self._get_trace, POST=self._set_trace),
            route(_TRACED_MODEL, "trace", GET=self._get_trace, POST=self._set_trace),
        ]

    def _later(self, request: HttpRequest, work: Coroutine[object, object, None]) -> None:
        self._plane.tasks.start(answer_when_done(request, work))

    async def _answer_coalesced(self, request: HttpRequest, answer: Coalesced[bytes]) -> None:
        request.respond(200, JSON_TYPE, (await answer.get(),))

    # health, metadata, statistics

    def _server_metadata(self, request: HttpRequest, _: re.Match[str]) -> None:
        answer_json(request, self._plane.server_metadata())

    def _live(self, request: HttpRequest, _: re.Match[str]) -> None:
        request.respond(200 if self._plane.live() else 400, b"")

    def _ready(self, request: HttpRequest, _: re.Match[str]) -> None:
        if self._plane.exiting:
            raise NotReady("Server exiting")
        self._later(request, self._ask_server(request))

    async def _ask_server(self, request: HttpRequest) -> None:
        request.respond(200 if await self._plane.says_ready() else 400, b"")

    def _model_metadata(self, request: HttpRequest, match: re.Match[str]) -> None:
        answer_json(request, self._plane.model_metadata(*of_model(match)))

    def _model_ready(self, request: HttpRequest, match: re.Match[str]) -> None:
        self._later(request, self._ask_model(request, *of_model(match)))

    async def _ask_model(self, request: HttpRequest, name: str, version: str) -> None:
        if not await self._plane.model_says_ready(name, version):
            raise InvalidRequest("Model version not ready")
        request.respond(200, b"")

    def _model_config(self, request: HttpRequest, match: re.Match[str]) -> None:
        answer_json(request, model_config.to_json(self._plane.model_config(*of_model(match))))

    def _statistics(self, request: HttpRequest, match: re.Match[str]) -> None:
        answer_json(request, {"model_stats": list(self._plane.statistics(*of_model(match)))})

    def _all_statistics(self, request: HttpRequest, _: re.Match[str]) -> None:
        self._later(request, self._answer_coalesced(request, self._every_statistic))

    async def _make_statistics(self) -> bytes:
        pieces = await in_steps(map(orjson.dumps, self._plane.statistics("", "")))
        return b'{"model_stats":[%b]}' % b",".join(pieces)

    # the model repository

    def _index(self, request: HttpRequest, match: re.Match[str]) -> None:
        self._plane.refuse_repository(match["repository"])
        ready = json_object(request).get("ready", False)
        if not isinstance(ready, bool):
            raise InvalidRequest("Invalid value for 'ready': expected a boolean")
        index = self._ready_index if ready else self._complete_index
        self._later(request, self._answer_coalesced(request, index))

    async def _make_ready_index(self) -> bytes:
        return _index(self._plane.index(ready_only=True))

    async def _make_complete_index(self) -> bytes:
        return _index(await self._plane.complete_index())

    def _load(self, request: HttpRequest, match: re.Match[str]) -> None:
        self._plane.refuse_repository(match["repository"])
        self._plane.check_explicit()
        self._later(request, self._answer_load(request, match["model"]))

    async def _answer_load(self, request: HttpRequest, name: str) -> None:
        if len(request.body) <= _SHORT_BYTES:
            parameters = _load_parameters(request)
        else:  # contains files: decode in a thread to keep the event loop free
            parameters = await asyncio.to_thread(_load_parameters, request)
        await self._plane.load(name, parameters)
        request.respond(200, JSON_TYPE)

    def _unload(self, request: HttpRequest, match: re.Match[str]) -> None:
        self._plane.refuse_repository(match["repository"])
        self._plane.check_explicit()
        self._later(request, self._answer_unload(request, match["model"]))

    async def _answer_unload(self, request: HttpRequest, name: str) -> None:
        wrong_type = "Unable to parse 'unload_dependents': attempt to access JSON non-boolean as boolean"
        await self._plane.unload(name, _parameters(request), wrong_type)
        request.respond(200, JSON_TYPE)

    # shared memory

    def _region_routes(self, kind: str) -> list[Route]:
        region = f"/v2/{kind}sharedmemory[/region/{{region}}]"
        return [
            route(region + "/status", "shared-memory", GET=partial(self._status, kind)),
            route(region + "/register", "shared-memory", POST=partial(self._register, kind)),
            route(region + "/unregister", "shared-memory", POST=partial(self._unregister, kind)),
        ]

    def _status(self, kind: str, request: HttpRequest, match: re.Match[str]) -> None:
        answer_json(request, self._plane.shared_memory.status(match["region"] or "", _REGION_KINDS[kind]))

    def _register(self, kind: str, request: HttpRequest, match: re.Match[str]) -> None:
        name = match["region"] or ""
        self._plane.shared_memory.check_registrable(name, _REGION_KINDS[kind])
        body = json_object(request)
        if kind == "system":
            region = SystemRegion(
                name=name,
                key=_text(body, "key"),
                offset=_number(body, "offset") if "offset" in body else 0,
                byte_size=_number(body, "byte_size"),
            )
            self._plane.shared_memory.register_system(region)
        else:
            handle = _decode_handle(_field(body, "raw_handle"))
            gpu = CudaRegion(
                name=name, device_id=_number(body, "device_id"), byte_size=_number(body, "byte_size")
            )
            self._plane.shared_memory.register_cuda(gpu, handle)
        request.respond(200, b"")

    def _unregister(self, kind: str, request: HttpRequest, match: re.Match[str]) -> None:
        self._plane.shared_memory.unregister(match["region"] or "", _REGION_KINDS[kind])
        request.respond(200, b"")

    # settings

    def _get_log(self, request: HttpRequest, _: re.Match[str]) -> None:
        answer_json(request, self._plane.logs.settings)

    def _set_log(self, request: HttpRequest, match: re.Match[str]) -> None:
        given = {name: value for name, value in _changes(request).items() if value is not None}
        self._plane.logs.change(given, "HTTP")
        self._get_log(request, match)

    def _get_trace(self, request: HttpRequest, match: re.Match[str]) -> None:
        _answer_trace(request, self._plane.trace_setting(match.groupdict().get("model", "")))

    def _set_trace(self, request: HttpRequest, match: re.Match[str]) -> None:
        given = {name: _texts(name, value) for name, value in _changes(request).items()}
        model = match.groupdict().get("model", "")
        _answer_trace(request, self._plane.trace_setting(model, given, got="got:"))


def _answer_trace(request: HttpRequest, texts: Mapping[str, list[str]]) -> None:
    answer_json(request, {name: t if name == "trace_level" else ",".join(t) for name, t in texts.items()})


def _index(entries: Sequence[RepositoryEntry]) -> bytes:
    return orjson.dumps(
        [{key: value for key in _INDEX_KEYS if (value := getattr(entry, key))} for entry in entries]
    )


def _parameters(request: HttpRequest) -> JsonObject:
    parameters = json_object(request).get("parameters", {})
    if not isinstance(parameters, dict):
        raise InvalidRequest("Unable to parse 'parameters': it must be a JSON object")
    return parameters


def _load_parameters(request: HttpRequest) -> dict[str, LoadParameter]:
    """Return the parameters of a load request, with files decoded from base64. Raises InvalidRequest."""
    out: dict[str, LoadParameter] = {}
    for key, value in _parameters(request).items():
        if key.startswith("file:"):
            out[key] = _decode_file(key, value)
        elif key != "config":
            raise InvalidRequest(
                f"unexpected error on creating Triton parameter: unrecognized load parameter '{key}'."
            )
        elif not isinstance(value, str):
            raise InvalidRequest("load parameter 'config': attempt to access JSON non-string as string")
        else:
            out[key] = value
    return out


def _decode_file(key: str, value: JsonValue) -> bytes:
    if not isinstance(value, str):
        raise InvalidRequest(f"load parameter '{key}': attempt to access JSON non-string as string")
    try:
        return binascii.a2b_base64("".join(value.split()), strict_mode=True)
    except ValueError as exc:
        raise InvalidRequest(f"load parameter '{key}' is not base64: {exc}") from exc


def _field(body: JsonObject, key: str) -> JsonValue:
    if key not in body:
        raise InvalidRequest(f"Shared memory register request has no '{key}' field")
    return body[key]


def _text(body: JsonObject, key: str) -> str:
    value = _field(body, key)
    if not isinstance(value, str):
        raise InvalidRequest(f"Unable to parse '{key}': attempt to access JSON non-string as string")
    return value


def _number(body: JsonObject, key: str) -> int:
    value = _field(body, key)
    if type(value) is not int or value < 0:
        raise InvalidRequest(
            f"Unable to parse '{key}': attempt to access JSON non-unsigned-integer as unsigned-integer"
        )
    return value


def _decode_handle(handle: JsonValue) -> bytes:
    text = handle.get("b64") if isinstance(handle, dict) else None
    try:
        return base64.b64decode(text or "", validate=True)
    except (binascii.Error, TypeError, ValueError) as exc:
        raise InvalidRequest("'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t") from exc


def _changes(request: HttpRequest) -> JsonObject:
    """Return the JSON body. Raises InvalidRequest if it is empty."""
    if not len(request.body):
        raise InvalidRequest("failed to parse the request JSON buffer: The document is empty. at 0")
    return json_object(request)


def _texts(name: str, value: JsonValue) -> Sequence[str] | None:
    """Return a trace setting as strings, or None for null. Raises InvalidRequest."""
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
