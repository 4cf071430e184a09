"""What reads whole messages: v2 requests as JSON and protobuf, tensors of strings, configurations.

Where the standard library or protobuf reads the same, it must find the same in it.
"""

import json
import math
import struct
from contextlib import suppress
from typing import Any

from google.protobuf import text_format
from google.protobuf.message import DecodeError

from tests.fuzz.base import Target
from tpx.errors import ConfigError, InvalidRequest, RequestError, TpxError
from tpx.protocol import messages, model_config, v2_json, v2_protobuf
from tpx.protocol.compression import inflate
from tpx.protocol.datatypes import BY_NAME
from tpx.protocol.tensors import Tensor, decode_bytes, encode_bytes
from tpx.protocol.v2 import DecodedRequest
from tpx.serving.frontends import generate_json
from tpx.serving.repository import configuration, scheduling
from tpx.serving.signature import Signature

LIMIT = 1 << 16
FIXED = {name: kind.size for name, kind in BY_NAME.items() if kind.size}

_X = {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2.5]}
REQUESTS: tuple[Any, ...] = (
    {"inputs": [_X]},
    {"id": "a", "parameters": {"priority": 1, "k": "v"}, "inputs": [_X], "outputs": [{"name": "y"}]},
    {"inputs": [{**_X, "datatype": "INT64", "data": [[1], [-(2**63)]]}]},
    {"inputs": [{**_X, "datatype": "UINT8", "shape": [3], "data": [0, 255, 7]}]},
    {"inputs": [{**_X, "datatype": "BOOL", "data": [True, False]}]},
    {"inputs": [{**_X, "datatype": "BYTES", "data": ["a", "\u00e9\u65e5"]}]},
    {"inputs": [{**_X, "data": [float("nan"), float("inf")]}]},
    {"outputs": [{"name": "y", "parameters": {"classification": 3, "binary_data": True}}], "inputs": []},
    {"inputs": [{**_X, "parameters": {"shared_memory_region": "r", "shared_memory_byte_size": 8}}]},
)
JSON_REQUESTS = tuple(json.dumps(value).encode() for value in REQUESTS)


def run_v2_json(data: bytes) -> None:
    """A request that we take is JSON, and its tensors are those that json finds."""
    try:
        ours = v2_json.decode_infer_request("m", data, None, LIMIT)
    except InvalidRequest:
        return
    _check_sizes(ours)
    value = json.loads(data.decode(errors="replace"))  # members that nobody reads may be anything
    inputs = value["inputs"]
    assert [tensor.name for tensor in ours.inputs] == [item["name"] for item in inputs]
    assert [list(tensor.shape) for tensor in ours.inputs] == [item["shape"] for item in inputs]
    shared = {id(tensor) for tensor, _ in ours.shared_inputs}
    for tensor, item in zip(ours.inputs, inputs, strict=True):
        if id(tensor) not in shared:
            _check_values(tensor, list(_leaves(item["data"])))


def _leaves(value: Any) -> Any:
    if isinstance(value, list):
        for item in value:
            yield from _leaves(item)
    else:
        yield value


def _check_sizes(request: DecodedRequest) -> None:
    """A tensor of numbers has the bytes that its shape says; nothing is larger than allowed."""
    shared = {id(tensor) for tensor, _ in request.shared_inputs}
    for tensor in request.inputs:
        if tensor.datatype in FIXED and id(tensor) not in shared and request.tensor_offset < 0:
            assert len(tensor.data) == math.prod(tensor.shape) * FIXED[tensor.datatype] <= LIMIT


def _check_values(tensor: Tensor, expected: list[Any]) -> None:
    if tensor.datatype == "BYTES":
        assert decode_bytes(tensor.data, len(expected)) == [text.encode() for text in expected]
    elif tensor.datatype == "FP64":
        got = struct.unpack(f"<{len(expected)}d", bytes(tensor.data))
        assert all(a == b or (a != a and b != b) for a, b in zip(got, map(float, expected), strict=True))
    elif tensor.datatype not in ("FP32", "FP16", "BF16"):
        assert tensor.numpy().ravel().tolist() == expected


