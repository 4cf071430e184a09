"""States that grow with each request of a sequence, as tritonclient sends these."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from tests.serving.live import Live, serving
from tests.serving.onnx_files import remembering, write_model

pytestmark = pytest.mark.e2e

GROWABLE = "use_same_buffer_for_input_output: true use_growable_memory: true"
MODELS = ("direct", "oldest", "plain")


def batching(strategy: str, more: str) -> str:
    return (
        "max_batch_size: 4 instance_group [{ count: 1 kind: KIND_CPU }] "
        f"sequence_batching {{ max_sequence_idle_microseconds: 20000000 {strategy} "
        "state [{ input_name: 'state_in' output_name: 'state_out' data_type: TYPE_FP32 dims: [ -1 ] "
        f"{more} }}] }}"
    )


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    repository = tmp_path_factory.mktemp("models")
    direct = "direct { max_queue_delay_microseconds: 5000 minimum_slot_utilization: 1 }"
    oldest = "oldest { max_candidate_sequences: 4 max_queue_delay_microseconds: 5000 }"
    write_model(repository, "direct", remembering(), batching(direct, GROWABLE))
    write_model(repository, "oldest", remembering(), batching(oldest, GROWABLE))
    write_model(repository, "plain", remembering(), batching("", ""))
    write_model(repository, "half", remembering(), batching("", "use_growable_memory: true"))
    begins = "initial_state { name: 'begin' data_type: TYPE_FP32 dims: [ 3 ] zero_data: true }"
    write_model(repository, "begun", remembering(), batching("", f"{GROWABLE} {begins}"))
    with serving(repository, exit_on_error=False, strict_readiness=False) as server:
        yield server


def step(client: Any, module: Any, model: str, number: float, **options: Any) -> list[float]:
    given = module.InferInput("x", [1, 1], "FP32")
    given.set_data_from_numpy(np.array([[number]], np.float32))
    [seen] = client.infer(model, [given], **options).as_numpy("seen").tolist()
    return [float(item) for item in seen]


def whole(live: Live, module: Any, model: str, sequence: int, length: int) -> list[list[float]]:
    """What each request of a sequence saw."""
    port = live.http_port if module is tritonclient.http else live.ports["GRPCInferenceService"]
    with module.InferenceServerClient(f"127.0.0.1:{port}") as client:
        return [
            step(
                client,
                module,
                model,
                100 * sequence + at,
                sequence_id=sequence,
                sequence_start=at == 0,
                sequence_end=at == length - 1,
            )
            for at in range(length)
        ]


def expected(sequence: int, length: int, begins: int = 1) -> list[list[float]]:
    numbers = [0.0] * begins + [100.0 * sequence + at for at in range(length)]
    return [numbers[: begins + at + 1] for at in range(length)]


@pytest.mark.parametrize("module", [tritonclient.http, tritonclient.grpc], ids=["http", "grpc"])
@pytest.mark.parametrize("model", MODELS)
def test_a_state_grows_from_request_to_request(live: Live, model: str, module: Any) -> None:
    assert whole(live, module, model, 3, 40) == expected(3, 40)


@pytest.mark.parametrize("model", MODELS)
def test_sequences_of_other_lengths_grow_beside_each_other(live: Live, model: str) -> None:
    lengths = {sequence: 5 + 3 * sequence for sequence in range(1, 9)}
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda item: whole(live, tritonclient.http, model, *item), lengths.items()))
    assert answers == [expected(*item) for item in lengths.items()]


@pytest.mark.parametrize("model", ["direct", "oldest"])
def test_sequences_of_equal_lengths_share_executions(live: Live, model: str) -> None:
    before = statistics(live, model)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda sequence: whole(live, tritonclient.grpc, model, sequence, 25), range(11, 15)))
    after = statistics(live, model)
    assert after["inference_count"] - before["inference_count"] == 100
    assert after["execution_count"] - before["execution_count"] < 100
    assert after["inference_stats"]["fail"]["count"] == 0


def statistics(live: Live, model: str) -> Any:
    return live.get(f"/v2/models/{model}/stats").json["model_stats"][0]


def test_a_growing_state_begins_as_its_initial_state_says(live: Live) -> None:
    assert whole(live, tritonclient.grpc, "begun", 5, 4) == expected(5, 4, begins=3)


def test_growable_memory_without_the_same_buffer_is_refused_as_by_triton(live: Live) -> None:
    [entry] = [item for item in live.http("POST", "/v2/repository/index").json if item["name"] == "half"]
    assert entry["state"] == "UNAVAILABLE"
    assert (
        "In order to 'use_growable_memory', you must also enable 'use_same_buffer_for_input_output' for "
        "state input name 'state_in'."
    ) in entry["reason"]
    with (
        tritonclient.http.InferenceServerClient(f"127.0.0.1:{live.http_port}") as client,
        pytest.raises(InferenceServerException, match="half"),
    ):
        step(client, tritonclient.http, "half", 1, sequence_id=1, sequence_start=True)
