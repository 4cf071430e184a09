"""All HTTP verbs except inference: health, metadata, statistics, repository, shared memory, settings."""

import asyncio
import base64
import binascii
import re
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial

import orjson

from tpx.errors import InvalidRequest, NotReady
from tpx.protocol import model_config
from tpx.protocol.http1.request import JSON_TYPE, HttpRequest
from tpx.protocol.json_values import JsonObject, JsonValue
from tpx.protocol.v2 import LoadParameter
from tpx.serving.dataplane import DataPlane
from tpx.serving.frontends.http_verbs import (
    MODEL,
    Route,
    answer_json,
    answer_when_done,
    json_object,
    of_model,
    route,
    short_json_object,
)
from tpx.serving.offload import Coalesced, in_steps
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
        self._indexes = {ready: Coalesced(partial(self._make_index, ready)) for ready in (False, True)}
        """The index of all versions, and that of the ready ones."""

    def routes(self) -> list[Route]:
        """Return the paths, each with its API category."""
        later = self._defer_answer
        return [
            route("/v2[/]", "metadata", GET=self._get_server_metadata),
            route("/v2/health/live", "health", GET=self._check_live),
            route("/v2/health/ready", "health", GET=later(self._check_ready)),
            route("/v2/models/stats", "statistics", GET=later(self._get_all_statistics)),
            route(MODEL, "metadata", GET=self._get_model_metadata),
            route(MODEL + "/ready", "health", GET=later(self._check_model_ready)),
            route(MODEL + "/config", "model-config", GET=self._get_model_config),
            route(MODEL + "/stats", "statistics", GET=self._get_statistics),
            route(_REPOSITORY + "/index", "model-repository", POST=later(self._get_index)),
            route(_REPOSITORY_MODEL + "/load", "model-repository", POST=later(self._load_model)),
            route(_REPOSITORY_MODEL + "/unload", "model-repository", POST=later(self._unload_model)),
            *(
                route(f"/v2/{kind}sharedmemory[/region/{{region}}]/{verb}", "shared-memory", **how)
                for kind, region in _REGION_KINDS.items()
                for verb, how in (
                    ("status", {"GET": partial(self._get_region_status, region)}),
                    ("register", {"POST": partial(self._register_region, region)}),
                    ("unregister", {"POST": partial(self._unregister_region, region)}),
                )
            ),
            route("/v2/logging", "logging", GET=self._get_log, POST=self._set_log),
            route("/v2/trace/setting", "trace", GET=self._get_trace, POST=self._set_trace),
            route(_TRACED_MODEL, "trace", GET=self._get_trace, POST=self._set_trace),
        ]

    def _defer_answer(
        self, verb: Callable[[HttpRequest, re.Match[str]], Coroutine[object, object, None]]
    ) -> Callable[[HttpRequest, re.Match[str]], None]:
        """Return a verb that answers once the coroutine of `verb` is done."""

        def begin(request: HttpRequest, match: re.Match[str]) -> None:
            self._plane.tasks.start(answer_when_done(request, verb(request, match)))

        return begin

    # health, metadata, statistics

    def _get_server_metadata(self, request: HttpRequest, _: re.Match[str]) -> None:
        answer_json(request, self._plane.server_metadata())

    def _check_live(self, request: HttpRequest, _: re.Match[str]) -> None:
        request.respond(200 if self._plane.live() else 400, b"")

    async def _check_ready(self, request: HttpRequest, _: re.Match[str]) -> None:
        if self._plane.exiting:
            raise NotReady("Server exiting")
        request.respond(200 if await self._plane.check_ready() else 400, b"")

    def _get_model_metadata(self, request: HttpRequest, match: re.Match[str]) -> None:
        answer_json(request, self._plane.model_metadata(*of_model(match)))

    async def _check_model_ready(self, request: HttpRequest, match: re.Match[str]) -> None:
        if not await self._plane.check_model_ready(*of_model(match)):
            raise InvalidRequest("Model version not ready")
        request.respond(200, b"")

    def _get_model_config(self, request: HttpRequest, match: re.Match[str]) -> None:
        answer_json(request, model_config.to_json(self._plane.model_config(*of_model(match))))

    def _get_statistics(self, request: HttpRequest, match: re.Match[str]) -> None:
        answer_json(request, {"model_stats": list(self._plane.statistics(*of_model(match)))})

    async def _get_all_statistics(self, request: HttpRequest, _: re.Match[str]) -> None:
        request.respond(200, JSON_TYPE, (await self._every_statistic.get(),))

    async def _make_statistics(self) -> bytes:
        pieces = await in_steps(map(orjson.dumps, self._plane.statistics("", "")))
        return b'{"model_stats":[%b]}' % b",".join(pieces)

    # the model repository

    async def _get_index(self, request: HttpRequest, match: re.Match[str]) -> None:
        self._plane.refuse_repository(match["repository"])
        ready = short_json_object(request).get("ready", False)
        if not isinstance(ready, bool):
            raise InvalidRequest("Invalid value for 'ready': expected a boolean")
        request.respond(200, JSON_TYPE, (await self._indexes[ready].get(),))

    async def _make_index(self, ready: bool) -> bytes:
        entries = self._plane.index(ready_only=True) if ready else await self._plane.complete_index()
        return orjson.dumps(
            [{key: value for key in _INDEX_KEYS if (value := getattr(entry, key))} for entry in entries]
        )

    async def _load_model(self, request: HttpRequest, match: re.Match[str]) -> None:
        self._plane.refuse_repository(match["repository"])
        self._plane.check_explicit()
        if len(request.body) <= _SHORT_BYTES:
            parameters = _read_load_parameters(request)
        else:  # contains files: decode in a thread to keep the event loop free
            parameters = await asyncio.to_thread(_read_load_parameters, request)
        await self._plane.load(match["model"], parameters)
        request.respond(200, JSON_TYPE)

    async def _unload_model(self, request: HttpRequest, match: re.Match[str]) -> None:
        self._plane.refuse_repository(match["repository"])
        self._plane.check_explicit()
        wrong_type = "Unable to parse 'unload_dependents': attempt to access JSON non-boolean as boolean"
        await self._plane.unload(match["model"], _read_parameters(short_json_object(request)), wrong_type)
        request.respond(200, JSON_TYPE)

    # shared memory

    def _get_region_status(self, kind: type[Region], request: HttpRequest, match: re.Match[str]) -> None:
        answer_json(request, self._plane.shared_memory.status(match["region"] or "", kind))

    def _register_region(self, kind: type[Region], request: HttpRequest, match: re.Match[str]) -> None:
        name, regions = match["region"] or "", self._plane.shared_memory
        regions.check_registrable(name, kind)
        body = short_json_object(request)
        if kind is SystemRegion:
            key, offset = _read_text(body, "key"), _read_number(body, "offset") if "offset" in body else 0
            size = _read_number(body, "byte_size")
            regions.register_system(SystemRegion(name=name, key=key, offset=offset, byte_size=size))
        else:
            handle = _decode_handle(_require_field(body, "raw_handle"))
            device = _read_number(body, "device_id")
            size = _read_number(body, "byte_size")
            regions.register_cuda(CudaRegion(name=name, device_id=device, byte_size=size), handle)
        request.respond(200, b"")

    def _unregister_region(self, kind: type[Region], request: HttpRequest, match: re.Match[str]) -> None:
        self._plane.shared_memory.unregister(match["region"] or "", kind)
        request.respond(200, b"")

    # settings

    def _get_log(self, request: HttpRequest, _: re.Match[str]) -> None:
        answer_json(request, self._plane.logs.settings)

    def _set_log(self, request: HttpRequest, match: re.Match[str]) -> None:
        given = {name: value for name, value in _read_changes(request).items() if value is not None}
        self._plane.logs.change(given, "HTTP")
        self._get_log(request, match)

    def _get_trace(self, request: HttpRequest, match: re.Match[str]) -> None:
        _answer_trace(request, self._plane.trace_setting(match.groupdict().get("model", "")))

    def _set_trace(self, request: HttpRequest, match: re.Match[str]) -> None:
        given = {name: _read_trace_values(name, value) for name, value in _read_changes(request).items()}
        model = match.groupdict().get("model", "")
        _answer_trace(request, self._plane.trace_setting(model, given, got="got:"))


