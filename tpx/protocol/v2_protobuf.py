"""The v2 protocol over gRPC: inference requests as protobuf, with raw tensors that are not copied.

The protobuf runtime copies every bytes field. Raw tensors are therefore cut out of the message by its
wire format: the part before `raw_input_contents` (field 7, the last) is parsed, the rest is viewed.
"""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
from google.protobuf.message import DecodeError

from tpx.errors import InvalidRequest
from tpx.protocol import messages
from tpx.protocol.datatypes import BY_NAME
from tpx.protocol.json_outline import LARGE_BYTES
from tpx.protocol.messages import InferParameter
from tpx.protocol.protobuf_contents import (
    MAX_FIELDS,
    NO_REQUEST,
    Contents,
    contents_in_pieces,
    cut_contents,
    split_raw_inputs,
)
from tpx.protocol.tensors import Buffer, Tensor, encode_bytes
from tpx.protocol.v2 import (
    SHARED_MEMORY_PARAMETERS,
    DecodedRequest,
    Parameter,
    RequestedOutput,
    SharedMemoryRange,
    check_string_count,
    shared_memory_range,
)

EMPTY_FINAL_RESPONSE = "triton_enable_empty_final_response"
_MAX_INT64 = 2**63 - 1
RAW_OUTPUT_TAG = 6 << 3 | 2

