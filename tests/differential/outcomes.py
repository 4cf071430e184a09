"""One request of `cases.yaml`, sent to a server, and what came back in a form that can be compared."""

import gzip
import http.client
import json
import re
import time
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import grpc
from google.protobuf.json_format import MessageToDict, ParseDict

from tpx.protocol import messages

SERVICE = "/inference.GRPCInferenceService/"
STREAM = "ModelStreamInfer"
TIMEOUT_S = 15
HEADERS = ("content-type", "inference-header-content-length", "content-encoding", "accept-encoding")
_PACK: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "deflate": zlib.compress}
_UNPACK: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.decompress, "deflate": zlib.decompress}

Case = Mapping[str, Any]


class Server:
    """Where to send."""

    def __init__(self, http_port: int, grpc_port: int) -> None:
        self._http_port = http_port
        self._channel = grpc.insecure_channel(f"127.0.0.1:{grpc_port}")

    def outcome(self, case: Case) -> Any:
        """What a case is answered with, less what the case says may differ."""
        time.sleep(case.get("wait_s", 0))
        seen = self._http(case) if "http" in case else self._grpc(case)
        seen = _without(seen, case.get("ignore", ()))
        return _shape(seen) if case.get("compare") == "shape" else seen

    def close(self) -> None:
        self._channel.close()

    # HTTP

    def _http(self, case: Case) -> dict[str, Any]:
        method, _, path = case["http"].partition(" ")
        body, headers = _body(case)
        connection = http.client.HTTPConnection("127.0.0.1", self._http_port, timeout=TIMEOUT_S)
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            data = answer.read()
        finally:
            connection.close()
        got = {name.lower(): text for name, text in answer.getheaders()}
        seen: dict[str, Any] = {name: got[name] for name in HEADERS if name in got}
        if "content-encoding" in got:
            data = _UNPACK[got["content-encoding"]](data)
        size = int(got.get("inference-header-content-length", len(data)))
        # of an error and of nothing at all the type differs (a listed deviation), and no client reads it
        if answer.status == 200 and data:
            seen["content-type"] = seen.get("content-type", "").lower().replace("; ", ";")
        else:
            seen.pop("content-type", None)
        seen |= {"status": answer.status, "body": _json_or_text(data[:size]), "tail": data[size:].hex()}
        # how many bytes a head has says nothing that the head does not say
        if "inference-header-content-length" in seen:
            seen["inference-header-content-length"] = "there"
        return seen

    # gRPC

    def _grpc(self, case: Case) -> dict[str, Any]:
        verb, service = case["grpc"], case.get("service", SERVICE)
        response = getattr(messages, case.get("response", f"{verb}Response"))
        requests = [self._message(case, item) for item in case.get("stream", [case])]
        metadata = list(case.get("metadata", {}).items())
        answers: list[Any] = []
        status, text = "OK", ""
        try:
            if verb == STREAM:
                call = self._channel.stream_stream(service + verb, lambda d: d, lambda d: d)
                for data in call(iter(requests), timeout=TIMEOUT_S, metadata=metadata):
                    answers.append(data)  # noqa: PERF402 (what came before an error counts)
            else:
                unary = self._channel.unary_unary(service + verb, lambda d: d, lambda d: d)
                answers = [unary(requests[0], timeout=TIMEOUT_S, metadata=metadata)]
        except grpc.RpcError as exc:
            status, text = exc.code().name, exc.details()
        return {
            "status": status,
            "details": text,
            "answers": [
                MessageToDict(
                    response.FromString(data),
                    preserving_proto_field_name=True,
                    always_print_fields_with_no_presence=True,
                )
                for data in answers
            ],
        }

    def _message(self, case: Case, item: Mapping[str, Any]) -> bytes:
        if "hex" in item:
            return bytes.fromhex(item["hex"])
        verb = case["grpc"]
        name = "ModelInferRequest" if verb == STREAM else case.get("request", f"{verb}Request")
        message = getattr(messages, name)()
        told = {key: content for key, content in item.get("message", {}).items() if key != "raw"}
        ParseDict(told, message)
        for data in item.get("message", {}).get("raw", ()):
            message.raw_input_contents.append(bytes.fromhex(data))
        serialized: bytes = message.SerializeToString()
        return serialized


def _body(case: Case) -> tuple[bytes | None, dict[str, str]]:
    headers = {name: str(text) for name, text in case.get("headers", {}).items()}
    body: bytes | None = None
    if "json" in case:
        body = json.dumps(case["json"]).encode()
    elif "body" in case:
        body = case["body"].encode()
    elif "hex" in case:
        body = bytes.fromhex(case["hex"])
    if "tail" in case:
        headers.setdefault("Inference-Header-Content-Length", str(len(body or b"")))
        body = (body or b"") + bytes.fromhex(case["tail"])
    if "pack" in case:
        headers.setdefault("Content-Encoding", case["pack"])
        body = _PACK[case["pack"]](body or b"")
    return body, headers


def _json_or_text(data: bytes) -> Any:
    try:
        return json.loads(data, object_pairs_hook=lambda pairs: pairs)
    except ValueError:
        return data.decode("latin-1")


def _without(seen: Any, ignored: Any) -> Any:
    """Less the values of these keys, wherever they are, and what matches `/pattern/` in texts."""
    patterns = [item.strip("/") for item in ignored if item.startswith("/")]
    names = {item for item in ignored if not item.startswith("/")}

    def clean(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: "*" if key in names else clean(item) for key, item in value.items()}
        if isinstance(value, list):
            return [clean(item) for item in value]
        if isinstance(value, tuple):
            return (value[0], "*" if value[0] in names else clean(value[1]))
        if isinstance(value, str):
            for pattern in patterns:
                value = re.sub(pattern, "*", value)
        return value

    return clean(seen)


def _shape(value: Any) -> Any:
    """Keys, their order and the kinds of values; of a list what its members have in common."""
    if isinstance(value, dict):
        return {key: _shape(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return (value[0], _shape(value[1]))
    if isinstance(value, list):
        if value and isinstance(value[0], tuple):
            return [_shape(item) for item in value]
        return [json.loads(text) for text in sorted({json.dumps(_shape(item)) for item in value})]
    return type(value).__name__
