"""The processes of Python models: how they begin, die, come back and end."""

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.serving.backends.python.asking import ask, said, say, y_of
from tests.serving.backends.python.conftest import ONE, SAY
from tests.serving.backends.python.zoo import DECOUPLED, SAME, add
from tests.serving.live import Live, serving
from tests.waiting import eventually

ZOO = ("say",)
UNHEALTHY = (
    "Failed to process the request(s) for model 'say_0_0', message: Stub process 'say_0_0' is not healthy."
)
ANSWERS_AND_DIES = """
import os
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        tensor = pb_utils.Tensor("y", requests[0].inputs()[0].as_numpy())
        sender = requests[0].get_response_sender()
        sender.send(pb_utils.InferenceResponse([tensor]), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        time.sleep(0.1)
        os._exit(3)
"""
FORKS = """
import os
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        child = os.fork()
        if not child:
            requests.clear()  # its views of the inputs end
            os._exit(0)
        os.waitpid(child, 0)
        folder = os.path.dirname(__file__)
        open(os.path.join(folder, "forked"), "w").close()
        while not os.path.exists(os.path.join(folder, "go_on")):
            time.sleep(0.01)
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("y", request.inputs()[0].as_numpy() * 2)])
            for request in requests
        ]
"""


def _broken(where: str) -> str:
    return SAME + f"parameters {{ key: 'where' value {{ string_value: '{where}' }} }}"


def _reason(live: Live, model: str) -> str:
    index = live.http("POST", "/v2/repository/index").json
    return next(str(entry["reason"]) for entry in index if entry["name"] == model)


def test_a_death_in_one_warm_up_fails_the_next_at_once(tmp_path: Path) -> None:
    inputs = "inputs { key: 'x' value { data_type: TYPE_FP32 dims: [ 1 ] zero_data: true } }"
    warm_ups = "".join(f"model_warmup {{ name: '{name}' batch_size: 1 {inputs} }} " for name in "ab")
    file = add(tmp_path, "dies", "double", SAME + ONE + warm_ups) / "model.py"
    file.write_text(ANSWERS_AND_DIES.replace("sender.send(", "os._exit(3)\n        print("), encoding="utf-8")
    with serving(tmp_path, exit_on_error=False) as live:
        reason = _reason(live, "dies")
        assert "failed to run warmup sample 'a'" in reason
        assert "failed to run warmup sample 'b'" in reason


def test_a_repository_may_be_named_by_a_relative_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(tmp_path / "models", "double")
    monkeypatch.chdir(tmp_path)
    with serving(Path("models")) as live:
        assert y_of(ask(live, "double", 1, 2)) == [2, 4]


@pytest.mark.parametrize("how", ["die", "leave"])
def test_a_death_fails_what_was_held_and_nothing_else(tmp_path: Path, how: str) -> None:
    add(tmp_path, "say", config=SAY)
    add(tmp_path, "double")
    with serving(tmp_path) as live:
        first = said(say(live, "pid"))
        stop = threading.Event()

        def others() -> int:
            count = 0
            while not stop.is_set():
                assert y_of(ask(live, "double", 2)) == [4]
                count += 1
            return count

        with ThreadPoolExecutor(2) as pool:
            counting = pool.submit(others)
            answer = say(live, how)
            assert (answer.status, answer.error) == (503, UNHEALTHY)
            [model] = [model for model in live.server.repository.served() if model.name == "say"]
            assert {why: n for why, n in model.statistics.failures.items() if n} == {"BACKEND": 1}
            again = said(say(live, "pid"))  # waits for the restart
            stop.set()
            assert counting.result() > 0
        assert again != first
        eventually(lambda: live.get("/v2/models/say/ready").status == 200)
        assert live.get("/v2/health/ready").status == 200