def _answer_trace(request: HttpRequest, texts: Mapping[str, list[str]]) -> None:
    answer_json(request, {name: t if name == "trace_level" else ",".join(t) for name, t in texts.items()})


def _read_parameters(body: JsonObject) -> JsonObject:
    parameters = body.get("parameters", {})
    if not isinstance(parameters, dict):
        raise InvalidRequest("Unable to parse 'parameters': it must be a JSON object")
    return parameters


def _read_load_parameters(request: HttpRequest) -> dict[str, LoadParameter]:
    """Return the parameters of a load request, with files decoded from base64. Raises InvalidRequest."""
    out: dict[str, LoadParameter] = {}
    for key, value in _read_parameters(json_object(request)).items():
        is_file = key.startswith("file:")
        if not is_file and key != "config":
            raise InvalidRequest(
                f"unexpected error on creating Triton parameter: unrecognized load parameter '{key}'."
            )
        if not isinstance(value, str):
            raise InvalidRequest(f"load parameter '{key}': attempt to access JSON non-string as string")
        try:
            out[key] = binascii.a2b_base64("".join(value.split()), strict_mode=True) if is_file else value
        except ValueError as exc:
            raise InvalidRequest(f"load parameter '{key}' is not base64: {exc}") from exc
    return out


def _require_field(body: JsonObject, key: str) -> JsonValue:
    if key not in body:
        raise InvalidRequest(f"Shared memory register request has no '{key}' field")
    return body[key]


def _read_text(body: JsonObject, key: str) -> str:
    value = _require_field(body, key)
    if not isinstance(value, str):
        raise InvalidRequest(f"Unable to parse '{key}': attempt to access JSON non-string as string")
    return value


def _read_number(body: JsonObject, key: str) -> int:
    value = _require_field(body, key)
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


def _read_changes(request: HttpRequest) -> JsonObject:
    """Return the JSON body. Raises InvalidRequest if it is empty."""
    if not len(request.body):
        raise InvalidRequest("failed to parse the request JSON buffer: The document is empty. at 0")
    return short_json_object(request)


def _read_trace_values(name: str, value: JsonValue) -> Sequence[str] | None:
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