BINARY = tuple(
    len(head).to_bytes(2, "big") + head + bytes(16)
    for head in (
        json.dumps(
            {
                "inputs": [
                    {"name": "x", "datatype": kind, "shape": [2], "parameters": {"binary_data_size": size}}
                ]
            }
        ).encode()
        for kind, size in (("FP32", 8), ("INT64", 16), ("BYTES", 16), ("FP16", 4))
    )
)


def run_v2_binary(data: bytes) -> None:
    """Tensors behind a head are pieces of what is there, one behind the other, and all of it."""
    size, body = int.from_bytes(data[:2], "big"), data[2:]
    try:
        ours = v2_json.decode_infer_request("m", body, size, LIMIT)
    except InvalidRequest:
        return
    views = [tensor.data for tensor in ours.inputs if isinstance(tensor.data, memoryview)]
    assert body.endswith(b"".join(view for view in views if view.obj is body))


STRINGS = (
    encode_bytes([b"a", b"", b"hello"]) + b"\x03",
    encode_bytes([b"x" * 300]) + b"\x01",
    b"\xff\xff\xff\xffab\x01",
    b"\x00",
)


def run_strings(data: bytes) -> None:
    """The last byte is how many strings there must be; a plain loop finds the same ones."""
    count, data = (data[-1], data[:-1]) if data else (0, b"")
    expected: list[bytes] | None = []
    at = 0
    while expected is not None and at < len(data):
        size = int.from_bytes(data[at : at + 4], "little")
        whole = at + 4 <= len(data) and at + 4 + size <= len(data)
        expected = [*expected, data[at + 4 : at + 4 + size]] if whole else None
        at += 4 + size
    try:
        assert decode_bytes(data, count) == expected
    except InvalidRequest:
        assert expected is None or len(expected) != count


def _protobuf_seeds() -> tuple[bytes, ...]:
    request = messages.ModelInferRequest(model_name="m", model_version="1", id="i")
    request.inputs.add(name="x", datatype="FP32", shape=[1, 2]).contents.fp32_contents.extend([1, 2])
    request.outputs.add(name="y").parameters["classification"].int64_param = 3
    request.parameters["priority"].int64_param = 1
    raw = messages.ModelInferRequest(model_name="m")
    raw.inputs.add(name="x", datatype="BYTES", shape=[1])
    raw.inputs.add(name="z", datatype="INT8", shape=[3])
    raw.raw_input_contents.extend([encode_bytes([b"a"]), b"abc"])
    shared = messages.ModelInferRequest(model_name="m")
    parameters = shared.inputs.add(name="x", datatype="FP32", shape=[2]).parameters
    parameters["shared_memory_region"].string_param = "r"
    parameters["shared_memory_byte_size"].int64_param = 8
    return tuple(message.SerializeToString() for message in (request, raw, shared))


def run_v2_protobuf(data: bytes) -> None:
    """A message that we take is one to protobuf, and means the same to it."""
    try:
        ours = v2_protobuf.decode_infer_request(data)
    except InvalidRequest:
        return
    try:
        theirs = messages.ModelInferRequest.FromString(data)
    except DecodeError:
        raise AssertionError("protobuf refuses what we take") from None
    assert (ours.model_name, ours.request_id) == (theirs.model_name, theirs.id)
    assert [tensor.name for tensor in ours.inputs] == [item.name for item in theirs.inputs]
    raw = list(theirs.raw_input_contents)
    if raw and not ours.shared_inputs:
        assert [bytes(tensor.data) for tensor in ours.inputs] == raw


CONFIGS = (
    b'name: "m" backend: "onnxruntime" max_batch_size: 8 dynamic_batching { preferred_batch_size: [ 2, 4 ] }',
    b"input [{ name: 'x' data_type: TYPE_FP32 dims: [ -1, 3 ] reshape { shape: [ 3 ] } }] "
    b"output [{ name: 'y' data_type: TYPE_STRING dims: [ 1 ] label_filename: 'l' }]",
    b"instance_group [{ count: 2 kind: KIND_CPU gpus: [ 0 ] }] "
    b"version_policy { specific { versions: [1, 3] } }",
    b'parameters { key: "a" value { string_value: "b\\n\\x00\\377" } } # a comment\n'
    b'metric_tags { key: "k" value: "v" }',
    b"ensemble_scheduling { step [{ model_name: 'a' input_map { key: 'b' value: 'c' } }] } "
    b"platform: 'ensemble'",
    b"sequence_batching { direct {} "
    b"control_input [{ name: 'S' control [{ kind: 0 int32_false_true: [0, 1] }] }] }",
)


