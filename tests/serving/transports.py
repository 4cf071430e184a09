"""Both transports of the protocol as tests use them: one request, the same answer or refusal over each."""

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import grpc
import numpy as np
from google.protobuf.message import Message

from tests.serving.live import SERVICE, Answer, Channel, Live
from tpx.protocol import messages
from tpx.protocol.datatypes import BY_NAME
from tpx.protocol.tensors import Tensor, encode_bytes

CODES = {
    400: "INVALID_ARGUMENT",
    404: "NOT_FOUND",
    413: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    501: "UNIMPLEMENTED",
    503: "UNAVAILABLE",
}
"""gRPC's name for what HTTP says with a status."""
_PATHS = {
    "ServerMetadata": "/v2",
    "ModelMetadata": "/v2/models/{model}",
    "ModelConfig": "/v2/models/{model}/config",
    "ModelStatistics": "/v2/models/{model}/stats",
    "RepositoryIndex": "/v2/repository/{repository}index",
    "RepositoryModelLoad": "/v2/repository/{repository}models/{model}/load",
    "RepositoryModelUnload": "/v2/repository/{repository}models/{model}/unload",
}
_INSIDE = {"ModelConfig": "config", "RepositoryIndex": "models"}
"""Members of gRPC's answers that are all of HTTP's."""
_PARAMETERS = {
    bool: "bool_param",
    int: "int64_param",
    float: "double_param",
    str: "string_param",
    bytes: "bytes_param",
}


