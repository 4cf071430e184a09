"""gRPC clients on one connection each, made by grpcio: unary calls, many at a time, and compressed ones."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt

from tests.serving.live import SERVICE
from tests.soak.kinds.over_http import check_double, random_rows
from tests.soak.traffic import Target, expect
from tpx.protocol import messages
from tpx.protocol.tensors import Tensor

TIMEOUT_S = 30
AT_ONCE = 8


@contextmanager
def channel_to(target: Target) -> Iterator[Any]:
    """A connection of its own: by default grpcio gives all channels of a process the same one."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(f"127.0.0.1:{target.grpc_port}", options) as channel:
        yield channel


def infer_call(channel: Any) -> Any:
    """ModelInfer, from bytes to bytes."""
    return channel.unary_unary(SERVICE + "ModelInfer")


def message(model: str, rows: npt.NDArray[np.float32], request_id: str = "") -> bytes:
    """A serialized request."""
    request = messages.ModelInferRequest(model_name=model, id=request_id)
    tensor = Tensor.from_numpy("x", rows)
    request.inputs.add(name="x", datatype="FP32", shape=tensor.shape)
    request.raw_input_contents.append(bytes(tensor.data))
    data: bytes = request.SerializeToString()
    return data


def output_of(response: Any) -> npt.NDArray[np.float32]:
    """The one output of a ModelInferResponse."""
    expect(len(response.raw_output_contents) == 1, f"{len(response.raw_output_contents)} outputs, not one")
    return np.frombuffer(response.raw_output_contents[0], np.float32).reshape(response.outputs[0].shape)


def unary(target: Target, rng: np.random.Generator) -> Iterator[int]:
    """One call after the other, now and then a large one or a compressed one."""
    with channel_to(target) as channel:
        infer = infer_call(channel)
        while True:
            rows = random_rows(rng, large=0.02)
            request_id = str(rng.integers(1 << 60)) if rng.random() < 0.5 else ""
            packed = grpc.Compression.Gzip if rng.random() < 0.1 else None
            data = infer(message("double", rows, request_id), timeout=TIMEOUT_S, compression=packed)
            response = messages.ModelInferResponse.FromString(data)
            expect(response.id == request_id, f"request '{request_id}' got the answer of '{response.id}'")
            check_double(output_of(response), rows, "gRPC")
            yield 1


def at_once(target: Target, rng: np.random.Generator) -> Iterator[int]:
    """Several calls in flight on one connection: each gets its own answer."""
    with channel_to(target) as channel:
        infer = infer_call(channel)
        while True:
            sent = [random_rows(rng) for _ in range(AT_ONCE)]
            models = [("double", "busy")[rows.shape[1] == 2] for rows in sent]
            calls = [
                infer.future(message(model, rows), timeout=TIMEOUT_S)
                for model, rows in zip(models, sent, strict=True)
            ]
            for rows, call in zip(sent, calls, strict=True):
                response = messages.ModelInferResponse.FromString(call.result())
                check_double(output_of(response), rows, "gRPC, many at a time")
            yield AT_ONCE
