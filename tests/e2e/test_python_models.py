"""Python models under a real server: signals, kills, and what is left behind."""

import os
import signal
import time
from pathlib import Path

import psutil
import pytest
import tritonclient.http as client

from tests.e2e.child import Child, serve
from tests.serving.backends.python.asking import floats
from tests.serving.backends.python.zoo import add

pytestmark = pytest.mark.e2e

SLOW = """
import time
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        time.sleep(1.0)
        tensors = [pb_utils.Tensor("y", request.inputs()[0].as_numpy()) for request in requests]
        return [pb_utils.InferenceResponse([tensor]) for tensor in tensors]

    def finalize(self):
        print("finalized", flush=True)
"""


def _models_of(child: Child) -> list[psutil.Process]:
    return psutil.Process(child.pid).children()


def _gone(processes: list[psutil.Process]) -> bool:
    _, alive = psutil.wait_procs(processes, timeout=5)
    return not alive


def _input() -> client.InferInput:
    given = client.InferInput("x", [2], "FP32")
    given.set_data_from_numpy(floats(1, 2))
    return given


def test_killing_the_server_leaves_no_model_behind(tmp_path: Path) -> None:
    add(tmp_path, "double")
    file = add(tmp_path, "busy", code="double") / "model.py"
    file.write_text(SLOW.replace("time.sleep(1.0)", "time.sleep(600)"), encoding="utf-8")
    with serve("--model-repository", tmp_path) as child:
        child.ready()
        with client.InferenceServerClient(f"127.0.0.1:{child.port('HTTPService')}") as http:
            http.async_infer("busy", [_input()])
            time.sleep(0.2)
            models = _models_of(child)
            assert len(models) == 2
            child.send(signal.SIGKILL)
            assert _gone(models)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_terminal_interrupt_lets_models_answer_first(tmp_path: Path, number: signal.Signals) -> None:
    file = add(tmp_path, "slow", code="double") / "model.py"
    file.write_text(SLOW, encoding="utf-8")
    with serve("--model-repository", tmp_path) as child:
        child.ready()
        models = _models_of(child)
        with client.InferenceServerClient(f"127.0.0.1:{child.port('HTTPService')}", concurrency=1) as http:
            waiting = http.async_infer("slow", [_input()])
            time.sleep(0.3)
            child.send(number)
            for model in models:  # a terminal tells the whole group, were they in it
                assert os.getpgid(model.pid) != os.getpgid(child.pid)
            assert waiting.get_result().as_numpy("y").tolist() == [1, 2]
        assert child.ended(10) == 0
        assert "finalized" in child.text
        assert _gone(models)


def test_a_model_that_hangs_does_not_hold_the_server_for_ever(tmp_path: Path) -> None:
    file = add(tmp_path, "busy", code="double") / "model.py"
    file.write_text(SLOW.replace("time.sleep(1.0)", "time.sleep(600)"), encoding="utf-8")
    with serve("--model-repository", tmp_path, "--exit-timeout-secs", "1") as child:
        child.ready()
        models = _models_of(child)
        with client.InferenceServerClient(f"127.0.0.1:{child.port('HTTPService')}") as http:
            http.async_infer("busy", [_input()])
            time.sleep(0.2)
            child.send(signal.SIGTERM)
            assert child.ended(10) == 1
        assert _gone(models)


def test_a_model_writes_to_the_log_in_triton_form(tmp_path: Path) -> None:
    file = add(tmp_path, "double") / "model.py"
    code = file.read_text(encoding="utf-8")
    logs = "    def initialize(self, args):\n        pb_utils.Logger.log_warn('Specific Msg!')\n\n"
    file.write_text(code.replace("    def execute", logs + "    def execute"), encoding="utf-8")
    with serve("--model-repository", tmp_path) as child:
        child.ready()
        child.wait_for(r'W\d{4} \S+ \d+ model\.py:6\] "Specific Msg!"')