CONTENTS = {
    "BOOL": "bool_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    "INT64": "int64_contents",
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
"""Field of InferTensorContents that holds a datatype's values."""
_TYPES = {
    "bool_contents": "BOOL",
    "int_contents": "INT32",
    "int64_contents": "INT64",
    "uint_contents": "UINT32",
    "uint64_contents": "UINT64",
    "fp32_contents": "FP32",
    "fp64_contents": "FP64",
    "bytes_contents": "BYTES",
}
_NO_DATATYPE = "<invalid>"
"""Triton's name for an invalid datatype; no model expects it."""


def decode_infer_request(
    data: Buffer, split: tuple[int, list[memoryview]] | None = None, max_strings: int = _MAX_INT64
) -> DecodedRequest:
    """Decode a serialized ModelInferRequest; pass `split` if it was split already. Raises InvalidRequest."""
    head_size, raw = split or split_raw_inputs(data)
    message, contents = _parse_head(memoryview(data)[:head_size])
    tensors: list[Buffer] = [*message.raw_input_contents, *raw]
    decoded = DecodedRequest(
        model_name=message.model_name,
        model_version=message.model_version,
        request_id=message.id,
        parameters=_read_parameters(message.parameters),
        default_binary=True,
    )
    # meant for streams, but clients that share code for both also send it with unary calls
    wanted = decoded.parameters.pop(EMPTY_FINAL_RESPONSE, False)
    if not isinstance(wanted, bool):
        raise InvalidRequest(
            f"invalid value type for '{EMPTY_FINAL_RESPONSE}' parameter, expected bool_param."
        )
    decoded.empty_final_response = wanted
    if decoded.parameters and any(key.startswith("triton_") for key in decoded.parameters):
        raise InvalidRequest(
            "parameter keys starting with 'triton_' are reserved for Triton usage. Only the following keys "
            f"starting with 'triton_' are allowed: {EMPTY_FINAL_RESPONSE}"
        )
    decoded.inputs = _Inputs(message, tensors, contents, max_strings).tensors(decoded.shared_inputs)
    decoded.outputs = [_read_output(item) for item in message.outputs]
    if len(message.raw_input_contents) == 0 and len(tensors) == len(message.inputs):
        decoded.tensor_offset = head_size
    return decoded


def request_id_of(data: Buffer) -> str:
    """Return the ID of a request that was refused, or "" if it cannot be read."""
    try:
        return str(_parse_head(memoryview(data)[: split_raw_inputs(data)[0]])[0].id)
    except InvalidRequest:
        return ""


def _parse_head(head: Buffer) -> tuple[messages.ModelInferRequest, list[Contents | None]]:
    """Parse a message without its raw tensors. Returns it with the contents cut out if it is large."""
    contents: list[Contents | None] = []
    try:
        if len(head) > LARGE_BYTES:
            head, contents = cut_contents(head, MAX_FIELDS)
        return messages.ModelInferRequest.FromString(bytes(head)), contents
    except (DecodeError, IndexError) as exc:
        raise InvalidRequest(NO_REQUEST) from exc


# quoted: nested messages are classes only in protobuf's stubs
_Input: TypeAlias = "messages.ModelInferRequest.InferInputTensor"
_Output: TypeAlias = "messages.ModelInferRequest.InferRequestedOutputTensor"


class _Inputs:
    """Inputs of one message; those not in shared memory take the raw contents in order."""

    def __init__(
        self,
        message: messages.ModelInferRequest,
        raw: Sequence[Buffer],
        cut: Sequence[Contents | None],
        max_strings: int,
    ) -> None:
        self._message = message
        self._model = message.model_name
        self._count = len(raw)
        self._raw = iter(raw)
        self._cut = cut or [None] * len(message.inputs)
        """Contents cut out of each input before parsing."""
        self._max_strings = max_strings

    def tensors(self, shared: list[tuple[Tensor, SharedMemoryRange]]) -> list[Tensor]:
        """Return all inputs, and append those in shared memory to `shared`. Raises InvalidRequest."""
        out: list[Tensor] = []
        for item, cut in zip(self._message.inputs, self._cut, strict=True):
            datatype = item.datatype if item.datatype in BY_NAME else _NO_DATATYPE
            place = _read_memory_range(item, _read_parameters(item.parameters)) if item.parameters else None
            has_contents = cut is not None or item.HasField("contents")
            data: Buffer = b""
            if place is None and has_contents:
                data = self._encode_contents(item, datatype, cut)
            elif place is None:
                raw = next(self._raw, None)
                if raw is None:
                    raise InvalidRequest(
                        f"unable to find data for input tensor '{item.name}' for model '{self._model}' in "
                        "request."
                    )
                data = raw
            elif has_contents:
                raise InvalidRequest(
                    f"unexpected 'content' provided when using shared memory for input tensor '{item.name}' "
                    f"for model '{self._model}'"
                )
            tensor = Tensor(item.name, datatype, item.shape, data)
            if place is not None:
                shared.append((tensor, place))
            out.append(tensor)
        if next(self._raw, None) is not None:
            raise InvalidRequest(
                f"unexpected additional input data for model '{self._model}': {self._count} "
                f"raw_input_contents for {len(out) - len(shared)} inputs"
            )
        return out

    def _encode_contents(self, item: _Input, datatype: str, cut: Contents | None) -> Buffer:
        """Return the raw bytes of a tensor given as numbers or strings in the message."""
        if self._count:
            raise InvalidRequest(
                "contents field must not be specified when using raw_input_contents "
                f"for '{item.name}' for model '{self._model}'"
            )
        if cut is None:
            check_string_count(item.name, len(item.contents.bytes_contents), self._max_strings)
            return self._encode_typed(item, item.contents, datatype)
        parts = []
        strings = 0
        try:
            for piece in contents_in_pieces(cut):
                contents = messages.InferTensorContents.FromString(piece)
                strings += len(contents.bytes_contents)
                check_string_count(item.name, strings, self._max_strings)
                parts.append(self._encode_typed(item, contents, datatype))
        except (DecodeError, IndexError) as exc:
            raise InvalidRequest(NO_REQUEST) from exc
        return b"".join(parts)

    def _encode_typed(self, item: _Input, contents: messages.InferTensorContents, datatype: str) -> Buffer:
        field = CONTENTS.get(datatype)
        for other in _TYPES:
            if other != field and len(getattr(contents, other)):
                raise InvalidRequest(
                    f"unexpected explicit tensor data for input tensor '{item.name}' for model "
                    f"'{self._model}' of type '{_TYPES[other]}', expected datatype '{datatype}'"
                )
        if field is None:
            raise InvalidRequest(
                f"{datatype} data of input tensor '{item.name}' for model '{self._model}' must be sent as "
                "raw_input_contents"
            )
        values = getattr(contents, field)
        if datatype == "BYTES":
            return encode_bytes(values)
        if not values:
            return b""
        given = np.array(values, dtype=BY_NAME[_TYPES[field]].numpy)
        array = given.astype(BY_NAME[datatype].numpy, copy=False)
        if array is not given and not np.array_equal(array, given):
            raise InvalidRequest(
                f"explicit tensor data for input tensor '{item.name}' for model '{self._model}' is out of "
                f"range for {datatype}"
            )
        return array.data.cast("B")


def _read_output(item: _Output) -> RequestedOutput:
    parameters = _read_parameters(item.parameters)
    classes = parameters.pop("classification", 0)
    if type(classes) is not int:
        raise InvalidRequest("invalid value type for 'classification' parameter, expected int64_param")
    if classes < 0:
        raise InvalidRequest("invalid value for 'classification' parameter, expected >= 0")
    place = _read_memory_range(item, parameters)
    if place is not None:
        if classes:
            raise InvalidRequest("Output can't set both 'shared_memory_region' and 'classification'")
        for key in SHARED_MEMORY_PARAMETERS:
            parameters.pop(key, None)
    return RequestedOutput(name=item.name, classification=classes, parameters=parameters, shared_memory=place)


def _read_memory_range(
    item: "_Input | _Output", parameters: Mapping[str, Parameter]
) -> SharedMemoryRange | None:
    """Return the shared memory range of a tensor, or None. Its numbers must be int64_param, as in Triton."""
    return shared_memory_range(item.name, parameters, _make_type_error, range(-(2**63), 2**63))


def _make_type_error(tensor: str, key: str, kind: type) -> InvalidRequest:
    word = "string_param" if kind is str else "int64_param"
    return InvalidRequest(f"invalid value type for '{key}' parameter for tensor '{tensor}', expected {word}.")


def _read_parameters(raw: Mapping[str, messages.InferParameter]) -> dict[str, Parameter]:
    out: dict[str, Parameter] = {}
    for key, value in raw.items():
        which = value.WhichOneof("parameter_choice")
        if which is None:
            raise InvalidRequest(
                f"invalid value type for '{key}' parameter, "
                "expected int64_param, bool_param, or string_param."
            )
        out[key] = getattr(value, which)
    return out


def set_parameters(target: Mapping[str, InferParameter], parameters: Mapping[str, Parameter]) -> None:
    """Add parameters to a map of InferParameter."""
    for key, value in parameters.items():
        if isinstance(value, bool):
            target[key].bool_param = value
        elif isinstance(value, int):
            setattr(target[key], "uint64_param" if value > _MAX_INT64 else "int64_param", value)
        elif isinstance(value, float):
            target[key].double_param = value
        else:
            target[key].string_param = value
