"""Python models that crash, hang or run out of memory: of requests to other models none fails."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.serving import onnx_files
from tests.serving.backends.python.asking import ask, said, say, y_of
from tests.serving.backends.python.conftest import SAY
from tests.serving.backends.python.zoo import SAME, add
from tests.serving.live import Live, serving
from tests.serving.onnx_files import write_model
from tests.waiting import eventually

MEETS_THE_OTHERS = """
    def finalize(self):
        import os
        import time

        directory = pb_utils.get_model_dir()
        open(os.path.join(directory, "ends_%d" % os.getpid()), "w").close()
        for _ in range(1000):
            if sum(name.startswith("ends_") for name in os.listdir(directory)) == 4:
                open(os.path.join(directory, "met_%d" % os.getpid()), "w").close()
                return
            time.sleep(0.01)
"""


class Others:
    """Requests to other models, one after the other, and what became of them."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._ended = threading.Event()
        self.counts = {"double": 0, "net": 0}
        self.failures: list[str] = []

    def ask(self, model: str) -> None:
        while not self._ended.wait(0.005):
            answer = ask(self._live, model, 2)
            if answer.status == 200 and y_of(answer) == [4]:
                self.counts[model] += 1
            else:
                self.failures.append(f"{model}: {answer.status} {answer.body!r}")

    def end(self) -> None:
        self._ended.set()


@contextmanager
def while_others_serve(live: Live) -> Iterator[Others]:
    """All of their requests must succeed, afterwards, too."""
    others = Others(live)
    with ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(others.ask, model) for model in others.counts]
        try:
            yield others
            seen = others.counts.copy()
            eventually(lambda: all(others.counts[model] > seen[model] + 5 for model in seen))
        finally:
            others.end()
        for one in asked:
            one.result()
    assert not others.failures


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    add(tmp_path, "say", config=SAY)
    add(tmp_path, "double")
    write_model(tmp_path, "net", onnx_files.doubling("n"), "max_batch_size: 0 " + SAME)
    return tmp_path


def test_a_crash_harms_no_other_model(repository: Path) -> None:
    with serving(repository) as live, while_others_serve(live):
        before = said(say(live, "pid"))
        assert say(live, "crash").status == 503
        assert said(say(live, "pid")) != before


@pytest.mark.parametrize("how", ["huge", "limited"])
def test_a_model_out_of_memory_answers_with_an_error_and_goes_on(repository: Path, how: str) -> None:
    with serving(repository) as live, while_others_serve(live):
        before = said(say(live, "pid"))
        answer = say(live, how)
        assert answer.status == 500
        assert "MemoryError" in answer.error
        assert said(say(live, "pid")) == before


def test_a_model_that_the_kernel_kills_in_the_middle_of_an_allocation_is_back(repository: Path) -> None:
    with serving(repository) as live, while_others_serve(live), ThreadPoolExecutor(1) as pool:
        before = int(said(say(live, "pid")))
        filling = pool.submit(say, live, "fill")
        eventually(lambda: psutil.Process(before).memory_info().rss > 200 << 20)
        psutil.Process(before).kill()  # as the kernel does when there is no memory left
        assert filling.result().status == 503
        assert int(said(say(live, "pid"))) != before


def test_a_model_that_never_returns_is_unloaded_and_loaded_again(repository: Path) -> None:
    options = {
        "model_control_mode": "explicit",
        "load_model": ("*",),
        "backend_config": ("python,stub-timeout-seconds=1",),
    }
    with serving(repository, **options) as live, while_others_serve(live):
        process = psutil.Process(int(said(say(live, "pid"))))
        tensor = {"name": "say", "datatype": "BYTES", "shape": [1], "data": ["sleep_as hung 1000"]}
        raw = live.begin("/v2/models/say/infer", {"inputs": [tensor]})
        eventually((repository / "say" / "1" / "sleeps_hung").exists)
        assert live.get("/v2/models/say/ready").status == 200  # it is busy, for all that anybody can tell
        assert live.http("POST", "/v2/repository/models/say/unload").status == 200
        assert say(live, "pid").status == 404
        raw.close()  # from here on nobody waits for it
        eventually(lambda: not process.is_running())
        eventually(lambda: "UNAVAILABLE" in _state(live, "say"))
        assert live.http("POST", "/v2/repository/models/say/load").status == 200
        assert int(said(say(live, "pid"))) != process.pid


