"""The HTTP endpoints that Amazon SageMaker and Google's Vertex AI call, as paths of the v2 protocol.

Neither platform passes on the header with the size of the JSON before binary tensors: a media type has it,
`application/vnd.sagemaker-triton.binary+json;json-header-size=162`.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import quote

import msgspec
from msgspec.structs import replace

from tpx.errors import InvalidRequest, TpxError, UsageError
from tpx.protocol.http1.head import HttpHead
from tpx.protocol.http1.request import HttpRequest
from tpx.serving.frontends.http_verbs import Fail, HttpRefusal, Route, answer_error

_SIZE = re.compile(rb";\s*json-header-size=([0-9]{1,10})\s*")
_BINARY = re.compile(
    rb"Content-Type: application/octet-stream\r\nInference-Header-Content-Length: ([0-9]+)\r\n"
)
_NO_MEMORY = re.compile(
    "out.?of.?memory|MemoryError|bad_alloc|failed to allocate memory|No space left on device|"
    "(CUDNN|CUBLAS)_STATUS_(ALLOC_FAILED|NOT_INITIALIZED)|--model-memory-limit",
    re.IGNORECASE,
)
_INFERENCE_TYPES = ("infer", "generate", "generate_stream")


def with_media_type(headers: bytes, media_type: bytes) -> bytes:
    """Return the headers of a response, with a platform's media type if it has binary tensors."""
    return _BINARY.sub(rb"Content-Type: %b;json-header-size=\1\r\n" % media_type, headers)


class HostedPaths(msgspec.Struct, frozen=True, kw_only=True):
    """Paths of a platform, and what they mean here."""

    media_type: bytes
    """Media type of JSON with binary tensors behind it."""
    health: str
    predict: str
    mode: str = "ready"
    """Health that the platform asks for: ready or live."""
    verb: str = "infer"
    model: str = ""
    """Model to infer with; empty for the only one."""
    redirect: bytes = b""
    """Header that selects another path of the v2 protocol, if there is one."""
    models: str = ""
    """Path below which the platform loads and unloads models, if it does; MODEL/invoke infers."""
    fail: Fail = answer_error

    def translate(
        self, head: HttpHead, path: str, routes: Sequence[Route], models: Iterable[str]
    ) -> HttpHead:
        """Return the head of the same request in the v2 protocol; `models` are those that are ready.

        Raises HttpRefusal, InvalidRequest.
        """
        if path == self.health:
            return replace(head, path=f"/v2/health/{self.mode}".encode())
        if self.models and path.startswith(self.models):
            name, _, verb = path.removeprefix(self.models).removeprefix("/").partition("/")
            if verb != "invoke":
                return head
            return replace(self._sized(head), path=f"/v2/models/{quote(name, safe='')}/infer".encode())
        if path != self.predict:
            raise HttpRefusal(404, "Not Found")
        where = head.headers.get(self.redirect) if self.redirect else None
        if where is None:
            name = quote(self.model or _only(models), safe="")
            return replace(self._sized(head), path=f"/v2/models/{name}/{self.verb}".encode())
        if head.method != b"POST":
            raise HttpRefusal(405, "Method Not Allowed", b"Allow: POST\r\n")
        target = b"/" + where.lstrip(b"/")
        text = target.decode("latin-1")
        verbs = next((route.verbs for route in routes if route.match(text)), {})
        method = b"GET" if b"GET" in verbs and b"POST" not in verbs else b"POST"
        return replace(self._sized(head), path=target, method=method)

    def _sized(self, head: HttpHead) -> HttpHead:
        """Return the head with the size that its media type has. Raises InvalidRequest."""
        media_type = head.headers.get(b"content-type", b"")
        if self.media_type not in media_type.lower():
            return head
        found = _SIZE.fullmatch(media_type[len(self.media_type) :])
        if not media_type.lower().startswith(self.media_type) or found is None:
            raise InvalidRequest(
                f"expect MIME type for binary data '{self.media_type.decode()};json-header-size=<bytes>', "
                f"got: {media_type.decode('latin-1')}"
            )
        return replace(head, headers={**head.headers, b"inference-header-content-length": found[1]})


def fail_on_sagemaker(request: HttpRequest, error: TpxError, headers: bytes = b"") -> None:
    """Answer with the status 507 for a lack of memory: SageMaker then unloads other models."""
    answer_error(request, error, headers, status=507 if _NO_MEMORY.search(error.message) else 0)


def _only(models: Iterable[str]) -> str:
    names = sorted(set(models))
    if len(names) != 1:
        raise InvalidRequest(
            "Expect the model repository contains only a single model if default model is not specified"
        )
    return names[0]


def sagemaker(environment: Mapping[str, str]) -> HostedPaths:
    """Return SageMaker's paths, as variables of the container select them. Raises UsageError."""
    verb = environment.get("SAGEMAKER_TRITON_INFERENCE_TYPE", "infer")
    mode = environment.get("SAGEMAKER_TRITON_PING_MODE", "ready")
    for name, word, known in (
        ("SAGEMAKER_TRITON_INFERENCE_TYPE", verb, _INFERENCE_TYPES),
        ("SAGEMAKER_TRITON_PING_MODE", mode, ("ready", "live")),
    ):
        if word not in known:
            raise UsageError(f"--allow-sagemaker: {name} must be one of {', '.join(known)}, got '{word}'")
    return HostedPaths(
        media_type=b"application/vnd.sagemaker-triton.binary+json",
        health="/ping",
        predict="/invocations",
        mode=mode,
        verb=verb,
        model=environment.get("SAGEMAKER_TRITON_DEFAULT_MODEL_NAME", ""),
        models="/models" if environment.get("SAGEMAKER_MULTI_MODEL", "").lower() == "true" else "",
        fail=fail_on_sagemaker,
    )


def vertex_ai(environment: Mapping[str, str], model: str) -> HostedPaths:
    """Return Vertex AI's paths, which variables of the container give. Raises UsageError."""
    routes = [environment.get(name, "") for name in ("AIP_HEALTH_ROUTE", "AIP_PREDICT_ROUTE")]
    for name, path in zip(("AIP_HEALTH_ROUTE", "AIP_PREDICT_ROUTE"), routes, strict=True):
        if not path.startswith("/"):
            raise UsageError(f"{name} is not defined for Vertex AI endpoint")
    return HostedPaths(
        media_type=b"application/vnd.vertex-ai-triton.binary+json",
        health=routes[0],
        predict=routes[1],
        model=model,
        redirect=b"x-vertex-ai-triton-redirect",
    )
