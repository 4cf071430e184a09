"""A child server and what can become of it, with small programs in the place of the server."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import psutil
import pytest

from tpx.analyzer.runners.local import ChildServer
from tpx.errors import MeasurementError

SPEAKS_V2 = """
import http.server, signal, sys, time
class Ready(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.send_header("Content-Length", "0"); self.end_headers()
    def log_message(self, *args): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Ready)
if "stubborn" in sys.argv: signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(f"Started HTTPService at 127.0.0.1:{server.server_address[1]}")
print("Started GRPCInferenceService at 127.0.0.1:5")
if "slow" in sys.argv: time.sleep(0.3)
print("Started Metrics Service at 127.0.0.1:6")
print("serving")
server.serve_forever()
"""


def script(code: str, *words: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code, *words)


def run(steps: Coroutine[Any, Any, None]) -> None:
    asyncio.run(steps)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "server.log"


def test_a_ready_server_tells_its_ports(log: Path) -> None:
    async def steps() -> None:
        server = await ChildServer.start(script(SPEAKS_V2), log)
        with pytest.raises(MeasurementError, match="has not reported its ports"):
            _ = server.addresses
        try:
            await server.ready(10)
            assert server.addresses.grpc == "127.0.0.1:5"
            assert server.addresses.metrics_url == "http://127.0.0.1:6/metrics"
            assert server.log_tail()[-1] == "serving"
            assert psutil.pid_exists(server.pid or 0)
        finally:
            await server.stop()
        assert not psutil.pid_exists(server.pid or 0)

    run(steps())


def test_ports_that_are_read_while_the_server_logs_them_are_complete(log: Path) -> None:
    async def steps() -> None:
        server = await ChildServer.start(script(SPEAKS_V2, "slow"), log)
        try:
            await server.ready(10)
            assert server.addresses.metrics_url == "http://127.0.0.1:6/metrics"
        finally:
            await server.stop()

    run(steps())


def test_each_server_has_its_own_words_in_a_log_that_is_kept(log: Path) -> None:
    log.write_text("Started HTTPService at 127.0.0.1:1\nStarted GRPCInferenceService at 127.0.0.1:1\n")

    async def steps() -> None:
        server = await ChildServer.start(script(SPEAKS_V2), log)
        try:
            await server.ready(10)
            assert server.addresses.http != "127.0.0.1:1"
            assert len(server.log_tail()) == 4
        finally:
            await server.stop()

    run(steps())
    assert log.read_text().count("Started HTTPService") == 2


def test_a_server_gets_the_environment_that_is_asked_for(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORD", "replaced")
    monkeypatch.setenv("TPX_SERVE_LOG_VERBOSE", "1")

    async def steps() -> None:
        code = """import os; env = os.environ
print(env["WORD"], "PATH" in env, [name for name in env if name[:10] == "TPX_SERVE_"])
raise SystemExit(3)"""
        asked = {"WORD": "hello", "TPX_SERVE_ID": "x"}
        server = await ChildServer.start(script(code), log, asked)
        expected = r"ended with status 3 before it was ready: hello True \['TPX_SERVE_ID'\]"
        with pytest.raises(MeasurementError, match=expected):
            await server.ready(10)

    run(steps())


def test_a_server_that_does_not_answer_fails_at_the_limit(log: Path) -> None:
    async def steps() -> None:
        server = await ChildServer.start(script("import time; time.sleep(60)"), log)
        try:
            with pytest.raises(MeasurementError, match=r"the server was not ready after 0\.3 s"):
                await server.ready(0.3)
        finally:
            await server.stop()

    run(steps())


def test_a_server_that_ends_at_once_is_reported_with_its_last_words(log: Path) -> None:
    async def steps() -> None:
        server = await ChildServer.start(script("print('out of memory'); raise SystemExit(7)"), log)
        with pytest.raises(MeasurementError, match="ended with status 7 before it was ready: out of memory"):
            await server.ready(10)
        await server.stop()

    run(steps())


def test_the_last_logged_error_says_why_a_server_ended(log: Path) -> None:
    lines = (
        "E1120 13:44:32.489543 31746 repository.py:88] failed to load 'm' version 1: no such file",
        "error: creating server: Internal - failed to load 1 of 1 models: m",
    )

    async def steps() -> None:
        code = f"print('\\n'.join({lines!r})); raise SystemExit(1)"
        server = await ChildServer.start(script(code), log)
        with pytest.raises(
            MeasurementError, match="before it was ready: failed to load 'm' version 1: no such"
        ):
            await server.ready(10)

    run(steps())


def test_a_killed_server_is_reported_with_the_signal(log: Path) -> None:
    async def steps() -> None:
        server = await ChildServer.start(script(SPEAKS_V2), log)
        await server.ready(10)
        os.kill(server.pid or 0, signal.SIGKILL)
        assert await server.died() == "the server was killed by signal 9 while it was measured"

    run(steps())


def test_a_server_that_ignores_sigterm_is_killed(log: Path) -> None:

    async def steps() -> None:
        server = await ChildServer.start(script(SPEAKS_V2, "stubborn"), log)
        await server.ready(10)
        await server.stop(0.2)
        assert not psutil.pid_exists(server.pid or 0)

    run(steps())


def test_a_command_that_does_not_exist_is_named(log: Path) -> None:
    async def steps() -> None:
        with pytest.raises(MeasurementError, match="cannot start /no/such/server"):
            await ChildServer.start(("/no/such/server",), log)

    run(steps())


@pytest.mark.skipif(sys.platform != "linux", reason="the parent's death is told on Linux only")
def test_no_server_outlives_a_killed_analyzer(log: Path) -> None:
    analyzer = """
import asyncio, sys
from pathlib import Path
from tpx.analyzer.runners.local import ChildServer
async def main():
    command = (sys.executable, "-c", "import time; time.sleep(60)")
    server = await ChildServer.start(command, Path(sys.argv[1]))
    print(server.pid, flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""
    with subprocess.Popen(script(analyzer, str(log)), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        server = psutil.Process(int(process.stdout.readline()))
        process.kill()
    deadline_ns = time.monotonic_ns() + 30_000_000_000
    while server.is_running() and server.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic_ns() < deadline_ns, "the server is still there"
        time.sleep(0.01)