def _state(live: Live, model: str) -> str:
    index = live.http("POST", "/v2/repository/index").json
    return next(str(entry["state"]) for entry in index if entry["name"] == model)


def test_processes_are_finalized_at_the_same_time(tmp_path: Path) -> None:
    file = add(tmp_path, "double", config="instance_group { count: 4 }" + SAME) / "model.py"
    file.write_text(file.read_text() + MEETS_THE_OTHERS)
    with serving(tmp_path, model_control_mode="explicit", load_model=("double",)) as live:
        live.http("POST", "/v2/repository/models/double/unload")
        eventually(lambda: "UNAVAILABLE" in _state(live, "double"), 30)
    assert len(list(file.parent.glob("met_*"))) == 4


def test_a_process_that_goes_on_dying_is_given_up_and_harms_no_other_model(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "tpx.serving.backends.python.process._LONGEST_DELAY_S", 0.1
    )  # test_restarts.py has it
    config = SAME + "parameters { key: 'where' value { string_value: 'after' } }"
    add(repository, "broken", config=config)
    options: dict[str, Any] = {"model_control_mode": "explicit", "load_model": ("*",)}
    with serving(repository, **options) as live, while_others_serve(live) as others:
        assert ask(live, "broken", 1).status == 503
        eventually(lambda: "died repeatedly" in ask(live, "broken", 1).error, 45)
        assert "is no longer restarted" in ask(live, "broken", 1).error
        assert live.get("/v2/models/broken/ready").status == 400
        assert live.get("/v2/health/ready").status == 400
        assert sum(others.counts.values()) > 20
        (repository / "broken" / "1" / "once").unlink()
        assert live.http("POST", "/v2/repository/models/broken/unload").status == 200
        assert live.http("POST", "/v2/repository/models/broken/load").status == 200
        assert live.get("/v2/models/broken/ready").status == 200


def test_a_model_that_ponders_whether_it_is_ready_is_asked_once_for_all_who_wait(tmp_path: Path) -> None:
    directory = add(tmp_path, "ponders")
    with serving(tmp_path) as live, ThreadPoolExecutor(20) as pool:
        asking = [pool.submit(live.get, "/v2/models/ponders/ready") for _ in range(20)]
        eventually((directory / "asked").exists)
        assert live.get("/v2/health/live").status == 200
        (directory / "may").touch()
        assert {answer.result().status for answer in asking} == {200}
        assert live.get("/v2/models/ponders/ready").status == 200
        assert len((directory / "asked").read_text()) < 20


def test_readiness_is_answered_beside_a_long_execution_and_does_not_delay_another(tmp_path: Path) -> None:
    directory = add(tmp_path, "ponders", config=SAME + "instance_group { count: 1 }")
    with serving(tmp_path) as live, ThreadPoolExecutor(2) as pool:
        question = pool.submit(live.get, "/v2/models/ponders/ready")
        eventually((directory / "asked").exists)
        assert y_of(ask(live, "ponders", 1)) == [1]  # while is_ready computes
        (directory / "may").touch()
        assert question.result().status == 200
        long = pool.submit(ask, live, "ponders", -1)
        for path in ("/v2/models/ponders/ready", "/v2/health/ready"):
            assert live.get(path).status == 200
        (directory / "not").touch()
        for path in ("/v2/models/ponders/ready", "/v2/health/ready"):
            assert live.get(path).status == 400
        (directory / "may").unlink()
        assert live.get("/v2/models/ponders/ready").status == 400  # not answered in time: as before
        assert not long.done()
        (directory / "end").touch()
        assert y_of(long.result()) == [-1]


def test_a_question_that_hangs_leaves_the_last_answer_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = add(tmp_path, "ponders", config=SAME + "instance_group { count: 1 }")
    (directory / "may").touch()
    with serving(tmp_path) as live:
        assert live.get("/v2/models/ponders/ready").status == 200
        (directory / "may").unlink()
        assert live.get("/v2/models/ponders/ready").status == 200
        monkeypatch.setattr("tpx.serving.backends.python.lifecycle._HANGING_NS", 0)
        assert live.get("/v2/models/ponders/ready").status == 400
