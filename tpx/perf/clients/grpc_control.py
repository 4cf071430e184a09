"""The methods of the v2 protocol over gRPC."""

import logging
import ssl
from typing import Any

from google.protobuf.json_format import MessageToDict, ParseDict

from tpx.errors import Code, ResponseError, WireError
from tpx.perf.clients.base import brief
from tpx.perf.clients.control import ASK_S
from tpx.perf.clients.endpoint import Endpoint
from tpx.protocol import messages, model_config
from tpx.protocol.grpc import client as wire
from tpx.protocol.grpc.client import GrpcClientConnection
from tpx.protocol.json_values import JsonObject

log = logging.getLogger(__name__)
SERVICE = "/inference.GRPCInferenceService/"


def metadata(endpoint: Endpoint) -> dict[str, str | bytes]:
    """Return the user's headers as gRPC metadata: names in lower case, bytes for those ending in `-bin`."""
    pairs = ((h.name.lower(), h.value.strip()) for h in endpoint.headers)
    return {name: value.encode() if name.endswith("-bin") else value for name, value in pairs}


class GrpcCaller:
    """Calls methods of one service over a connection that is opened on first use."""

    def __init__(self, endpoint: Endpoint, tls: ssl.SSLContext | None = None, service: str = SERVICE) -> None:
        self.endpoint = endpoint
        self._tls = tls
        self._service = service
        self._connection: GrpcClientConnection | None = None

    async def connected(self) -> GrpcClientConnection:
        """Return the connection, opening it if needed. Raises WireError if nothing listens."""
        if self._connection is None or self._connection.closing:
            self._connection = await wire.connect(self.endpoint.host, self.endpoint.port, tls=self._tls)
        return self._connection

    async def call(self, method: str, request: Any, response: Any, timeout_s: float = ASK_S) -> Any:
        """Return a message of type `response`. Raises ResponseError with the server's message."""
        connection, path, sent = await self.connected(), self._service + method, request.SerializeToString()
        try:
            data = await connection.unary(path, sent, metadata(self.endpoint), timeout_s=timeout_s)
        except ResponseError as exc:
            log.debug("%s(%s): %s, %s", method, brief(str(request)), exc.code.value, exc.message)
            if exc.code is Code.UNAVAILABLE and "connection" in exc.message.lower():
                raise WireError(
                    exc.message
                ) from exc  # the connection failed; this is not the server's status
            raise
        answer = response.FromString(bytes(data))
        log.debug("%s(%s): %s", method, brief(str(request)), brief(str(answer)))
        return answer

    async def close(self) -> None:
        if self._connection is not None:
            self._connection.close()


class GrpcMethodCaller(GrpcCaller):
    """Implements MethodCaller."""

    hint = ""

    async def ask(
        self,
        method: str,
        name: str = "",
        version: str = "",
        body: JsonObject | None = None,
        timeout_s: float = ASK_S,
    ) -> JsonObject:
        members = _convert_body(method, body or {})
        if name:
            members["model_name" if method.startswith("RepositoryModel") else "name"] = name
        if version:
            members["version"] = version
        request = ParseDict(members, getattr(messages, f"{method}Request")())
        answer = await self.call(method, request, getattr(messages, f"{method}Response"), timeout_s)
        if method == "ModelConfig":
            return model_config.to_json(answer.config)
        # same members as HTTP's JSON, except that 64-bit integers are strings
        return dict(MessageToDict(answer, preserving_proto_field_name=True))


def _convert_body(method: str, body: JsonObject) -> JsonObject:
    """Convert the members of HTTP's body to those of the request's message."""
    if method == "TraceSetting":
        settings = {name: {"value": v if isinstance(v, list) else [v]} for name, v in body.items()}
        return {"settings": settings}
    fields = dict(body)
    if "raw_handle" in body:
        fields["raw_handle"] = body["raw_handle"]["b64"]
    if "parameters" in body:
        fields["parameters"] = {name: {"string_param": v} for name, v in body["parameters"].items()}
    return fields
