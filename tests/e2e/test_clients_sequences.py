"""Sequences, as tritonclient sends them: over HTTP, gRPC and streams, many at once."""

import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tritonclient.grpc
import tritonclient.http

from tests.serving.live import Live, serving
from tests.serving.onnx_files import accumulator, write_model

pytestmark = pytest.mark.e2e

CONTROLS = """
control_input [
  { name: 'START' control [{ kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] }] },
  { name: 'READY' control [{ kind: CONTROL_SEQUENCE_READY fp32_false_true: [ 0, 1 ] }] },
  { name: 'CORRID' control [{ kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_%s }] }
]
"""
STATE = "state [{ input_name: 'state_in' output_name: 'state_out' data_type: TYPE_FP32 dims: [ 1 ] %s }]"


def batching(strategy: str = "", *, corrid: str = "UINT64", state: str = "", more: str = "") -> str:
    """A configuration; inputs and outputs are completed from the file."""
    return (
        f"max_batch_size: 4 {more} sequence_batching {{ max_sequence_idle_microseconds: 20000000 {strategy} "
        f"{CONTROLS % corrid} {STATE % state} }}"
    )


TWO = "instance_group [{ count: 2 kind: KIND_CPU }]"
ONE = "instance_group [{ count: 1 kind: KIND_CPU }]"


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    repository = tmp_path_factory.mktemp("models")
    write(repository)
    with serving(repository) as server:
        yield server


def write(repository: Path) -> None:
    write_model(repository, "direct", accumulator(), batching(more=TWO))
    oldest = (
        "oldest { max_candidate_sequences: 3 preferred_batch_size: [ 2 ] max_queue_delay_microseconds: 500 }"
    )
    write_model(repository, "oldest", accumulator(), batching(oldest, more=TWO))
    filled = "direct { max_queue_delay_microseconds: 2000 minimum_slot_utilization: 0.75 }"
    write_model(repository, "filled", accumulator(), batching(filled, more=ONE))
    write_model(repository, "strings", accumulator("BYTES"), batching(corrid="STRING", more=TWO))
    one_slot = batching(more=ONE).replace("max_batch_size: 4", "max_batch_size: 1")
    write_model(repository, "one_slot", accumulator(), one_slot)
    begin = "initial_state { name: 'begin' data_type: TYPE_FP32 dims: [ 1 ] data_file: 'begin' }"
    directory = write_model(repository, "begun", accumulator(resets=False), batching(state=begin))
    (directory / "initial_state").mkdir()
    (directory / "initial_state" / "begin").write_bytes(np.array([100], "<f4").tobytes())
    same = "use_same_buffer_for_input_output: true"
    write_model(repository, "same_buffer", accumulator(), batching(state=same))


Array = npt.NDArray[Any]
Answer = Mapping[str, Array]


class Caller(ABC):
    """One way to send a request of a sequence and to wait for its answer."""

    def __init__(self, live: Live) -> None:
        self.live = live

    def inputs(self, module: Any, number: float, rows: int = 1) -> list[Any]:
        array = np.full((rows, 1), number, np.float32)
        return [module.InferInput("x", [rows, 1], "FP32").set_data_from_numpy(array)]

    @abstractmethod
    def step(self, model: str, number: float, **options: Any) -> Answer:
        """One request of a sequence, and what it was answered."""

    @abstractmethod
    def close(self) -> None:
        """End the connection."""

    @staticmethod
    def outputs(result: Any) -> Answer:
        return {name: result.as_numpy(name) for name in ("y", "id", "ready")}


class Http(Caller):
    """A client for each request: this library's clients stay in the thread that made them."""

    def step(self, model: str, number: float, **options: Any) -> Answer:
        rows = options.pop("rows", 1)
        with tritonclient.http.InferenceServerClient(f"127.0.0.1:{self.live.http_port}") as client:
            return self.outputs(client.infer(model, self.inputs(tritonclient.http, number, rows), **options))

    def close(self) -> None:
        """Each is closed already."""


class Grpc(Caller):
    def __init__(self, live: Live) -> None:
        super().__init__(live)
        port = live.ports["GRPCInferenceService"]
        self.client = tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{port}")

    def step(self, model: str, number: float, **options: Any) -> Answer:
        rows = options.pop("rows", 1)
        return self.outputs(self.client.infer(model, self.inputs(tritonclient.grpc, number, rows), **options))

    def close(self) -> None:
        self.client.close()


class Stream(Grpc):
    """Each thread has a stream of its own."""

    def __init__(self, live: Live) -> None:
        super().__init__(live)
        self._local = threading.local()
        self._clients: list[Any] = []

    def step(self, model: str, number: float, **options: Any) -> Answer:
        client, answers = self._stream()
        rows = options.pop("rows", 1)
        client.async_stream_infer(model, self.inputs(tritonclient.grpc, number, rows), **options)
        result, error = answers.get(timeout=20)
        if error is not None:
            raise error
        return self.outputs(result)

    def _stream(self) -> tuple[Any, "queue.Queue[Any]"]:
        if not hasattr(self._local, "client"):
            port = self.live.ports["GRPCInferenceService"]
            answers: queue.Queue[Any] = queue.Queue()
            client = tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{port}")
            client.start_stream(callback=lambda result, error: answers.put((result, error)))
            self._local.client, self._local.answers = client, answers
            self._clients.append(client)
        return self._local.client, self._local.answers

    def close(self) -> None:
        super().close()
        for client in self._clients:
            client.close()


@pytest.fixture(params=[Http, Grpc, Stream], ids=["http", "grpc", "stream"])
def caller(request: pytest.FixtureRequest, live: Live) -> Iterator[Caller]:
    made = request.param(live)
    yield made
    made.close()


def run(caller: Caller, model: str, sequence_id: int | str, numbers: range, begin: float = 0) -> None:
    """A whole sequence, every answer checked."""
    total = begin
    for number in numbers:
        total += number
        answer = caller.step(
            model,
            number,
            sequence_id=sequence_id,
            sequence_start=number == numbers[0],
            sequence_end=number == numbers[-1],
        )
        wanted = sequence_id.encode() if isinstance(sequence_id, str) else sequence_id
        assert answer["y"].tolist() == [[total]]
        assert answer["id"].tolist() == [[wanted]]
        assert answer["ready"].tolist() == [[1]]


@pytest.mark.parametrize("model", ["direct", "oldest", "filled", "strings", "one_slot", "same_buffer"])
def test_many_sequences_at_once_each_have_their_own_sum(caller: Caller, model: str) -> None:
    ids: list[Any] = [f"s{n}" for n in range(1, 13)] if model == "strings" else list(range(1, 13))
    with ThreadPoolExecutor(12) as pool:
        for done in [pool.submit(run, caller, model, one, range(n, n + 12)) for n, one in enumerate(ids)]:
            done.result(timeout=50)


def test_a_sequence_begins_with_what_the_file_says(caller: Caller) -> None:
    run(caller, "begun", 5, range(1, 4), begin=100)


def test_a_start_in_the_middle_begins_anew(caller: Caller) -> None:
    for start, number, total in ((True, 3, 3), (False, 4, 7), (True, 5, 5), (False, 6, 11)):
        options: dict[str, Any] = {"sequence_id": 31, "sequence_start": start, "sequence_end": number == 6}
        assert caller.step("direct", number, **options)["y"].tolist() == [[total]]
