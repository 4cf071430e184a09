"""TensorFlow Serving's PredictionService, with grpcio on the other side and TensorFlow's own messages."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import pytest

from tests.perf.clients.running import level, ran
from tpx.errors import MeasurementError, UsageError
from tpx.perf.clients.tfserving import DATATYPES, MESSAGES, SERVICE

SIGNATURES = {
    "serving_default": {"x": (1, [-1, 3]), "words": (7, [-1, 1])},
    "fixed": {"x": (9, [2])},
    "strange": {"x": (8, [2])},
}


class Service(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Answers as TensorFlow Serving does."""

    def __init__(self) -> None:
        self.requests: list[Any] = []

    def service(self, details: Any) -> Any:
        assert details.method.startswith(SERVICE)
        verb = details.method.rsplit("/", 1)[1]
        return grpc.unary_unary_rpc_method_handler(
            {"Predict": self.predict, "GetModelMetadata": self.describe}[verb]
        )

    def describe(self, request: bytes, context: Any) -> bytes:
        asked = MESSAGES["GetModelMetadataRequest"].FromString(request)
        assert list(asked.metadata_field) == ["signature_def"]
        if asked.model_spec.name != "net":
            context.abort(
                grpc.StatusCode.NOT_FOUND, f"Servable not found for request: {asked.model_spec.name}"
            )
        signatures = MESSAGES["SignatureDefMap"]()
        for name, inputs in SIGNATURES.items():
            for key, (dtype, dims) in inputs.items():
                info = signatures.signature_def[name].inputs[key]
                info.dtype = dtype
                for size in dims:
                    info.tensor_shape.dim.add(size=size)
        response = MESSAGES["GetModelMetadataResponse"]()
        response.model_spec.name = "net"
        response.model_spec.version.value = 7
        response.metadata["signature_def"].value = signatures.SerializeToString()
        return bytes(response.SerializeToString())

    def predict(self, request: bytes, context: Any) -> bytes:
        self.requests.append(MESSAGES["PredictRequest"].FromString(request))
        if self.requests[-1].model_spec.version.value == 9:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no version 9")
        return bytes(MESSAGES["PredictResponse"]().SerializeToString())


@contextmanager
def tfserving(port: int = 0) -> Iterator[tuple[str, list[Any]]]:
    """A running service: host:port, and the requests that it has had."""
    with ThreadPoolExecutor(4) as pool:
        server = grpc.server(pool)
        service = Service()
        server.add_generic_rpc_handlers((service,))
        port = server.add_insecure_port(f"127.0.0.1:{port}")
        server.start()
        try:
            yield f"127.0.0.1:{port}", service.requests
        finally:
            server.stop(None).wait(5)


KIND = ("--service-kind", "tfserving", "-i", "grpc", "-m", "net", "--request-count", "4")


@pytest.mark.slow
def test_a_batch_is_sent_in_tensorflows_form() -> None:
    with tfserving() as (url, requests):
        result = level(*KIND, "-u", url, "-b", "2", "--string-data", "hello", "--concurrency-range", "2")
    assert (result.requests, result.failed) == (4, 0)
    first = requests[0]
    assert (first.model_spec.name, first.model_spec.signature_name) == ("net", "serving_default")
    assert not first.model_spec.HasField("version")
    x, words = first.inputs["x"], first.inputs["words"]
    assert (x.dtype, [d.size for d in x.tensor_shape.dim], len(x.tensor_content)) == (1, [2, 3], 24)
    assert (words.dtype, list(words.string_val), words.tensor_content) == (7, [b"hello"] * 2, b"")


def test_a_signature_is_chosen_by_its_name() -> None:
    with tfserving() as (url, requests):
        level(*KIND, "-u", url, "--model-signature-name", "fixed", "-x", "7")
    assert (requests[0].model_spec.signature_name, requests[0].model_spec.version.value) == ("fixed", 7)
    assert [d.size for d in requests[0].inputs["x"].tensor_shape.dim] == [2]


@pytest.mark.slow
def test_errors_have_the_services_words() -> None:
    with tfserving() as (url, _):
        (error,) = level(*KIND, "-u", url, "-x", "9").errors
        assert (error.code, error.message) == ("gRPC INVALID_ARGUMENT", "no version 9")
        with pytest.raises(MeasurementError, match="failed to get model metadata: Servable not found"):
            ran(*KIND, "-u", url, "-m", "other")
        with pytest.raises(
            MeasurementError, match=r"no signature 'x' \(has: fixed, serving_default, strange\)"
        ):
            ran(*KIND, "-u", url, "--model-signature-name", "x")
        with pytest.raises(MeasurementError, match="the datatype 'DataType 8 of TensorFlow'"):
            ran(*KIND, "-u", url, "--model-signature-name", "strange")
        with pytest.raises(UsageError, match="TensorFlow Serving versions are numbers"):
            ran(*KIND, "-u", url, "-x", "latest")


def test_datatypes_and_messages_are_tensorflows_own() -> None:
    tensor = pytest.importorskip("tensorflow.core.framework.tensor_pb2").TensorProto
    types = pytest.importorskip("tensorflow.core.framework.types_pb2").DataType
    names = {"FP32": "FLOAT", "FP64": "DOUBLE", "BYTES": "STRING", "BF16": "BFLOAT16", "FP16": "HALF"}
    for name, number in DATATYPES.items():
        assert types.Value(f"DT_{names.get(name, name)}") == number
    message = MESSAGES["TensorProto"](dtype=1, tensor_content=b"12345678", string_val=[b"a"])
    message.tensor_shape.dim.add(size=2)
    theirs = tensor.FromString(message.SerializeToString())
    assert (theirs.dtype, theirs.tensor_content, list(theirs.string_val)) == (1, b"12345678", [b"a"])
    assert [dim.size for dim in theirs.tensor_shape.dim] == [2]
