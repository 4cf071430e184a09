"""Requests of the v2 protocol over HTTP and gRPC, as clients encode them."""

from collections.abc import Mapping, Sequence

import orjson

from tpx.protocol import messages
from tpx.protocol.json_values import JsonObject, json_data
from tpx.protocol.tensors import Buffer, Tensor
from tpx.protocol.v2 import Parameter
from tpx.protocol.v2_protobuf import set_parameters


def encode_infer_request(
    inputs: Sequence[Tensor],
    *,
    request_id: str = "",
    outputs: Sequence[str] | None = None,
    binary: bool = True,
    parameters: Mapping[str, Parameter] | None = None,
) -> tuple[bytes, list[Buffer]]:
    """A request's JSON head and the raw tensors behind it; with `binary` False everything is in the JSON.

    `outputs` None asks for all of them, in the same form as the inputs.
    """
    items: list[JsonObject] = []
    tail: list[Buffer] = []
    for tensor in inputs:
        item: JsonObject = {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}
        if binary:
            item["parameters"] = {"binary_data_size": len(tensor.data)}
            tail.append(tensor.data)
        else:
            item["data"] = orjson.Fragment(json_data(tensor))
        items.append(item)
    head: JsonObject = {"id": request_id} if request_id else {}
    settings: dict[str, Parameter] = dict(parameters or {})
    if outputs is None and binary:
        settings["binary_data_output"] = True
    if settings:
        head["parameters"] = settings
    head["inputs"] = items
    if outputs is not None:
        head["outputs"] = [{"name": name, "parameters": {"binary_data": binary}} for name in outputs]
    return orjson.dumps(head), tail


def encode_grpc_request(
    model: str,
    version: str,
    inputs: Sequence[Tensor],
    *,
    request_id: str = "",
    outputs: Sequence[str] = (),
    parameters: Mapping[str, Parameter] | None = None,
) -> bytes:
    """A ModelInferRequest with raw tensors; without `outputs` it asks for all of them."""
    message = messages.ModelInferRequest(model_name=model, model_version=version, id=request_id)
    for tensor in inputs:
        message.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        message.raw_input_contents.append(bytes(tensor.data))
    for name in outputs:
        message.outputs.add(name=name)
    set_parameters(message.parameters, parameters or {})
    data: bytes = message.SerializeToString()
    return data