def test_a_model_is_told_of_clients_that_left_while_its_process_came_back(tmp_path: Path) -> None:
    directory = add(tmp_path, "flood", config=ONE + SAME + DECOUPLED)
    held, file = directory / "held", directory / "model.py"
    waits = "    def initialize(self, args):\n        while os.path.exists({!r}):\n            pass\n"
    code = file.read_text(encoding="utf-8") + waits.format(str(held))
    file.write_text(code, encoding="utf-8")
    with serving(tmp_path) as live:
        [model] = live.server.repository.served()
        held.touch()
        _children(tmp_path)[0].kill()
        eventually(lambda: not model.healthy)
        with live.begin("/v2/models/flood/generate_stream", {"x": [50000, 1]}):
            eventually(lambda: model.in_flight == 1)
        live.get("/v2")  # by then the server has seen that it left
        held.unlink()
        eventually(lambda: model.in_flight == 0, 5)


def test_an_answer_before_a_death_has_taken_no_time_that_nobody_knows(tmp_path: Path) -> None:
    file = add(tmp_path, "double", config=ONE + SAME) / "model.py"
    file.write_text(ANSWERS_AND_DIES, encoding="utf-8")
    with serving(tmp_path) as live:
        assert y_of(ask(live, "double", 2)) == [2]
        stats = live.get("/v2/models/double/stats").json["model_stats"][0]["inference_stats"]
    phases = [stats[f"compute_{phase}"]["ns"] for phase in ("input", "infer", "output")]
    assert all(0 <= ns <= stats["success"]["ns"] for ns in phases)


def test_an_answer_that_cannot_be_read_ends_its_process_and_is_an_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    add(tmp_path, "babbles", config=ONE + SAME)
    with serving(tmp_path) as live:
        assert ask(live, "babbles", -1).status == 503
        assert "an invalid frame" in caplog.text
        assert y_of(ask(live, "babbles", 2)) == [2]


def test_a_process_that_a_model_forks_leaves_its_inputs_alone(tmp_path: Path) -> None:
    directory = add(tmp_path, "forks", "double", ONE + SAME)
    (directory / "model.py").write_text(FORKS, encoding="utf-8")
    with serving(tmp_path) as live, ThreadPoolExecutor(2) as pool:
        [model] = live.server.repository.served()
        first = pool.submit(ask, live, "forks", *[1] * 10_000)
        eventually((directory / "forked").exists)
        second = pool.submit(ask, live, "forks", *[2] * 10_000)
        eventually(lambda: model.in_flight == 2)  # its inputs are in the memory of the process, too
        (directory / "go_on").touch()
        assert y_of(first.result()) == [2] * 10_000
        assert y_of(second.result()) == [4] * 10_000


def test_a_killed_process_is_back_and_readiness_shows_it(tmp_path: Path) -> None:
    held = add(tmp_path, "say", config=SAY) / "held"
    with serving(tmp_path) as live:
        held.touch()  # by the process that follows
        os.kill(int(said(say(live, "pid"))), signal.SIGKILL)
        eventually(lambda: live.get("/v2/models/say/ready").status == 400)
        held.unlink()
        eventually(lambda: live.get("/v2/models/say/ready").status == 200)


def test_other_instances_serve_while_one_is_restarted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    held = add(tmp_path, "say", config="instance_group { count: 2 }" + SAY) / "held"
    with serving(tmp_path) as live:
        assert len(_children(tmp_path)) == 3
        held.touch()  # by the process that follows
        killed = said(say(live, "pid"))
        os.kill(int(killed), signal.SIGKILL)
        # until the server has seen it, a request may still be given to the dead one
        eventually(lambda: "has ended unexpectedly" in caplog.text)
        assert killed not in {said(say(live, "pid")) for _ in range(20)}
        held.unlink()
        eventually(lambda: len(_children(tmp_path)) == 3)


def test_processes_that_stay_are_not_touched_when_others_join_or_leave(tmp_path: Path) -> None:
    config = add(tmp_path, "say", config=SAY).parent / "config.pbtxt"
    with serving(tmp_path, model_control_mode="explicit", load_model=("say",)) as live:

        def regroup(count: int) -> set[int]:
            config.write_text(config.read_text().replace(SAY, f"instance_group {{ count: {count} }}" + SAY))
            assert live.http("POST", "/v2/repository/models/say/load").status == 200
            eventually(lambda: len(_children(tmp_path)) == count + 1)
            assert said(say(live, "pid"))
            config.write_text(f"backend: 'python'\n{SAY}")
            return {child.pid for child in _children(tmp_path)}

        [first] = _children(tmp_path)
        three = regroup(3)
        assert first.pid in three
        two = regroup(1)
        assert first.pid in two < three
        stats = live.get("/v2/models/say/stats").json["model_stats"][0]
        assert stats["inference_count"] == 2


