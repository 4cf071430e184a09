"""Registering shared memory over HTTP."""

import base64
import binascii
import re
from dataclasses import asdict
from typing import Any

from tpx.errors import InvalidRequest
from tpx.protocol.http1.server import HttpRequest
from tpx.serving.dataplane import DataPlane
from tpx.serving.frontends.http_answers import answer_json
from tpx.serving.frontends.http_routes import Route, json_object, route
from tpx.serving.shared_memory.regions import CudaRegion, Region, SystemRegion

_REGION = r"/v2/(?P<kind>system|cuda)sharedmemory(?:/region/(?P<region>[^/]+))?"
_KINDS: dict[str, type[Region]] = {"system": SystemRegion, "cuda": CudaRegion}


class HttpSharedMemory:
    """Status, register and unregister, of system and of CUDA shared memory."""

    def __init__(self, plane: DataPlane) -> None:
        self._regions = plane.shared_memory

    def routes(self) -> list[Route]:
        return [
            route(_REGION + "/status", "shared-memory", GET=self._status),
            route(_REGION + "/register", "shared-memory", POST=self._register),
            route(_REGION + "/unregister", "shared-memory", POST=self._unregister),
        ]

    def _status(self, request: HttpRequest, match: re.Match[str]) -> None:
        name = match["region"] or ""
        if match["kind"] == "system":
            answer_json(request, [asdict(region) for region in self._regions.status(name, SystemRegion)])
        else:
            answer_json(request, [asdict(region) for region in self._regions.status(name, CudaRegion)])

    def _register(self, request: HttpRequest, match: re.Match[str]) -> None:
        name = match["region"] or ""
        self._regions.check_registrable(name, _KINDS[match["kind"]])
        body = json_object(request)
        if match["kind"] == "system":
            region = SystemRegion(
                name=name,
                key=_text(body, "key"),
                offset=_number(body, "offset") if "offset" in body else 0,
                byte_size=_number(body, "byte_size"),
            )
            self._regions.register_system(region)
        else:
            handle = _decode_handle(_field(body, "raw_handle"))
            gpu = CudaRegion(
                name=name, device_id=_number(body, "device_id"), byte_size=_number(body, "byte_size")
            )
            self._regions.register_cuda(gpu, handle)
        request.respond(200, b"")

    def _unregister(self, request: HttpRequest, match: re.Match[str]) -> None:
        self._regions.unregister(match["region"] or "", _KINDS[match["kind"]])
        request.respond(200, b"")


def _field(body: dict[str, Any], key: str) -> Any:
    if key not in body:
        raise InvalidRequest(f"Shared memory register request has no '{key}' field")
    return body[key]


def _text(body: dict[str, Any], key: str) -> str:
    value = _field(body, key)
    if not isinstance(value, str):
        raise InvalidRequest(f"Unable to parse '{key}': attempt to access JSON non-string as string")
    return value


def _number(body: dict[str, Any], key: str) -> int:
    value = _field(body, key)
    if type(value) is not int or value < 0:
        raise InvalidRequest(
            f"Unable to parse '{key}': attempt to access JSON non-unsigned-integer as unsigned-integer"
        )
    return value


def _decode_handle(handle: Any) -> bytes:
    text = handle.get("b64") if isinstance(handle, dict) else None
    try:
        return base64.b64decode(text or "", validate=True)
    except (binascii.Error, TypeError, ValueError) as exc:
        raise InvalidRequest("'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t") from exc
