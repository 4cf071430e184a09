"""The methods of the v2 protocol over gRPC."""

import logging
from typing import Any

from google.protobuf.json_format import MessageToDict, ParseDict

from tpx.errors import Code, ResponseError, WireError
from tpx.perf.clients.base import brief
from tpx.perf.clients.control import ASK_S, UNNAMED
from tpx.perf.clients.endpoint import Endpoint
from tpx.perf.clients.model import ModelKey
from tpx.perf.clients.tls import tls_context
from tpx.perf.clients.transport import GrpcCarrier, connect_grpc
from tpx.protocol import messages, model_config
from tpx.protocol.json_values import JsonObject

log = logging.getLogger(__name__)
SERVICE = "/inference.GRPCInferenceService/"


def metadata(endpoint: Endpoint) -> dict[str, str | bytes]:
    """Return the user's headers as gRPC metadata: names in lower case, bytes for those ending in `-bin`."""
    pairs = ((h.name.lower(), h.value.strip()) for h in endpoint.headers)
    return {name: value.encode() if name.endswith("-bin") else value for name, value in pairs}


class GrpcCaller:
    """Calls methods of one service over a connection that is opened on first use."""

    def __init__(self, endpoint: Endpoint, service: str = SERVICE) -> None:
        self.endpoint = endpoint
        self._tls = tls_context(endpoint.tls)
        self._service = service
        self._connection: GrpcCarrier | None = None

    async def connected(self) -> GrpcCarrier:
        """Return the connection, opening it if needed. Raises WireError if nothing listens."""
        if self._connection is None or self._connection.closing:
            self._connection = await connect_grpc(self.endpoint, self._tls)
        return self._connection

    async def call(self, method: str, request: Any, response: Any, timeout_s: float = ASK_S) -> Any:
        """Return a message of type `response`. Raises ResponseError with the server's message."""
        connection, path, sent = await self.connected(), self._service + method, request.SerializeToString()
        try:
            data = await connection.unary(path, sent, metadata(self.endpoint), timeout_s=timeout_s)
        except ResponseError as exc:
            log.debug("%s(%s): %s, %s", method, brief(str(request)), exc.code.value, exc.message)
            if exc.code is Code.UNAVAILABLE and "connection" in exc.message.lower():
                raise WireError(exc.message) from exc  # not the server's status: the connection failed
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
        self, method: str, key: ModelKey = UNNAMED, body: JsonObject | None = None, timeout_s: float = ASK_S
    ) -> JsonObject:
        members = dict(body or {})
        if method == "TraceSetting":
            settings = {name: {"value": v if isinstance(v, list) else [v]} for name, v in members.items()}
            members = {"settings": settings}
        if "raw_handle" in members:
            members["raw_handle"] = members["raw_handle"]["b64"]
        if "parameters" in members:
            members["parameters"] = {name: {"string_param": v} for name, v in members["parameters"].items()}
        if key.name:
            members["model_name" if method.startswith("RepositoryModel") else "name"] = key.name
        if key.version:
            members["version"] = key.version
        request = ParseDict(members, getattr(messages, f"{method}Request")())
        answer = await self.call(method, request, getattr(messages, f"{method}Response"), timeout_s)
        if method == "ModelConfig":
            return model_config.to_json(answer.config)
        # same members as HTTP's JSON, except that 64-bit integers are strings
        return dict(MessageToDict(answer, preserving_proto_field_name=True))
