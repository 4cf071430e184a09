"""However a server ends, the processes of its Python models end with it, whatever they are doing."""

import json
import os
import signal
import socket
from pathlib import Path

import psutil
import pytest

from tests.e2e.child import serve
from tests.serving.backends.python.zoo import add
from tests.serving.frontends.streams import eventually

pytestmark = pytest.mark.e2e

TENSOR = {"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}


def runs(pid: int) -> bool:
    """Whether there is such a process, and it is not only waited for."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("stopped", [False, True])
def test_a_model_that_holds_its_interpreter_for_ever_ends_with_its_server(
    tmp_path: Path, number: signal.Signals, stopped: bool
) -> None:
    told = add(tmp_path, "holds") / "holds"
    with serve("--model-repository", tmp_path, "--exit-timeout-secs=1") as child:
        body = json.dumps({"inputs": [TENSOR]}).encode()
        head = b"POST /v2/models/holds/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
        with socket.create_connection(("127.0.0.1", child.ready().port("HTTPService"))) as connection:
            connection.sendall(head + body)
            eventually(told.exists)
            pid = int(told.read_text())
            assert runs(pid)
            if stopped:
                os.kill(pid, signal.SIGSTOP)
            child.send(number)
            assert child.ended(20) == (0 if number is signal.SIGTERM else -number)
    eventually(lambda: not runs(pid))
