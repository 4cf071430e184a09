"""The rate limiter on a real server: which requests are computed together, and what cannot be loaded."""

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

from tests.serving.live import Live, floats, serving
from tpx.serving.tracing.flags import trace_flag

DELAY_MS = 40
ROUNDS = 8
"""Requests that may be computed together are so in one of these, however busy the machine is."""
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


@contextmanager
def limited(repository: Path, **options: Any) -> Iterator[tuple[Live, Path]]:
    """A server with the limiter, and the file that has the times of every computation when it has ended."""
    file = repository.with_suffix(".json")
    words = (f"triton,file={file}", "level=TIMESTAMPS", "rate=1")
    options = {"rate_limit": "execution_count", "trace_config": tuple(map(trace_flag, words)), **options}
    with serving(repository, **options) as live:
        yield live, file


def most_at_once(file: Path, *models: str) -> int:
    """Return how many requests to these models, or to all, were computed at the same time."""
    records = json.loads(file.read_bytes())
    names = {record["id"]: record["model_name"] for record in records if "model_name" in record}
    changes = sorted(
        (stamp["ns"], {"COMPUTE_START": 1, "COMPUTE_END": -1}[stamp["name"]])
        for record in records
        for stamp in record.get("timestamps", ())
        if stamp["name"] in ("COMPUTE_START", "COMPUTE_END") and (not models or names[record["id"]] in models)
    )
    return max(accumulate(change for _, change in changes))


def ask(live: Live, models: Sequence[str]) -> None:
    """Send one request to each of the models at once; all are answered."""
    bodies: list[bytes] = []

    def send(model: str) -> None:
        answer = live.infer_binary(model, {"x": floats([1, 2])})
        assert answer.status == 200
        bodies.append(answer.tail)

    threads = [threading.Thread(target=send, args=(model,)) for model in models]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert bodies == [floats([1, 2]).tobytes()] * len(models)


def test_instances_of_two_models_take_turns_for_one_resource(tmp_path: Path) -> None:
    write(tmp_path, "a", resource())
    write(tmp_path, "b", resource())
    with limited(tmp_path) as (live, file):
        for models in (["a", "b"], ["a", "b", "b"]):
            ask(live, models)
    assert most_at_once(file) == 1


def test_without_the_limiter_resources_mean_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path, "a", resource())
    write(tmp_path, "b", resource())
    with limited(tmp_path, rate_limit="off", rate_limit_resource=("R:1",)) as (live, file):
        for _ in range(ROUNDS):
            ask(live, ["a", "b"])
    assert most_at_once(file) == 2
    assert "--rate-limit-resource has no effect without --rate-limit execution_count" in caplog.text


def test_an_explicit_amount_lets_more_run_at_the_same_time(tmp_path: Path) -> None:
    write(tmp_path, "a", resource(), count=3)
    with limited(tmp_path, rate_limit_resource=("R:2",)) as (live, file):
        for _ in range(ROUNDS):
            ask(live, ["a"] * 3)
    assert most_at_once(file) == 2


def test_models_that_need_nothing_are_not_held_up(tmp_path: Path) -> None:
    write(tmp_path, "a", resource())
    write(tmp_path, "b", resource())
    write(tmp_path, "free")
    with limited(tmp_path) as (live, file):
        for _ in range(ROUNDS):
            ask(live, ["a", "b", "free"])
    assert most_at_once(file, "a", "b") == 1
    assert most_at_once(file) == 2


def test_an_instance_in_its_turn_takes_a_batch(tmp_path: Path) -> None:
    write(tmp_path, "a", resource(), "dynamic_batching { max_queue_delay_microseconds: 9000000 }", count=2)
    with serving(tmp_path, rate_limit="execution_count") as live:
        ask(live, ["a"] * 4)
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
    with limited(tmp_path, model_control_mode="explicit", load_model=("*",)) as (live, file):
        ask(live, ["big", "small"])
        assert live.http("POST", "/v2/repository/models/big/unload").status == 200
        ask(live, ["small"])
    assert most_at_once(file) == 1


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