class Refused(Exception):
    """A request that was answered with an error."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """An input as a test states it; its shape, and its bytes if they are given, need not fit its values.

    With `parameters` it has no data: they say where its data is.
    """

    name: str = "x"
    datatype: str = "FP32"
    shape: Sequence[int] = (1, 2)
    values: Sequence[Any] = (1, 2)
    raw: bytes | None = None
    parameters: Mapping[str, Any] | None = None

    @property
    def data(self) -> bytes:
        if self.parameters is not None:
            return b""
        if self.raw is not None:
            return self.raw
        if self.datatype == "BYTES":
            return encode_bytes(self.values)
        known = BY_NAME.get(self.datatype)
        return np.array(self.values, np.float32 if known is None else known.numpy).tobytes()

    @property
    def json(self) -> list[Any]:
        return [value.decode() if isinstance(value, bytes) else value for value in self.values]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """The answer to a request for inference."""

    model: str
    version: str
    request_id: str
    outputs: Sequence[Tensor]

    @property
    def values(self) -> dict[str, Any]:
        """The values of each output, nested."""
        return {tensor.name: tensor.numpy().tolist() for tensor in self.outputs}


class Transport(Protocol):
    """A client of one transport. Every method raises Refused."""

    name: str

    def infer(
        self,
        model: str,
        *given: Given,
        version: str = "",
        request_id: str = "",
        outputs: Sequence[Mapping[str, Any]] = (),
        parameters: Mapping[str, Any] | None = None,
    ) -> Answered:
        """Ask for inference; an output is its name and, if need be, its parameters."""

    def call(self, verb: str, model: str = "", version: str = "", **fields: Any) -> Any:
        """Call a verb by gRPC's name; the answer is an object with HTTP's members."""

    def settings(self, verb: str, model: str = "", **changes: Any) -> dict[str, Any]:
        """Change settings of traces or logs, None clears one; return all of them as HTTP shows them."""

    def ready(self, model: str = "", version: str = "") -> bool:
        """Return whether the server, or a model, is ready."""


class OverHttp:
    """Implements Transport, with tensors as JSON or as bytes."""

    def __init__(self, live: Live, *, binary: bool) -> None:
        self.name = "HTTP" if binary else "HTTP JSON"
        self._live = live
        self._binary = binary

    def infer(
        self,
        model: str,
        *given: Given,
        version: str = "",
        request_id: str = "",
        outputs: Sequence[Mapping[str, Any]] = (),
        parameters: Mapping[str, Any] | None = None,
    ) -> Answered:
        request: dict[str, Any] = {"id": request_id} if request_id else {}
        request["inputs"] = [
            {"name": each.name, "datatype": each.datatype, "shape": list(each.shape), **self._data(each)}
            for each in given
        ]
        if outputs:
            request["outputs"] = [self._asked(**each) for each in outputs]
        request["parameters"] = {"binary_data_output": self._binary, **(parameters or {})}
        head = json.dumps(request).encode()
        tail = b"".join(each.data for each in given) if self._binary else b""
        sent = {"Inference-Header-Content-Length": str(len(head))} if self._binary else {}
        answer = _good(self._live.infer(model, head, tail, version, **sent))
        head_size = int(answer.headers.get("inference-header-content-length", len(answer.body)))
        told, tail = json.loads(answer.body[:head_size]), answer.body[head_size:]
        tensors = []
        for output in told["outputs"]:
            if "data" in output:
                data = Given(datatype=output["datatype"], values=_bytes(output["data"])).data
            else:
                size = output.get("parameters", {}).get("binary_data_size", 0)
                data, tail = tail[:size], tail[size:]
            tensors.append(Tensor(output["name"], output["datatype"], tuple(output["shape"]), data))
        return Answered(
            model=told["model_name"],
            version=told["model_version"],
            request_id=told.get("id", ""),
            outputs=tensors,
        )

    def _data(self, given: Given) -> dict[str, Any]:
        if given.parameters is not None:
            return {"parameters": given.parameters}
        return {"parameters": {"binary_data_size": len(given.data)}} if self._binary else {"data": given.json}

    def _asked(self, name: str, parameters: Mapping[str, Any] | None = None) -> dict[str, Any]:
        if any(key.startswith("shared_memory") for key in parameters or {}):
            return {"name": name, "parameters": parameters}
        return {"name": name, "parameters": {"binary_data": self._binary, **(parameters or {})}}

    def call(self, verb: str, model: str = "", version: str = "", **fields: Any) -> Any:
        repository = fields.pop("repository_name", "")
        path = _PATHS[verb].format(model=model, repository=f"{repository}/" if repository else "")
        path = path.replace("models//", "models/")
        if version:
            path = path.replace(f"/models/{model}", f"/models/{model}/versions/{version}")
        if verb.startswith("Repository"):
            if "parameters" in fields:
                fields["parameters"] = {
                    key: base64.b64encode(value).decode() if isinstance(value, bytes) else value
                    for key, value in fields["parameters"].items()
                }
            answer = _good(self._live.http("POST", path, json.dumps(fields).encode()))
        else:
            answer = _good(self._live.get(path))
        return answer.json if answer.body else None

    def settings(self, verb: str, model: str = "", **changes: Any) -> dict[str, Any]:
        start = f"/v2/models/{model}" if model else "/v2"
        path = "/v2/logging" if verb == "LogSettings" else f"{start}/trace/setting"
        if not changes:
            return dict(_good(self._live.get(path)).json)
        return dict(_good(self._live.http("POST", path, json.dumps(changes).encode())).json)

    def ready(self, model: str = "", version: str = "") -> bool:
        path = f"/v2/models/{model}" if model else "/v2/health"
        answer = self._live.get(f"{path}/versions/{version}/ready" if version else f"{path}/ready")
        assert answer.status in (200, 400)
        return answer.status == 200


def _bytes(values: Sequence[Any]) -> list[Any]:
    return [value.encode() if isinstance(value, str) else value for value in values]


def _good(answer: Answer) -> Answer:
    if answer.status == 200:
        return answer
    assert answer.headers["content-type"] == "application/json"
    assert list(answer.json) == ["error"]
    raise Refused(CODES[answer.status], answer.error)


class OverGrpc:
    """Implements Transport, with raw tensors."""

    name = "gRPC"

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def infer(
        self,
        model: str,
        *given: Given,
        version: str = "",
        request_id: str = "",
        outputs: Sequence[Mapping[str, Any]] = (),
        parameters: Mapping[str, Any] | None = None,
    ) -> Answered:
        request = messages.ModelInferRequest(model_name=model, model_version=version, id=request_id)
        for each in given:
            item = request.inputs.add(name=each.name, datatype=each.datatype, shape=each.shape)
            if each.parameters is None:
                request.raw_input_contents.append(each.data)
            else:
                set_parameters(item, each.parameters)
        set_parameters(request, parameters or {})
        for output in outputs:
            set_parameters(request.outputs.add(name=output["name"]), output.get("parameters", {}))
        answer = self._send("ModelInfer", request)
        assert not any(output.HasField("contents") for output in answer.outputs)
        raws = zip(answer.outputs, answer.raw_output_contents, strict=True)
        return Answered(
            model=answer.model_name,
            version=answer.model_version,
            request_id=answer.id,
            outputs=[Tensor(each.name, each.datatype, tuple(each.shape), raw) for each, raw in raws],
        )

    def call(self, verb: str, model: str = "", version: str = "", **fields: Any) -> Any:
        parameters = fields.pop("parameters", {})
        if model:
            fields["model_name" if verb.startswith("Repository") else "name"] = model
        if version:
            fields["version"] = version
        request = getattr(messages, f"{verb}Request")(**fields)
        set_parameters(request, parameters)
        answer = plain(self._send(verb, request))
        return answer[_INSIDE[verb]] if verb in _INSIDE else answer or None

    def settings(self, verb: str, model: str = "", **changes: Any) -> dict[str, Any]:
        request = getattr(messages, f"{verb}Request")(**({"model_name": model} if model else {}))
        for name, value in changes.items():
            setting = request.settings[name]
            setting.SetInParent()
            if verb == "LogSettings" and value is not None:
                setattr(setting, {**_PARAMETERS, int: "uint32_param"}[type(value)], value)
            elif value is not None:
                setting.value.extend([value] if isinstance(value, str) else value)
        answer = self._send(verb, request).settings
        if verb == "LogSettings":
            return {name: getattr(each, each.WhichOneof("parameter_choice")) for name, each in answer.items()}
        lists = {name: list(each.value) for name, each in answer.items()}
        return {name: each if name == "trace_level" else each[0] for name, each in lists.items()}

    def ready(self, model: str = "", version: str = "") -> bool:
        if model:
            return bool(self._channel.call("ModelReady", name=model, version=version).ready)
        return bool(self._channel.call("ServerReady").ready)

    def _send(self, verb: str, request: Any) -> Any:
        try:
            answer = self._channel.send(verb, request.SerializeToString(), SERVICE)
        except grpc.RpcError as exc:
            raise Refused(exc.code().name, exc.details()) from exc
        return getattr(messages, f"{verb}Response").FromString(answer)


TRANSPORTS = ("HTTP", "gRPC")
ENCODINGS = ("HTTP JSON", *TRANSPORTS)


@contextmanager
def connected(live: Live, name: str) -> Iterator[Transport]:
    """A client of a server: over HTTP, with tensors as bytes or as JSON, or over gRPC."""
    if name == "gRPC":
        with live.channel() as channel:
            yield OverGrpc(channel)
    else:
        yield OverHttp(live, binary=name == "HTTP")


def set_parameters(message: Any, parameters: Mapping[str, Any]) -> None:
    """Set parameters of a message, each by the type of its value."""
    for key, value in parameters.items():
        field = "uint64_param" if type(value) is int and value >= 2**63 else _PARAMETERS[type(value)]
        setattr(message.parameters[key], field, value)


def plain(message: Message) -> dict[str, Any]:
    """Return a message as HTTP shows it: all members but unset messages, and enums by name."""
    out: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            inner = field.message_type.fields_by_name["value"].message_type
            out[field.name] = {key: plain(each) if inner else each for key, each in value.items()}
        elif hasattr(value, "extend"):
            out[field.name] = [_plain_value(field, each) for each in value]
        elif field.message_type is None or message.HasField(field.name):
            out[field.name] = _plain_value(field, value)
    return out


def _plain_value(field: Any, value: Any) -> Any:
    if field.message_type is not None:
        return plain(value)
    return field.enum_type.values_by_number[value].name if field.enum_type is not None else value