def test_what_a_dead_process_had_not_begun_is_computed_by_another(tmp_path: Path) -> None:
    add(tmp_path, "say", config="instance_group { count: 2 }" + SAY)
    with serving(tmp_path) as live, ThreadPoolExecutor(6) as pool:
        busy = [pool.submit(say, live, f"sleep_as {words}") for words in ("0 50", "1 0.5")]
        eventually(lambda: all((tmp_path / "say" / "1" / f"sleeps_{index}").exists() for index in range(2)))
        waiting = [pool.submit(say, live, "pid") for _ in range(4)]
        [model] = live.server.plane.served()
        eventually(lambda: model.in_flight == 6 or busy[1].done())
        os.kill(int((tmp_path / "say" / "1" / "sleeps_0").read_text()), signal.SIGKILL)
        assert (busy[0].result().status, busy[1].result().status) == (503, 200)
        assert all(said(answer.result()) for answer in waiting)


def test_what_the_only_process_had_not_begun_waits_for_its_successor(tmp_path: Path) -> None:
    add(tmp_path, "say", config=SAY)
    with serving(tmp_path) as live, ThreadPoolExecutor(3) as pool:
        busy = pool.submit(say, live, "sleep_as 0 50")
        marker = tmp_path / "say" / "1" / "sleeps_0"
        eventually(marker.exists)
        waiting = [pool.submit(say, live, "pid") for _ in range(2)]
        [model] = live.server.plane.served()
        eventually(lambda: model.in_flight == 3)
        before = marker.read_text()
        os.kill(int(before), signal.SIGKILL)
        assert busy.result().status == 503
        assert {said(answer.result()) for answer in waiting} != {before}


def test_instances_start_at_the_same_time(tmp_path: Path) -> None:
    add(tmp_path, "slow_start", config="instance_group { count: 4 }" + SAME)
    with serving(tmp_path) as live:
        assert y_of(ask(live, "slow_start", 1)) == [1]
    assert len(list((tmp_path / "slow_start" / "1").glob("begins_*"))) == 4


def test_the_others_are_not_waited_for_when_an_instance_cannot_start(tmp_path: Path) -> None:
    add(tmp_path, "slow_start", config="instance_group { count: 3 }" + SAME)
    (tmp_path / "slow_start" / "1" / "fails").touch()
    with serving(tmp_path, exit_on_error=False) as live:
        assert "RuntimeError: the first one fails" in _reason(live, "slow_start")
        eventually(lambda: not _children(tmp_path))


def _children(repository: Path) -> list[psutil.Process]:
    found = []
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if child.status() != psutil.STATUS_ZOMBIE and Path(child.cwd()).is_relative_to(repository):
                found.append(child)
    return found


@pytest.mark.parametrize(
    ("where", "reason"),
    [
        ("initialize", "Internal: RuntimeError: no weights\n\nAt:\n"),
        ("dies", "Stub process 'broken_0' is not healthy."),
    ],
)
def test_a_model_that_cannot_be_initialized_is_not_loaded(tmp_path: Path, where: str, reason: str) -> None:
    add(tmp_path, "broken", config=_broken(where))
    with serving(tmp_path, exit_on_error=False) as live:
        assert reason in _reason(live, "broken")
        eventually(lambda: not _children(tmp_path))


