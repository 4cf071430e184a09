"""Python models under a real server: signals, kills, and what is left behind."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import tritonclient.http as client
from tritonclient.utils import InferenceServerException

from tests.e2e.child import Child, serve
from tests.serving.backends.python.asking import floats
from tests.serving.backends.python.zoo import add

pytestmark = pytest.mark.e2e

SLOW = """
import time
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        print("executes", flush=True)
        time.sleep(1.0)
        tensors = [pb_utils.Tensor("y", request.inputs()[0].as_numpy()) for request in requests]
        return [pb_utils.InferenceResponse([tensor]) for tensor in tensors]

    def finalize(self):
        print("finalized", flush=True)
"""

STAYS = """
    def finalize(self):
        import time

        time.sleep(600)
"""


def _models_of(child: Child) -> list[psutil.Process]:
    return [model for starter in child.engine.children() for model in starter.children()]


def _gone(processes: list[psutil.Process]) -> bool:
    _, alive = psutil.wait_procs(processes, timeout=20)
    return not alive


def _input() -> client.InferInput:
    given = client.InferInput("x", [2], "FP32")
    given.set_data_from_numpy(floats(1, 2))
    return given


def _infer(child: Child, model: str) -> Any:
    with client.InferenceServerClient(f"127.0.0.1:{child.port('HTTPService')}") as http:
        return http.infer(model, [_input()]).as_numpy("y").tolist()


@contextmanager
def executing(child: Child, model: str) -> Iterator[Future[Any]]:
    """A request that its model computes."""
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(_infer, child, model)
        child.wait_for("executes")
        yield answer


def test_killing_the_server_leaves_no_model_behind(tmp_path: Path) -> None:
    add(tmp_path, "double")
    file = add(tmp_path, "busy", code="double") / "model.py"
    file.write_text(SLOW.replace("time.sleep(1.0)", "time.sleep(600)"), encoding="utf-8")
    with serve("--model-repository", tmp_path) as child:
        child.ready()
        with executing(child, "busy"):
            models = _models_of(child)
            assert len(models) == 2
            others = child.engine.children()
            child.send(signal.SIGKILL)
            assert _gone([*models, *others])


STARTS_OTHERS = """
import multiprocessing
import subprocess
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        forked = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
        forked.start()
        time.sleep(0.2)
        forked.terminate()
        forked.join()
        executed = subprocess.Popen(["sleep", "600"])
        executed.terminate()
        statuses = np.array([forked.exitcode, executed.wait()], dtype=np.float32)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", statuses)]) for _ in requests]
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_every_process_of_a_service_lets_models_answer_first(
    tmp_path: Path, number: signal.Signals
) -> None:
    file = add(tmp_path, "slow", code="double") / "model.py"
    file.write_text(SLOW, encoding="utf-8")
    with serve("--model-repository", tmp_path) as child:
        child.ready()
        models = _models_of(child)
        for model in models:  # a terminal tells its whole group: they are not in it
            assert os.getpgid(model.pid) != os.getpgid(child.pid)
        with executing(child, "slow") as answer:
            for process in (*models, psutil.Process(child.pid)):
                process.send_signal(number)
            assert answer.result() == [1, 2]
        assert child.ended(20) == 0
        assert "finalized" in child.text
        assert _gone(models)


def test_processes_that_a_model_starts_end_when_it_says_so(tmp_path: Path) -> None:
    file = add(tmp_path, "parent", code="double") / "model.py"
    file.write_text(STARTS_OTHERS, encoding="utf-8")
    with serve("--model-repository", tmp_path) as child:
        child.ready()
        assert _infer(child, "parent") == [-signal.SIGTERM, -signal.SIGTERM]


FORKS_AND_DIES = """
import os
import time


class TritonPythonModel:
    def initialize(self, args):
        if not os.fork():
            time.sleep(600)

    def execute(self, requests):
        os._exit(3)
"""


def test_the_death_of_a_model_is_noticed_and_ends_what_it_forked(tmp_path: Path) -> None:
    file = add(tmp_path, "forks", code="double") / "model.py"
    file.write_text(FORKS_AND_DIES, encoding="utf-8")
    with serve("--model-repository", tmp_path) as child:
        child.ready()
        forked = [process for model in _models_of(child) for process in model.children()]
        with pytest.raises(InferenceServerException, match="is not healthy"):
            _infer(child, "forks")
        assert forked
        assert _gone(forked)
        child.wait_for("restarted the process")
        restarted = [process for model in _models_of(child) for process in model.children()]
        assert restarted
        child.send(signal.SIGKILL)
        assert _gone(restarted)


def test_a_model_that_hangs_does_not_hold_the_server_for_ever(tmp_path: Path) -> None:
    file = add(tmp_path, "busy", code="double") / "model.py"
    file.write_text(SLOW.replace("time.sleep(1.0)", "time.sleep(600)"), encoding="utf-8")
    with serve("--model-repository", tmp_path, "--exit-timeout-secs", "1") as child:
        child.ready()
        models = _models_of(child)
        with executing(child, "busy"):
            child.send(signal.SIGTERM)
            assert child.ended(20) == 0
        assert _gone(models)


def test_a_model_that_does_not_end_does_not_hold_the_server_for_ever(tmp_path: Path) -> None:
    file = add(tmp_path, "stays", code="double") / "model.py"
    file.write_text(file.read_text(encoding="utf-8") + STAYS, encoding="utf-8")
    with serve("--model-repository", tmp_path, "--exit-timeout-secs", "1") as child:
        child.ready()
        models = _models_of(child)
        child.send(signal.SIGTERM)
        assert child.ended(20) == 0
        assert "Exit timeout expired. Exiting immediately." in "\n".join(child.err)
        assert _gone(models)
