"""TensorFlow Serving over gRPC: PredictionService's Predict, and GetModelMetadata for its inputs."""

import math
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from tpx.errors import MeasurementError, UsageError
from tpx.perf.clients.base import PLAIN, Failure, RequestFields, Template
from tpx.perf.clients.control import refusals
from tpx.perf.clients.endpoint import Connections, Endpoint
from tpx.perf.clients.grpc import GrpcSlots, call_failure, header_block
from tpx.perf.clients.grpc_control import GrpcCaller
from tpx.perf.clients.model import (
    ModelDescription,
    ModelKey,
    ServerDescription,
    Snapshot,
    model_description,
)
from tpx.protocol.grpc.client_call import GrpcResponse, PreparedCall
from tpx.protocol.grpc.framing import frame_message
from tpx.protocol.json_values import JsonObject
from tpx.protocol.messages import all_classes
from tpx.protocol.tensors import Tensor, decode_bytes

SERVICE = "/tensorflow.serving.PredictionService/"
ANY_BATCH = 1 << 30
"""Maximum batch of a model whose inputs have an open first dimension; the service does not report a limit."""

DATATYPES = {
    "FP32": 1, "FP64": 2, "INT32": 3, "UINT8": 4, "INT16": 5, "INT8": 6, "BYTES": 7, "INT64": 9, "BOOL": 10,
    "BF16": 14, "UINT16": 17, "FP16": 19, "UINT32": 22, "UINT64": 23,
}  # fmt: skip
"""TensorFlow's DataType numbers of the v2 protocol's datatypes."""
_NAMES = {number: name for name, number in DATATYPES.items()}


_SCHEMA = resources.files("tpx.perf.clients").joinpath("schema/tfserving.binpb").read_bytes()
(_FILE,) = descriptor_pb2.FileDescriptorSet.FromString(_SCHEMA).file
_POOL = descriptor_pool.DescriptorPool()
_POOL.Add(_FILE)
MESSAGES: JsonObject = {
    message.name: message_factory.GetMessageClass(
        _POOL.FindMessageTypeByName(f"{_FILE.package}.{message.name}")
    )
    for message in _FILE.message_type
}
"""Message classes by name; a private pool avoids clashes with other copies of the schema."""
_KEPT = [*all_classes(_POOL.FindFileByName(_FILE.name).message_types_by_name.values())]


def connect(endpoint: Endpoint) -> Connections:
    """Return the connections to TensorFlow Serving."""
    return Connections(TfServingClient(endpoint), TfServingControl(endpoint, SERVICE))


def _fill_spec(spec: Any, model: ModelKey, signature: str = "") -> None:
    spec.name, spec.signature_name = model.name, signature
    if model.version:
        if not model.version.isdecimal():
            raise UsageError(f"-x {model.version}: TensorFlow Serving versions are numbers")
        spec.version.value = int(model.version)


class TfServingClient(GrpcSlots):
    """Implements Client."""

    streams = False

    async def prepare(self, tensors: Sequence[Tensor], fields: RequestFields = PLAIN) -> PreparedCall:
        if fields.sequence or fields.shared_inputs:
            raise UsageError("--service-kind tfserving supports neither sequences nor shared memory")
        endpoint = self.endpoint
        request = MESSAGES["PredictRequest"]()
        _fill_spec(request.model_spec, endpoint.model, endpoint.service.model_signature_name)
        for tensor in tensors:
            target = request.inputs[tensor.name]
            target.dtype = DATATYPES[tensor.datatype]
            for size in tensor.shape:
                target.tensor_shape.dim.add(size=size)
            if tensor.datatype == "BYTES":
                target.string_val.extend(decode_bytes(tensor.data, math.prod(tensor.shape)))
            else:
                target.tensor_content = bytes(tensor.data)
        request.output_filter.extend(output.name for output in fields.outputs)
        message = request.SerializeToString(deterministic=True)
        return PreparedCall(
            header_block(endpoint, SERVICE + "Predict"), frame_message(message, endpoint.wire.compression)
        )

    async def template(self, tensors: Sequence[Tensor], fields: RequestFields) -> Template:  # noqa: ARG002
        raise UsageError("--service-kind tfserving does not support sequences")

    def failure(self, response: GrpcResponse) -> Failure:
        return call_failure(response)


class TfServingControl(GrpcCaller):
    """Implements Control."""

    async def server(self) -> ServerDescription:
        await self.connected()
        return ServerDescription(name="tfserving", version="", extensions=frozenset())

    async def model(self, model: ModelKey) -> ModelDescription:
        request = MESSAGES["GetModelMetadataRequest"](metadata_field=["signature_def"])
        _fill_spec(request.model_spec, model)
        with refusals("get model metadata"):
            response = await self.call("GetModelMetadata", request, MESSAGES["GetModelMetadataResponse"])
        signatures = MESSAGES["SignatureDefMap"].FromString(response.metadata["signature_def"].value)
        wanted = self.endpoint.service.model_signature_name
        if wanted not in signatures.signature_def:
            has = ", ".join(sorted(signatures.signature_def)) or "none"
            raise MeasurementError(
                f"model '{model.name}' has no signature '{wanted}' (has: {has}); choose one with "
                "--model-signature-name"
            )
        # through the v2 protocol's metadata form
        spec, signature = response.model_spec, signatures.signature_def[wanted]
        inputs = [_describe_tensor(name, entry) for name, entry in sorted(signature.inputs.items())]
        batches = bool(inputs) and all(entry["shape"][:1] == [-1] for entry in inputs)
        metadata = {
            "name": model.name,
            "versions": [str(spec.version.value)] if spec.HasField("version") else [],
            "platform": "tensorflow_serving",
            "inputs": inputs,
            "outputs": [_describe_tensor(name, entry) for name, entry in sorted(signature.outputs.items())],
        }
        return model_description(metadata, {"max_batch_size": ANY_BATCH if batches else 0})

    async def statistics(self, model: ModelKey) -> Snapshot:  # noqa: ARG002 (there are none)
        return {}

    async def set_trace(self, settings: Mapping[str, Sequence[str]]) -> None:  # noqa: ARG002
        raise MeasurementError("TensorFlow Serving has no trace settings")


def _describe_tensor(name: str, entry: Any) -> JsonObject:
    shape = [-1] if entry.tensor_shape.unknown_rank else [dim.size for dim in entry.tensor_shape.dim]
    datatype = _NAMES.get(entry.dtype, f"DataType {entry.dtype} of TensorFlow")
    return {"name": name, "datatype": datatype, "shape": shape}