def test_an_instance_that_cannot_be_initialized_is_not_tried_again_while_others_are(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    add(tmp_path, "second_fails", config="instance_group { count: 2 }" + SAME)
    with serving(tmp_path, exit_on_error=False) as live:
        assert "the second one fails" in _reason(live, "second_fails")
    assert (tmp_path / "second_fails" / "1" / "tries").read_text() == "."
    assert "has ended unexpectedly" not in caplog.text


def test_a_model_is_unloaded_at_once_while_its_process_comes_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    held = add(tmp_path, "say", config=SAY) / "held"
    with serving(tmp_path, model_control_mode="explicit", load_model=("say",)) as live:
        [killed] = _children(tmp_path)
        held.touch()
        killed.kill()
        eventually(lambda: any(child.pid != killed.pid for child in _children(tmp_path)))
        assert live.http("POST", "/v2/repository/models/say/unload").status == 200
        eventually(lambda: b'"unloaded"' in live.http("POST", "/v2/repository/index").body, 5)
        assert not _children(tmp_path)
    assert "an invalid frame" not in caplog.text
    assert "did not end in time" not in caplog.text


def test_what_a_model_cannot_import_is_told_with_its_own_line_alone(tmp_path: Path) -> None:
    path = add(tmp_path, "broken") / "model.py"
    path.write_text("import no_such_package\n", encoding="utf-8")
    with serving(tmp_path, exit_on_error=False) as live:
        assert _reason(live, "broken") == (
            "Internal: ModuleNotFoundError: No module named 'no_such_package'\n\n"
            f"At:\n  {path}(1): <module>\n"
        )


def test_a_model_without_its_file_says_which(tmp_path: Path) -> None:
    add(tmp_path, "double")
    (tmp_path / "double" / "1" / "model.py").unlink()
    (tmp_path / "double" / "1" / "other.py").write_text("")
    with serving(tmp_path, exit_on_error=False) as live:
        assert "Python model file not found in" in _reason(live, "double")


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("def f(:\n", "SyntaxError"),
        ("import nonsense_that_is_not_there\n", "ModuleNotFoundError"),
        ("x = 1\n", "AttributeError"),
        ("class TritonPythonModel:\n    pass\n", "has no function 'execute'"),
    ],
)
def test_a_file_that_is_no_model_says_why(tmp_path: Path, code: str, reason: str) -> None:
    add(tmp_path, "double")
    (tmp_path / "double" / "1" / "model.py").write_text(code)
    with serving(tmp_path, exit_on_error=False) as live:
        assert reason in _reason(live, "double")


def test_unloading_finalizes_and_leaves_no_process(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = add(tmp_path, "double") / "model.py"
    code = file.read_text() + "\n    def finalize(self):\n        print('finalized', flush=True)\n"
    file.write_text(code)
    with serving(tmp_path, model_control_mode="explicit", load_model=("double",)) as live:
        assert len(_children(tmp_path)) == 1
        live.http("POST", "/v2/repository/models/double/unload")
        eventually(lambda: not _children(tmp_path))
    assert capfd.readouterr().out == "finalized\n"


def test_reloading_imports_the_file_as_it_is_now(tmp_path: Path) -> None:
    file = add(tmp_path, "double") / "model.py"
    with serving(tmp_path, model_control_mode="explicit", load_model=("double",)) as live:
        assert y_of(ask(live, "double", 2)) == [4]
        file.write_text(file.read_text().replace("* 2", "* 50"))
        assert live.http("POST", "/v2/repository/models/double/load").status == 200
        assert y_of(ask(live, "double", 2)) == [100]


def test_shared_memory_has_no_name_that_others_could_open(live: Live) -> None:
    before = named_mappings()
    say(live, "keep " + "z" * 400_000)
    assert named_mappings() <= before


def named_mappings() -> set[str]:
    """Files in /dev/shm that this process, with the server in it, has mapped."""
    return {
        line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "/dev/shm/" in line
    }


def test_restarts_leave_no_descriptors_behind(tmp_path: Path) -> None:
    add(tmp_path, "double")
    with serving(tmp_path, model_control_mode="explicit", load_model=("double",)) as live:
        large = list(map(float, range(20_000)))
        y_of(ask(live, "double", *large))
        before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
        for _ in range(3):
            os.kill(_children(tmp_path)[0].pid, signal.SIGKILL)
            eventually(lambda: live.get("/v2/models/double/ready").status == 400, 2)
            eventually(lambda: live.get("/v2/models/double/ready").status == 200)
            y_of(ask(live, "double", *large))
        assert len(os.listdir("/proc/self/fd")) <= before + 1  # noqa: PTH208
