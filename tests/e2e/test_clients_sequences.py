"""Sequences, as tritonclient sends them: over HTTP, gRPC and streams, many at once."""

import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from tests.serving.live import Live, serving
from tests.serving.onnx_files import accumulator, write_model
from tests.waiting import eventually

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
    write_model(repository, "impatient", accumulator(), one_slot.replace("20000000", "800000"))
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


def test_a_sequence_of_one_request_is_a_sequence(caller: Caller) -> None:
    run(caller, "direct", 77, range(9, 10))


def test_a_start_in_the_middle_begins_anew(caller: Caller) -> None:
    for start, number, total in ((True, 3, 3), (False, 4, 7), (True, 5, 5), (False, 6, 11)):
        options: dict[str, Any] = {"sequence_id": 31, "sequence_start": start, "sequence_end": number == 6}
        assert caller.step("direct", number, **options)["y"].tolist() == [[total]]


def status_of(error: InferenceServerException) -> str | None:
    status: str | None = error.status()
    return status.removeprefix("StatusCode.") if status else status


def refused(call: Callable[[], Any]) -> tuple[str | None, str]:
    with pytest.raises(InferenceServerException) as caught:
        call()
    return status_of(caught.value), caught.value.message()


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (
            "direct",
            {"sequence_start": True},
            "inference request to model 'direct' must specify a non-zero or non-empty correlation ID",
        ),
        (
            "direct",
            {"sequence_id": 900},
            "inference request for sequence 900 to model 'direct' must specify the START flag on the first "
            "request of the sequence",
        ),
        (
            "direct",
            {"sequence_id": 901, "sequence_start": True, "rows": 2},
            "inference request to model 'direct' must specify batch-size 1 due to requirements of sequence "
            "batcher",
        ),
        (
            "direct",
            {"sequence_id": "nine", "sequence_start": True},
            "sequence batching control 'CORRID' data-type is 'BYTES', but model 'direct' expects 'UINT64'",
        ),
        (
            "strings",
            {"sequence_id": 9, "sequence_start": True},
            "sequence batching control 'CORRID' data-type is 'UINT64', but model 'strings' expects 'BYTES'",
        ),
        (
            "strings",
            {"sequence_id": "x" * 129, "sequence_start": True},
            "string correlation ID cannot be longer than 128 characters",
        ),
    ],
)
def test_what_is_no_request_of_a_sequence_is_refused_in_tritons_words(
    caller: Caller, model: str, options: dict[str, Any], message: str
) -> None:
    status, told = refused(lambda: caller.step(model, 1, **dict(options)))
    assert told.removeprefix("[400] ") == message
    if not isinstance(caller, Stream):  # a stream's errors are messages without a status
        assert status == ("400" if isinstance(caller, Http) else "INVALID_ARGUMENT")


def test_a_sequence_without_a_slot_waits_for_one(caller: Caller) -> None:
    caller.step("one_slot", 1, sequence_id=1, sequence_start=True)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(run, caller, "one_slot", 2, range(5, 8))
        assert caller.step("one_slot", 2, sequence_id=1)["y"].tolist() == [[3]]
        assert not waiting.done()
        assert caller.step("one_slot", 3, sequence_id=1, sequence_end=True)["y"].tolist() == [[6]]
        waiting.result(timeout=20)


def test_a_silent_sequence_loses_its_slot_to_one_that_waits(caller: Caller) -> None:
    caller.step("impatient", 1, sequence_id=1, sequence_start=True)
    run(caller, "impatient", 2, range(1, 3))
    _, message = refused(lambda: caller.step("impatient", 1, sequence_id=1))
    assert "must specify the START flag on the first request of the sequence" in message


def test_a_request_may_say_how_long_its_sequence_waits_for_a_slot(caller: Caller) -> None:
    caller.step("one_slot", 1, sequence_id=1, sequence_start=True)
    status, message = refused(
        lambda: caller.step("one_slot", 1, sequence_id=2, sequence_start=True, timeout=30_000)
    )
    assert message.removeprefix("[503] ") == "timeout of the corresponding sequence has been expired"
    if not isinstance(caller, Stream):
        assert status == ("503" if isinstance(caller, Http) else "UNAVAILABLE")
    caller.step("one_slot", 1, sequence_id=1, sequence_end=True)


def test_a_client_that_goes_away_takes_its_sequence_with_it(live: Live) -> None:
    caller, gone = Grpc(live), Stream(live)
    caller.step("one_slot", 1, sequence_id=1, sequence_start=True)
    client, answers = gone._stream()
    for start in (True, False):
        client.async_stream_infer(
            "one_slot", gone.inputs(tritonclient.grpc, 1), sequence_id=2, sequence_start=start
        )
    eventually(lambda: live.server.repository.get("one_slot").pending == 2)
    client.stop_stream(cancel_requests=True)
    eventually(lambda: live.server.repository.get("one_slot").pending == 0)
    caller.step("one_slot", 1, sequence_id=1, sequence_end=True)
    run(caller, "one_slot", 3, range(1, 4))
    failures = live.server.repository.get("one_slot").statistics.failures
    assert failures["CANCELED"] >= 2
    assert all(result is None for result, _ in list(answers.queue))
    caller.close()
    gone.close()


def test_sequences_are_computed_together_and_counted_one_by_one(live: Live) -> None:
    caller = Grpc(live)
    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(run, caller, "filled", n, range(1, 20)) for n in range(200, 204)]:
            done.result(timeout=30)
    [item] = live.get("/v2/models/filled/stats").json["model_stats"]
    sizes = {batch["batch_size"]: batch["compute_infer"]["count"] for batch in item["batch_stats"]}
    # rows of slots that had nothing ready count as rows, not as inferences
    assert item["inference_count"] <= sum(size * count for size, count in sizes.items())
    assert item["execution_count"] == sum(sizes.values())
    assert max(sizes) > 1
    assert max(sizes) <= 4
    caller.close()


def test_the_server_says_that_it_has_sequences(live: Live) -> None:
    assert "sequence" in live.get("/v2").json["extensions"]
