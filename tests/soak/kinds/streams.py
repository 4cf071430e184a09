"""Streams: in order over gRPC, decoupled over gRPC, and server-sent events over HTTP."""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.serving.live import SERVICE
from tests.soak.kinds.over_grpc import TIMEOUT_S, channel_to, message, output_of
from tests.soak.kinds.over_http import Connection, check_double, random_rows
from tests.soak.traffic import Target, expect
from tpx.protocol import messages
from tpx.protocol.tensors import Tensor

REQUESTS = 10


def stream_call(channel: Any) -> Any:
    """ModelStreamInfer, from bytes to bytes."""
    return channel.stream_stream(SERVICE + "ModelStreamInfer")


def repeat_inputs(values: npt.NDArray[np.int32], delay_ms: int = 0) -> dict[str, npt.NDArray[Any]]:
    """The inputs of `repeat`: it answers with each value by itself."""
    return {
        "IN": values,
        "DELAY": np.full(len(values), delay_ms, np.uint32),
        "WAIT": np.zeros(1, np.uint32),
    }


def repeat_message(values: npt.NDArray[np.int32], delay_ms: int = 0) -> bytes:
    """A serialized request to `repeat` that also wants the empty final response."""
    request = messages.ModelInferRequest(model_name="repeat")
    for name, array in repeat_inputs(values, delay_ms).items():
        tensor = Tensor.from_numpy(name, array)
        request.inputs.add(name=name, datatype=tensor.datatype, shape=tensor.shape)
        request.raw_input_contents.append(bytes(tensor.data))
    request.parameters["triton_enable_empty_final_response"].bool_param = True
    data: bytes = request.SerializeToString()
    return data


def in_order(target: Target, rng: np.random.Generator) -> Iterator[int]:
    """Requests of one stream are answered in their order."""
    with channel_to(target) as channel:
        infer = stream_call(channel)
        while True:
            sent = [random_rows(rng) for _ in range(REQUESTS)]
            requests = [message("double", rows, str(number)) for number, rows in enumerate(sent)]
            answers = [_answer(data) for data in infer(iter(requests), timeout=TIMEOUT_S)]
            expect(len(answers) == REQUESTS, f"{len(answers)} answers to {REQUESTS} requests of a stream")
            for number, (rows, answer) in enumerate(zip(sent, answers, strict=True)):
                expect(answer.id == str(number), f"answer {number} of a stream is that of {answer.id}")
                check_double(output_of(answer), rows, "stream")
            yield REQUESTS


def decoupled(target: Target, rng: np.random.Generator) -> Iterator[int]:
    """Every element comes back by itself, in order, and then the empty final response."""
    with channel_to(target) as channel:
        infer = stream_call(channel)
        while True:
            values = rng.integers(0, 1 << 30, int(rng.integers(1, 20)), np.int32)
            answers = [_answer(data) for data in infer(iter([repeat_message(values)]), timeout=TIMEOUT_S)]
            final = [answer.parameters["triton_final_response"].bool_param for answer in answers]
            expect(final == [False] * len(values) + [True], f"final responses at {final}")
            got = [int.from_bytes(answer.raw_output_contents[0], "little") for answer in answers[:-1]]
            expect(got == values.tolist(), f"repeat made {got} of {values.tolist()}")
            yield len(answers)


def _answer(data: bytes) -> Any:
    answer = messages.ModelStreamInferResponse.FromString(data)
    expect(not answer.error_message, f"an error in a stream: {answer.error_message}")
    return answer.infer_response


def events(target: Target, rng: np.random.Generator) -> Iterator[int]:
    """Server-sent events, on one connection."""
    connection = Connection(target)
    try:
        while True:
            values = rng.integers(0, 1 << 30, int(rng.integers(1, 20)), np.int32)
            inputs = {name: array.tolist() for name, array in repeat_inputs(values).items()}
            body = json.dumps(inputs).encode()
            answer = connection.ask("POST", "/v2/models/repeat/generate_stream", body)
            got = [json.loads(line[6:])["OUT"] for line in answer.body.split(b"\n\n") if line]
            expect(got == values.tolist(), f"generate_stream made {got} of {values.tolist()}")
            yield len(got)
    finally:
        connection.close()
