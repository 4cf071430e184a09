"""The rate limiter on a real server: who computes at the same time, and what cannot be loaded."""

import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.serving.live import Live, floats, serving

DELAY_MS = 150
TRIES = 20
"""What is not held up takes as short a time at least once, however busy the machine is."""
IO = "data_type: TYPE_FP32 dims: [ 2 ]"


def write(repository: Path, name: str, limiter: str = "", scheduling: str = "", count: int = 1) -> None:
    """A model that takes its time, with so many instances."""
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(
        f"backend: 'identity' max_batch_size: 4 {scheduling} input [{{ name: 'x' {IO} }}] "
        f"output [{{ name: 'y' {IO} }}] parameters {{ key: 'execute_delay_ms' value: {{ string_value: "
        f"'{DELAY_MS}' }} }} instance_group [{{ count: {count} rate_limiter {{ {limiter} }} }}]",
        encoding="utf-8",
    )


def resource(name: str = "R", count: int = 1, more: str = "") -> str:
    return f"resources [{{ name: '{name}' count: {count} {more} }}]"


def seconds(live: Live, models: Sequence[str]) -> float:
    """How long one request to each of the models takes when all are sent at once; all are answered."""
    bodies: list[bytes] = []

    def send(model: str) -> None:
        answer = live.infer_binary(model, {"x": floats([1, 2])})
        assert answer.status == 200
        bodies.append(answer.tail)

    threads = [threading.Thread(target=send, args=(model,)) for model in models]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = time.perf_counter() - began
    assert bodies == [floats([1, 2]).tobytes()] * len(models)
    return took * 1000


def test_instances_of_two_models_take_turns_for_one_resource(tmp_path: Path) -> None:
    write(tmp_path, "a", resource())
    write(tmp_path, "b", resource())
    with serving(tmp_path, rate_limit="execution_count") as live:
        assert seconds(live, ["a", "b"]) > 2 * DELAY_MS - 5
        assert seconds(live, ["a", "b", "b"]) > 3 * DELAY_MS - 5


@pytest.mark.slow
def test_without_the_limiter_resources_mean_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path, "a", resource())
    write(tmp_path, "b", resource())
    with serving(tmp_path, rate_limit_resource=("R:1",)) as live:
        assert any(seconds(live, ["a", "b"]) < 2 * DELAY_MS - 5 for _ in range(TRIES))
    assert "--rate-limit-resource has no effect without --rate-limit execution_count" in caplog.text


@pytest.mark.slow
def test_an_explicit_amount_lets_more_run_at_the_same_time(tmp_path: Path) -> None:
    write(tmp_path, "a", resource(), count=3)
    with serving(tmp_path, rate_limit="execution_count", rate_limit_resource=("R:2",)) as live:
        assert any(seconds(live, ["a"] * 2) < 2 * DELAY_MS - 5 for _ in range(TRIES))
        assert seconds(live, ["a"] * 3) > 2 * DELAY_MS - 5


@pytest.mark.slow
def test_models_that_need_nothing_are_not_held_up(tmp_path: Path) -> None:
    write(tmp_path, "a", resource())
    write(tmp_path, "b", resource())
    write(tmp_path, "free")
    with serving(tmp_path, rate_limit="execution_count") as live:
        busy = threading.Thread(target=seconds, args=(live, ["a", "b"] * 8))
        busy.start()
        assert any(seconds(live, ["free"]) < 2 * DELAY_MS - 5 for _ in iter(busy.is_alive, False))
        busy.join()


def test_an_instance_in_its_turn_takes_a_batch(tmp_path: Path) -> None:
    write(tmp_path, "a", resource(), "dynamic_batching { max_queue_delay_microseconds: 9000000 }", count=2)
    with serving(tmp_path, rate_limit="execution_count") as live:
        seconds(live, ["a"] * 4)
        [item] = live.get("/v2/models/a/stats").json["model_stats"]
        assert (item["inference_count"], item["execution_count"]) == (4, 1)


def test_sequences_take_turns_too(tmp_path: Path) -> None:
    write(tmp_path, "a", resource(), "sequence_batching { }", count=2)
    start = {"sequence_id": 1, "sequence_start": True}
    with serving(tmp_path, rate_limit="execution_count") as live:
        for parameters in (start, {"sequence_id": 1}, {"sequence_id": 1, "sequence_end": True}):
            assert live.infer_binary("a", {"x": floats([1, 2])}, parameters=parameters).status == 200


def test_an_unloaded_model_gives_back_what_it_took(tmp_path: Path) -> None:
    write(tmp_path, "big", resource(count=5))
    write(tmp_path, "small", resource(count=3), count=2)
    options = {"rate_limit": "execution_count", "model_control_mode": "explicit", "load_model": ("*",)}
    with serving(tmp_path, **options) as live:
        assert seconds(live, ["big", "small"]) > 2 * DELAY_MS - 5
        assert live.http("POST", "/v2/repository/models/big/unload").status == 200
        seconds(live, ["small"])


@pytest.mark.parametrize(
    ("limiter", "reason"),
    [
        (
            resource(count=7),
            'Resource count for "R" is limited to 2 which will prevent scheduling of one or more model '
            "instances, the minimum required count is 7",
        ),
        (
            "resources [{ name: 'Q' count: 1 }, { name: 'Q' count: 1 global: true }]",
            'Resource "Q" is present as both global and device-specific resource in the model configuration.',
        ),
    ],
)
def test_what_could_never_run_is_not_loaded(tmp_path: Path, limiter: str, reason: str) -> None:
    write(tmp_path, "never", limiter)
    options = {"rate_limit": "execution_count", "rate_limit_resource": ("R:2",), "exit_on_error": False}
    with serving(tmp_path, **options) as live:
        [entry] = live.http("POST", "/v2/repository/index").json
    assert entry["reason"].startswith(f"Invalid argument: {reason}")
