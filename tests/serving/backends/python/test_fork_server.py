"""Models' processes are forked from one that has imported what they need."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.serving.backends.python.asking import facts
from tests.serving.backends.python.conftest import SAY
from tests.serving.backends.python.zoo import add
from tests.serving.live import Live, serving
from tests.waiting import eventually
from tpx.serving.backends.python import fork_server
from tpx.serving.transport.memory import reserve_memory


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Live]:
    for name in ("first", "second"):
        add(tmp_path, name, "born", config=SAY)
    with serving(tmp_path, model_control_mode="explicit") as live:
        yield live


def born(live: Live, name: str) -> Any:
    """Load a model; return how its process began."""
    assert live.http("POST", f"/v2/repository/models/{name}/load").status == 200
    return asked(live, name)


def asked(live: Live, name: str) -> Any:
    tensor = {"name": "say", "datatype": "BYTES", "shape": [1], "data": [""]}
    return facts(live.infer(name, {"inputs": [tensor]}))


def test_processes_share_imports_but_no_session_directory_environment_or_random_numbers(
    live: Live, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = born(live, "first")
    monkeypatch.setenv("TOLD", "yes")
    second = born(live, "second")
    assert first["parent"] == second["parent"] != os.getpid()
    assert (first["session"], second["session"]) == (first["pid"], second["pid"])
    assert first["directory"] == str(tmp_path / "first" / "1")
    assert second["directory"] == str(tmp_path / "second" / "1")
    assert (first["told"], second["told"]) == (None, "yes")
    assert first["random"] != second["random"]


def test_models_outlive_the_process_that_forked_them_and_others_can_be_loaded(live: Live) -> None:
    first = born(live, "first")
    assert first["parent"] != os.getpid()
    os.kill(first["parent"], signal.SIGKILL)
    second = born(live, "second")
    assert second["parent"] != first["parent"]
    assert asked(live, "first")["pid"] == first["pid"]
    assert live.http("POST", "/v2/repository/models/first/unload").status == 200
    eventually(lambda: not psutil.pid_exists(first["pid"]))


def test_variables_that_are_read_at_the_start_take_another_process_to_fork_from(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = born(live, "first")
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "2")
    assert born(live, "second")["parent"] not in (first["parent"], os.getpid())


def test_a_process_of_which_the_server_was_not_told_serves_nothing() -> None:
    orders, other_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours, models = socket.socketpair()
    ours.settimeout(30)
    lifeline = os.pipe()
    descriptors = [models.fileno(), lifeline[0], lifeline[0]]
    order = json.dumps({"directory": None, "environment": {}}).encode()
    command = [sys.executable, str(fork_server.CHILD), "fork", str(other_end.fileno())]
    with (
        ours,
        orders,
        subprocess.Popen(command, pass_fds=[other_end.fileno()], start_new_session=True) as child,
    ):
        other_end.close()
        memory = [reserve_memory() for _ in range(2)]
        socket.send_fds(orders, [order], [1, 2, *descriptors, *(each[0] for each in memory)])
        orders.close()  # it cannot answer
        models.close()
        assert ours.recv(1) == b"", "another process holds the model's socket"
    assert child.returncode != 0
    for descriptor in (*lifeline, *(each[0] for each in memory)):
        os.close(descriptor)


def test_a_process_that_was_forked_starts_its_own() -> None:
    first = fork_server.fork_server()
    assert first is not None
    pid = os.fork()
    if pid == 0:
        other = fork_server.fork_server()
        os._exit(other in (None, first))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert fork_server.fork_server() is first
