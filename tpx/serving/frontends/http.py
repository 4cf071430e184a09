"""The HTTP endpoint: which verb a request means, and the verbs that are not inference."""

import re
from collections.abc import Callable
from dataclasses import asdict
from typing import Any
from urllib.parse import unquote_to_bytes

import orjson

from tpx.errors import InvalidRequest, NotFound, NotReady, TpxError, Unsupported
from tpx.protocol import model_config
from tpx.protocol.http1.head import Head
from tpx.protocol.http1.server import JSON_TYPE, HttpRequest
from tpx.serving.dataplane import DataPlane
from tpx.serving.frontends.http_answers import answer_error, answer_failure, answer_json
from tpx.serving.frontends.http_generate import GenerateRoute, HttpGeneration
from tpx.serving.frontends.http_infer import HttpInference, InferRoute

_MODEL_PATH = re.compile(
    r"/v2/models/(?P<model>[^/]+)(?:/versions/(?P<version>[0-9]+))?"
    r"(?:/(?P<verb>infer|generate|generate_stream|ready|config|stats|trace/setting))?"
)
_REPOSITORY_PATH = re.compile(
    r"/v2/repository(?:/(?P<repository>[^/]+))?/(?:(?P<index>index)|models/(?P<model>[^/]+)/(?P<verb>load|unload))"
)
_UNSUPPORTED_PATH = re.compile(
    r"/v2/(?:(?:system|cuda)sharedmemory(?:/region/[^/]+)?/(?:status|register|unregister)|logging|trace/setting)"
)

Verb = Callable[[HttpRequest], None]


class _Refusal(Exception):
    def __init__(self, status: int, message: str, headers: bytes = b"") -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers


class HttpFrontend:
    """Serves every HTTP request. What a head means is worked out once and remembered in its memo."""

    def __init__(self, plane: DataPlane, max_input_bytes: int) -> None:
        self._plane = plane
        self._infer = HttpInference(plane, max_input_bytes)
        self._generate = HttpGeneration(plane)

    def serve(self, request: HttpRequest) -> None:
        """The boundary of a request: whatever happens, it is answered."""
        try:
            meaning = request.head.memo
            if meaning is None:
                meaning = request.head.memo = self._meaning(request.head)
            if type(meaning) is InferRoute:
                self._infer.serve(request, meaning)
            elif type(meaning) is GenerateRoute:
                self._generate.serve(request, meaning)
            else:
                meaning(request)
        except TpxError as exc:
            answer_error(request, exc)
        except _Refusal as exc:
            body = orjson.dumps({"error": str(exc)})
            request.respond(exc.status, JSON_TYPE + exc.headers, (body,))
        except Exception as exc:  # noqa: BLE001 (one request's boundary)
            answer_failure(request, "an HTTP request", exc)

    def _meaning(self, head: Head) -> Verb | InferRoute | GenerateRoute:
        """The verb of a method and path."""
        path = _decode_path(head.path)
        if path in ("/v2", "/v2/"):
            return self._only(head, b"GET", self._server_metadata)
        if path == "/v2/health/live":
            return self._only(head, b"GET", self._live)
        if path == "/v2/health/ready":
            return self._only(head, b"GET", self._ready)
        if path == "/v2/models/stats":
            return self._only(head, b"GET", lambda r: self._statistics(r, "", ""))
        if match := _MODEL_PATH.fullmatch(path):
            return self._model_verb(head, _name(match["model"]), match["version"] or "", match["verb"] or "")
        if match := _REPOSITORY_PATH.fullmatch(path):
            return self._repository_verb(head, match)
        if _UNSUPPORTED_PATH.fullmatch(path):
            return _unsupported(path)
        raise _Refusal(404, "Not Found")

    def _model_verb(
        self, head: Head, model: str, version: str, verb: str
    ) -> Verb | InferRoute | GenerateRoute:
        if verb == "infer":
            if head.method != b"POST":
                raise _Refusal(405, "Method Not Allowed", b"Allow: POST\r\n")
            return InferRoute(model, version, head)
        if verb in ("generate", "generate_stream"):
            if head.method != b"POST":
                raise _Refusal(405, "Method Not Allowed", b"Allow: POST\r\n")
            return GenerateRoute(model, version, head, events=verb == "generate_stream")
        verbs: dict[str, Verb] = {
            "": lambda r: answer_json(r, asdict(self._plane.model_metadata(model, version))),
            "config": lambda r: answer_json(
                r, model_config.to_json(self._plane.model_config(model, version))
            ),
            "stats": lambda r: self._statistics(r, model, version),
            "ready": lambda r: self._model_ready(r, model, version),
        }
        if verb == "trace/setting" and version:
            raise _Refusal(404, "Not Found")
        if verb not in verbs:
            return _unsupported(verb)
        return self._only(head, b"GET", verbs[verb])

    def _repository_verb(self, head: Head, match: re.Match[str]) -> Verb:
        if match["repository"]:
            raise Unsupported("'repository_name' specification is not supported")
        if match["index"]:
            return self._only(head, b"POST", self._index)
        return self._only(head, b"POST", _no_model_control)

    def _only(self, head: Head, method: bytes, verb: Verb) -> Verb:
        if head.method != method and not (method == b"GET" and head.method == b"HEAD"):
            raise _Refusal(405, "Method Not Allowed", b"Allow: " + method + b"\r\n")
        return verb

    # verbs

    def _server_metadata(self, request: HttpRequest) -> None:
        answer_json(request, asdict(self._plane.server_metadata()))

    def _live(self, request: HttpRequest) -> None:
        request.respond(200 if self._plane.live() else 400, b"")

    def _ready(self, request: HttpRequest) -> None:
        if self._plane.exiting:
            raise NotReady("Server exiting")
        request.respond(200 if self._plane.ready() else 400, b"")

    def _model_ready(self, request: HttpRequest, model: str, version: str) -> None:
        if not self._plane.model_ready(model, version):
            raise InvalidRequest("Model version not ready")
        request.respond(200, b"")

    def _statistics(self, request: HttpRequest, model: str, version: str) -> None:
        answer_json(request, {"model_stats": self._plane.statistics(model, version)})

    def _index(self, request: HttpRequest) -> None:
        options = _json_object(request)
        ready = options.get("ready", False)
        if not isinstance(ready, bool):
            raise InvalidRequest("Invalid value for 'ready': expected a boolean")
        entries = [asdict(entry) for entry in self._plane.index(ready_only=ready)]
        answer_json(request, [{k: v for k, v in entry.items() if v} for entry in entries])


def _decode_path(path: bytes) -> str:
    """The path with its escapes decoded segment by segment, so that an escaped slash separates nothing."""
    segments = path.split(b"/")
    try:
        decoded = [unquote_to_bytes(segment).decode() for segment in segments]
    except UnicodeDecodeError as exc:
        raise _Refusal(404, "Not Found") from exc
    if any("/" in segment or "\0" in segment for segment in decoded):
        raise _Refusal(404, "Not Found")
    return "/".join(decoded)


def _name(text: str) -> str:
    if text in (".", ".."):
        raise NotFound(f"Request for unknown model: '{text}' is not found")
    return text


def _json_object(request: HttpRequest) -> dict[str, Any]:
    """The body as a JSON object; an empty body is an empty object."""
    if not len(request.body):
        return {}
    try:
        value = orjson.loads(request.body)
    except orjson.JSONDecodeError as exc:
        raise InvalidRequest(f"failed to parse the request JSON buffer: {exc}") from exc
    if not isinstance(value, dict):
        raise InvalidRequest("the request body must be a JSON object")
    return value


def _no_model_control(request: HttpRequest) -> None:  # noqa: ARG001
    raise NotReady("explicit model load / unload is not allowed if polling is enabled")


def _unsupported(what: str) -> Verb:
    def refuse(request: HttpRequest) -> None:  # noqa: ARG001
        raise Unsupported(f"'{what}' is not supported by this version of tpx")

    return refuse
