"""However a server ends, the processes of its Python models end with it, whatever they are doing."""

import os
import signal
import socket
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from tests.e2e.child import serve
from tests.serving.backends.python.zoo import add
from tests.serving.live import post_request
from tests.waiting import eventually

pytestmark = pytest.mark.e2e

TENSOR = {"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}


def runs(pid: int) -> bool:
    """Whether there is such a process, and it is not only waited for."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def end(repository: Path, number: signal.Signals, *, stopped: bool) -> None:
    """End a server whose model holds its interpreter; fails unless the process of the model ends as well."""
    told = add(repository, "holds") / "holds"
    with (
        serve("--model-repository", repository, "--exit-timeout-secs=1") as child,
        socket.create_connection(("127.0.0.1", child.ready().port("HTTPService"))) as connection,
    ):
        connection.sendall(post_request("/v2/models/holds/infer", {"inputs": [TENSOR]}))
        eventually(told.exists)
        pid = int(told.read_text())
        assert runs(pid)
        if stopped:
            os.kill(pid, signal.SIGSTOP)
        child.send(number)
        assert child.ended(20) == (0 if number is signal.SIGTERM else -number)
    eventually(lambda: not runs(pid))


CASES = [(number, stopped) for number in (signal.SIGTERM, signal.SIGKILL) for stopped in (False, True)]


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[object, "Future[None]"]]:
    """All cases at the same time: they wait for seconds."""
    with ThreadPoolExecutor(len(CASES)) as pool:
        yield {
            (number, stopped): pool.submit(end, tmp_path_factory.mktemp("holds"), number, stopped=stopped)
            for number, stopped in CASES
        }


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_model_that_holds_its_interpreter_for_ever_ends_with_its_server(
    ends: Mapping[object, "Future[None]"], case: object
) -> None:
    ends[case].result()
