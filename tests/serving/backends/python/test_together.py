"""Python models together with what else a server does: warm-up, cache, limits, ensembles, statistics."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.serving.backends.python.asking import ask, said, say, y_of
from tests.serving.backends.python.conftest import SAY
from tests.serving.backends.python.zoo import DECOUPLED, FP32, SAME, add, io
from tests.serving.live import serving
from tests.waiting import eventually

WARM = (
    "model_warmup {{ name: 'zeros' batch_size: 1 "
    "inputs {{ key: 'x' value {{ data_type: TYPE_FP32 dims: [ {} ] zero_data: true }} }} }}"
)
ALONE = """
import os
import time
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        lock = os.path.join(pb_utils.get_model_dir(), "computing")
        os.close(os.open(lock, os.O_CREAT | os.O_EXCL))
        time.sleep(0.05)
        os.unlink(lock)
        tensors = [pb_utils.Tensor("y", request.inputs()[0].as_numpy()) for request in requests]
        return [pb_utils.InferenceResponse([tensor]) for tensor in tensors]
"""
SLEEPY = """
import os
import time
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        time.sleep(0.3)
        while os.path.exists(os.path.join(pb_utils.get_model_dir(), "held")):
            time.sleep(0.01)
        tensors = [pb_utils.Tensor("y", request.inputs()[0].as_numpy()) for request in requests]
        return [pb_utils.InferenceResponse([tensor]) for tensor in tensors]
"""
ENSEMBLE = (
    "platform: 'ensemble' "
    + SAME
    + """
ensemble_scheduling {
  step [
    { model_name: 'double' model_version: -1
      input_map { key: 'x' value: 'x' } output_map { key: 'y' value: 'm' } },
    { model_name: 'LAST' model_version: -1
      input_map { key: 'x' value: 'm' } output_map { key: 'y' value: 'y' } }
  ]
}
"""
)


def test_every_instance_is_warmed_up(tmp_path: Path) -> None:
    code = add(tmp_path, "double", config="instance_group { count: 2 }" + SAME + WARM.format(3)) / "model.py"
    marks = "open(pb_utils.get_model_dir() + '/warm', 'a').write('.')\n        return ["
    code.write_text(code.read_text().replace("return [", marks))
    with serving(tmp_path) as live:
        assert (code.parent / "warm").read_text() == ".."
        assert y_of(ask(live, "double", 2)) == [4]


def test_a_kept_answer_is_the_whole_answer(tmp_path: Path) -> None:
    """Without the outputs that the model leaves out, and with the parameters of its response."""
    outputs = io({"x": FP32}, {"absent": FP32, "y": FP32})
    code = add(tmp_path, "double", config="response_cache { enable: true }" + outputs) / "model.py"
    code.write_text(code.read_text().replace("* 2)]", "* 2)], parameters={'n': 3}"))
    with serving(tmp_path, cache_config=("local,size=10000",)) as live:
        for _ in range(2):
            answer = ask(live, "double", 2)
            assert (y_of(answer), answer.json["parameters"]) == ([4], {"n": 3})
        stats = live.get("/v2/models/double/stats").json["model_stats"][0]
        assert stats["inference_stats"]["cache_hit"]["count"] == 1


def test_a_decoupled_model_is_warmed_up_and_a_failing_one_not_loaded(tmp_path: Path) -> None:
    add(tmp_path, "stream_async", config=SAME + DECOUPLED + WARM.format(1))
    (tmp_path / "bad" / "1").mkdir(parents=True)
    (tmp_path / "bad" / "config.pbtxt").write_text("backend: 'python'" + SAME + WARM.format(1))
    (tmp_path / "bad" / "1" / "model.py").write_text(
        "class TritonPythonModel:\n    def execute(self, requests):\n        raise ValueError('cold')\n"
    )
    with serving(tmp_path, exit_on_error=False) as live:
        reasons = {e["name"]: e.get("reason", "") for e in live.http("POST", "/v2/repository/index").json}
        assert reasons["stream_async"] == ""
        assert "failed to run warmup sample 'zeros'" in reasons["bad"]
        assert "ValueError: cold" in reasons["bad"]


def test_answers_are_cached(tmp_path: Path) -> None:
    add(tmp_path, "say", config="response_cache { enable: true }" + SAY)
    with serving(tmp_path, cache_config=("local,size=1000000",)) as live:
        assert facts_of(said(say(live, "facts"))) == facts_of(said(say(live, "facts")))
        stats = live.get("/v2/models/say/stats").json["model_stats"][0]["inference_stats"]
        assert stats["cache_hit"]["count"] == 1


def facts_of(text: str) -> object:
    """What JSON means."""
    return json.loads(text)


@pytest.mark.parametrize("last", ["double", "flood", "repeater"])
def test_ensembles_have_python_steps(tmp_path: Path, last: str) -> None:
    add(tmp_path, "double")
    add(tmp_path, "flood", config=SAME + DECOUPLED)
    add(tmp_path, "repeater", code="stream_async", config=SAME + DECOUPLED)
    (tmp_path / "both" / "1").mkdir(parents=True)
    (tmp_path / "both" / "config.pbtxt").write_text(ENSEMBLE.replace("LAST", last))
    with serving(tmp_path) as live:
        if last == "double":
            assert y_of(ask(live, "both", 3)) == [12]
            return
        given = [1, 2] if last == "flood" else [1]
        body = json.dumps({"x": given}).encode()
        answer = live.http("POST", "/v2/models/both/generate_stream", body)
        events = [json.loads(line[6:]) for line in answer.body.decode().split("\n\n") if line]
        assert [e["y"] for e in events] == ([[0] * 4, [1] * 4] if last == "flood" else [0, 1])


def test_what_waits_is_pending_and_what_is_computed_is_not(tmp_path: Path) -> None:
    (tmp_path / "sleepy" / "1").mkdir(parents=True)
    (tmp_path / "sleepy" / "config.pbtxt").write_text("backend: 'python'" + SAME)
    (tmp_path / "sleepy" / "1" / "model.py").write_text(SLEEPY)
    held = tmp_path / "sleepy" / "1" / "held"
    held.touch()
    with serving(tmp_path) as live, ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(ask, live, "sleepy", 1) for _ in range(3)]
        [model] = live.server.plane.served()
        eventually(lambda: (model.in_flight, model.pending) == (3, 2))
        held.unlink()
        for answer in waiting:
            assert y_of(answer.result()) == [1]
        stats = live.get("/v2/models/sleepy/stats").json["model_stats"][0]["inference_stats"]
        assert stats["compute_infer"]["ns"] > 0.8e9
        assert stats["queue"]["ns"] > 0.5e9
        assert stats["compute_infer"]["ns"] + stats["queue"]["ns"] <= stats["success"]["ns"]


def test_instances_take_turns_under_a_rate_limit(tmp_path: Path) -> None:
    limited = "instance_group { count: 2 rate_limiter { resources { name: 'R' count: 1 } } }"
    code = add(tmp_path, "alone", code="double", config=limited + SAME) / "model.py"
    code.write_text(ALONE)
    limits = {"rate_limit": "execution_count", "rate_limit_resource": ("R:1",)}
    with serving(tmp_path, **limits) as live, ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda v: y_of(ask(live, "alone", v)), range(4)))
        assert answers == [[0], [1], [2], [3]]
