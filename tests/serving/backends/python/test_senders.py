"""Response senders of models that are not decoupled: who is answered when, and what is counted of it."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from tests.serving.backends.python.asking import y_of
from tests.serving.backends.python.zoo import DECOUPLED, FP32, add, io
from tests.serving.live import Answer, Live, serving
from tests.waiting import eventually

CODE = """
import os
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in sorted(requests, key=lambda one: one.inputs()[0].as_numpy()[0, 0]):
            value = request.inputs()[0].as_numpy()[0, 0]
            if value == 2:
                open(os.path.join(pb_utils.get_model_dir(), "begun"), "w").close()
                until = time.monotonic() + 5
                while not os.path.exists(os.path.join(pb_utils.get_model_dir(), "go")):
                    if time.monotonic() > until:
                        raise TimeoutError("nobody has let it go")
                    time.sleep(0.002)
            if value == 3:
                raise ValueError("three")
            error = pb_utils.TritonError("below zero") if value < 0 else None
            y = pb_utils.Tensor("y", request.inputs()[0].as_numpy())
            response = pb_utils.InferenceResponse([y], error)
            request.get_response_sender().send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        return [None] * len(requests)
"""


def write(repository: Path, batch: int, more: str = "") -> Path:
    """A model that waits before it answers a 2, and has batches of so many; returns its directory."""
    batching = f"dynamic_batching {{ max_queue_delay_microseconds: 5000000 {more} }}"
    config = f"max_batch_size: {batch} {batching} instance_group {{ count: 1 }}"
    code = add(repository, "double", config=config + io({"x": FP32}, {"y": FP32})) / "model.py"
    code.write_text(CODE)
    return code.parent


def ask(live: Live, value: float) -> Answer:
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [value]}
    return live.infer("double", {"inputs": [tensor]})


def counted(live: Live) -> tuple[Any, ...]:
    """Inferences, executions, successes, failures, and the executions of each batch size."""
    stats = live.get("/v2/models/double/stats").json["model_stats"][0]
    inference = stats["inference_stats"]
    return (
        stats["inference_count"],
        stats["execution_count"],
        inference["success"]["count"],
        inference["fail"]["count"],
        {size["batch_size"]: size["compute_infer"]["count"] for size in stats["batch_stats"]},
    )


def test_a_sender_answers_before_the_rest_of_its_batch_and_before_execute_returns(tmp_path: Path) -> None:
    directory = write(tmp_path, 2)
    with serving(tmp_path) as live, ThreadPoolExecutor(1) as pool:
        slow = pool.submit(ask, live, 2)
        assert y_of(ask(live, 1)) == [1]
        assert not slow.done()
        [model] = live.server.plane.served()
        assert model.in_flight == 1
        assert counted(live) == (0, 0, 1, 0, {})
        (directory / "go").touch()
        assert y_of(slow.result()) == [2]
        eventually(lambda: counted(live) == (2, 1, 2, 0, {2: 1}))
        stats = live.get("/v2/models/double/stats").json["model_stats"][0]["inference_stats"]
        phases = ("queue", "compute_input", "compute_infer", "compute_output")
        assert 0 < sum(stats[phase]["ns"] for phase in phases) <= stats["success"]["ns"]


def test_what_fails_beside_what_was_answered_was_the_same_execution(tmp_path: Path) -> None:
    """An error by sender before, and one for the rest when `execute` has raised."""
    write(tmp_path, 3)
    with serving(tmp_path) as live, ThreadPoolExecutor(2) as pool:
        raised, below = pool.submit(ask, live, 3), pool.submit(ask, live, -1)
        assert y_of(ask(live, 1)) == [1]
        assert "below zero" in below.result().error
        assert "ValueError: three" in raised.result().error
        eventually(lambda: counted(live) == (1, 1, 1, 2, {3: 1}))


def test_a_failure_by_sender_leaves_the_rest_one_execution(tmp_path: Path) -> None:
    write(tmp_path, 3)
    with serving(tmp_path) as live, ThreadPoolExecutor(2) as pool:
        others = [pool.submit(ask, live, value) for value in (0, 1)]
        assert "below zero" in ask(live, -1).error
        assert [y_of(other.result()) for other in others] == [[0], [1]]
        eventually(lambda: counted(live) == (2, 1, 2, 1, {3: 1}))


RETURNS = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        values = [request.inputs()[0].as_numpy()[0, 0] for request in requests]
        if 3 in values:
            raise ValueError("three")
        error = pb_utils.TritonError("below zero")
        return [
            pb_utils.InferenceResponse(error=error) if value < 0 else
            pb_utils.InferenceResponse([pb_utils.Tensor("y", request.inputs()[0].as_numpy())])
            for value, request in zip(values, requests)
        ]
"""


def test_requests_that_fail_are_part_of_the_execution_that_answers_others(tmp_path: Path) -> None:
    """As the python backend of Triton counts it, where a request counts as answered with an error, too."""
    directory = write(tmp_path, 3)
    (directory / "model.py").write_text(RETURNS)
    with serving(tmp_path) as live, ThreadPoolExecutor(3) as pool:
        answers = [answer.status for answer in pool.map(partial(ask, live), (1, -1, 2))]
        assert sorted(answers) == [200, 200, 500]
        assert counted(live) == (2, 1, 2, 1, {3: 1})
        assert {answer.status for answer in pool.map(partial(ask, live), (-1, -2, -3))} == {500}
        assert counted(live) == (2, 2, 2, 4, {3: 2})
        assert {answer.status for answer in pool.map(partial(ask, live), (1, 2, 3))} == {500}
        assert counted(live) == (2, 3, 2, 7, {3: 3})


STREAMS = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for _ in range(2):
                y = pb_utils.Tensor("y", request.inputs()[0].as_numpy())
                sender.send(pb_utils.InferenceResponse([y]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


def test_requests_of_a_decoupled_model_that_come_together_are_one_execution(tmp_path: Path) -> None:
    directory = write(tmp_path, 3)
    config = directory.parent / "config.pbtxt"
    config.write_text(config.read_text() + DECOUPLED)
    (directory / "model.py").write_text(STREAMS)
    with serving(tmp_path) as live, ThreadPoolExecutor(3) as pool:
        streams = pool.map(partial(live.http, "POST", "/v2/models/double/generate_stream"), [b'{"x": 1}'] * 3)
        assert [stream.body.count(b"data:") for stream in streams] == [2, 2, 2]
        eventually(lambda: counted(live) == (3, 1, 3, 0, {3: 1}))


def test_what_is_answered_early_still_leaves_in_order(tmp_path: Path) -> None:
    directory = write(tmp_path, 2, "preserve_ordering: true")
    with serving(tmp_path) as live, ThreadPoolExecutor(2) as pool:
        [model] = live.server.plane.served()
        slow = pool.submit(ask, live, 2)
        eventually(lambda: model.in_flight == 1)
        fast = pool.submit(ask, live, 1)
        eventually(lambda: (directory / "begun").exists() and model.in_flight == 1)
        assert not fast.done()
        (directory / "go").touch()
        assert y_of(slow.result()) == [2]
        assert y_of(fast.result()) == [1]