def run_config(data: bytes) -> None:
    """A text is a configuration, which survives being written and read again, or an error that names it."""
    try:
        config = model_config.parse(data.decode(), "config.pbtxt")
    except UnicodeDecodeError:
        return
    except ConfigError as exc:
        if not exc.message.startswith("config.pbtxt"):
            raise AssertionError("which file?") from exc
        return
    again = text_format.Parse(text_format.MessageToString(config), messages.ModelConfig())
    assert again.SerializeToString(deterministic=True) == config.SerializeToString(deterministic=True)
    _check(config)


def run_json_config(data: bytes) -> None:
    """The same for a configuration as JSON."""
    with suppress(ConfigError):
        config = model_config.from_json(data)
        json.dumps(model_config.to_json(config))
        _check(config)


def _check(config: Any) -> None:
    """What a server makes of a configuration, as far as it needs no model for it."""
    with suppress(TpxError):
        configuration.fill_backend(config, None)
        configuration.validate_instance_groups(config)
        scheduling.fill_batching(config)
        configuration.validate(config)


JSON_CONFIGS = (
    b'{"name": "m", "backend": "onnxruntime", "max_batch_size": 8, "input": [{"name": "x", "dims": ["-1"]}]}',
    b'{"instance_group": [{"count": 1, "kind": "KIND_CPU"}], "parameters": {"a": {"string_value": "b"}}}',
    b'{"dynamic_batching": {"preferred_batch_size": [4], "default_queue_policy": {"max_queue_size": 3}}}',
)

_SIGNATURE = Signature.of(
    model_config.parse(
        "name: 'm' max_batch_size: 4 "
        "input [{ name: 'x' data_type: TYPE_FP32 dims: [ -1 ] }] "
        "input [{ name: 's' data_type: TYPE_STRING dims: [ 1 ] }] "
        "output [{ name: 'y' data_type: TYPE_FP32 dims: [ -1 ] }]",
        "test",
    ),
    {},
)
FLAT = (
    b'{"id": "a", "x": [1, 2, 3], "s": "hello", "temperature": 0.5, "stream": false}',
    b'{"x": 1, "s": ["a"], "parameters": {"k": 1, "s": "b"}}',
    b'{"x": [], "s": null, "y": {}}',
)


def run_generate(data: bytes) -> None:
    """A flat object is a request, whose strings are text, or an error."""
    try:
        ours = generate_json.decode(data, _SIGNATURE, 1000)
    except RequestError:
        return
    assert isinstance(json.loads(data), dict)
    ours.request_id.encode()
    for key, value in ours.parameters.items():
        f"{key}{value}".encode()
    _check_sizes(ours)


PACKED = (
    b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\xff\xab\xae\x05\x00C\xbf\xa6\xa3\x02\x00\x00\x00",
    b"x\x9c\xab\xae\x05\x00\x01u\x00\xf9",
    b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\xff" + b"\xab" * 40,
)


def run_inflate(data: bytes) -> None:
    """What comes out is never more than was allowed."""
    for encoding in ("gzip", "deflate"):
        with suppress(InvalidRequest):
            assert len(inflate(data, encoding, 1000)) <= 1000


TARGETS = (
    Target(name="v2_json", seeds=JSON_REQUESTS, run=run_v2_json, examples=200),
    Target(name="v2_binary", seeds=BINARY, run=run_v2_binary, examples=200),
    Target(name="strings", seeds=STRINGS, run=run_strings, examples=200),
    Target(name="v2_protobuf", seeds=_protobuf_seeds(), run=run_v2_protobuf, examples=200),
    Target(name="config", seeds=CONFIGS, run=run_config, examples=150),
    Target(name="json_config", seeds=JSON_CONFIGS, run=run_json_config, examples=150),
    Target(name="generate", seeds=FLAT, run=run_generate, examples=150),
    Target(name="inflate", seeds=PACKED, run=run_inflate, examples=200),
)
