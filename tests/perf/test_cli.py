"""`tpx perf` as a command: streams, files, exit statuses, Ctrl-C."""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.perf.conftest import make_level
from tests.perf.conversing import Request, conversing
from tests.perf.servers import Behaviour, grpc_server, http_server
from tpx.cli.interrupts import Interrupts
from tpx.cli.perf import exit_status, main
from tpx.options import build
from tpx.perf.clients.model import ModelDescription, ServerDescription
from tpx.perf.options import SessionSpec
from tpx.perf.report.model import Report
from tpx.perf.results import LevelResult, Verdict

QUICK = ["-m", "net", "-p", "40", "-s", "500"]


def report(*levels: LevelResult, interrupted: bool = False) -> Report:
    return Report(
        config=build(SessionSpec, {"model": "net"}),
        server=ServerDescription(name="s", version="1", extensions=frozenset()),
        model=ModelDescription(name="net", inputs=()),
        levels=levels,
        started="",
        finished="",
        interrupted=interrupted,
    )


def allowing_partial(made: Report) -> Report:
    return replace(
        made, config=replace(made.config, answers=replace(made.config.answers, allow_partial=True))
    )


OK = make_level()
UNSTABLE = make_level(verdict=Verdict.UNSTABLE, stable=False)
OVER = make_level(verdict=Verdict.OVER_LIMIT)
EMPTY = make_level(verdict=Verdict.ERRORS, latency=None, client=None, requests=0)
SPENT = make_level(verdict=Verdict.ERRORS, over_budget=True)


@pytest.mark.parametrize(
    ("result", "status"),
    [
        (report(OK), 0),
        (report(OK, UNSTABLE), 0),
        (report(OK, OVER), 0),
        (report(OVER), 0),
        (report(UNSTABLE), 2),
        (report(UNSTABLE, UNSTABLE), 2),
        (report(EMPTY), 3),
        (report(OK, EMPTY), 3),
        (report(SPENT), 6),
        (report(OK, SPENT), 6),
        (report(UNSTABLE, interrupted=True), 130),
        (allowing_partial(report(UNSTABLE, interrupted=True)), 0),
        (allowing_partial(report(EMPTY, interrupted=True)), 130),
        (report(EMPTY, interrupted=True), 130),
        (report(interrupted=True), 130),
        (replace(report(OK), error="gone"), 99),
    ],
)
def test_the_exit_status_says_how_it_ended(result: Report, status: int) -> None:
    assert exit_status(result) == status


def test_results_go_to_stdout_and_into_the_files(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = ["-f", str(tmp_path / "a.csv"), "--json", str(tmp_path / "a.json")]
    (tmp_path / "perf.yaml").write_text("concurrency_range: '1:2'\nurl: nowhere:1\n", encoding="utf-8")
    monkeypatch.setenv("TPX_PERF_HEADER", "Authorization: Bearer x")
    with http_server(Behaviour()) as url:
        monkeypatch.setenv("TPX_PERF_URL", url)
        status = main([*QUICK, "--config-file", str(tmp_path / "perf.yaml"), *files])
    out, err = capfd.readouterr()
    told = [line for line in err.splitlines() if not line.startswith("WARNING: Measurement")]
    assert (status, told) == (0, [f"Wrote {tmp_path / 'a.csv'}, {tmp_path / 'a.json'}"])
    assert out.startswith("*** Measurement Settings ***\n  Batch size: 1\n")
    assert "\n\nRequest concurrency: 1\n  Client: \n" in out
    assert "\n\nInferences/Second vs. Client Average Batch Latency\nConcurrency: 1, throughput: " in out
    assert len((tmp_path / "a.csv").read_text().splitlines()) == 3
    document = json.loads((tmp_path / "a.json").read_text())
    assert [level["value"] for level in document["levels"]] == [1, 2]
    # with those of the variables and the file: they repeat the run
    added = ["--concurrency-range=1:2", f"--url={url}", "--header=Authorization:***"]
    assert sorted(document["argv"][:3]) == sorted(added)
    assert document["argv"][3:5] == ["-m", "net"]


def test_a_shown_configuration_is_no_run(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TPX_PERF_URL", "http://me:secret@localhost:1")
    monkeypatch.setenv("TPX_PERF_HEADER", "X-Api-Key: secret\nX-Tag: a")
    assert main(["-m", "net", "--percentile=95", "--show-config"]) == 0
    out, err = capfd.readouterr()
    shown = {line.partition("  # ")[0].strip(): line.rpartition("# ")[2] for line in out.splitlines()}
    assert shown["model: net"] == "-m"
    assert shown["percentile: 95.0"] == "--percentile"
    assert shown["# url: http://***@localhost:1"] == "TPX_PERF_URL"
    assert shown["# header: ['X-Api-Key:***', 'X-Tag: a']"] == "TPX_PERF_HEADER"
    assert ("secret" in out, err) == (False, "")
    assert main(["--show-config"]) == 99
    assert "# model: ''" in capfd.readouterr().out


def test_an_unknown_variable_is_a_warning(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TPX_PERF_CONCURENCY_RANGE", "2")
    main(["-m", "net", "-u", "localhost:1"])
    assert capfd.readouterr().err.startswith(
        "Warning: unknown environment variable 'TPX_PERF_CONCURENCY_RANGE' (did you mean "
        "'TPX_PERF_CONCURRENCY_RANGE'?)\n"
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-m", "net", "-b", "0"], "Error: Failed to parse -b (batch size). The value must be > 0."),
        (
            ["comprae", "a", "b"],
            "Error: 'comprae' is neither an option nor a command (did you mean 'compare'?): give the "
            "model as -m comprae",
        ),
        (["-m", "net", "--xyzzy"], "Error: Invalid long option '--xyzzy'"),
        (
            ["-m", "net", "--service-kind", "tirton"],
            "Error: Failed to parse --service-kind. Unsupported type provided: 'tirton'. The available "
            "options are 'triton', 'tfserving', 'torchserve', 'triton_c_api', 'openai', 'dynamic_grpc', "
            "'inprocess', 'local' "
            "(did you mean 'triton'?).",
        ),
        (
            ["-m", "net", "-f", "/no/such/folder/a.csv"],
            "Error: -f /no/such/folder/a.csv: there is no directory /no/such/folder; create it first",
        ),
    ],
)
def test_a_usage_error_is_99_on_stderr(
    words: list[str], message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 99
    out, err = capfd.readouterr()
    assert (out, err.splitlines()[0]) == ("", message)


@pytest.mark.parametrize(
    ("server", "protocol", "asked"),
    [
        (http_server, "http", '* GET /v2/models/net: 200, {"name": "net", '),
        (grpc_server, "grpc", '* ModelMetadata(name: "net"): name: "net" versions: "1" '),
    ],
)
def test_verbose_twice_tells_every_step_on_stderr(
    server: Callable[[Behaviour], AbstractContextManager[str]],
    protocol: str,
    asked: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    words = [*QUICK, "-i", protocol, "--request-count", "3"]
    with server(Behaviour()) as url:
        assert main([*words, "-u", url, "-v"]) == 0
        once, err = capfd.readouterr()
        assert "* " not in err
        assert main([*words, "-u", url, "-v", "-v"]) == 0
        twice, err = capfd.readouterr()
        assert main([*words, "-u", url, "-vv"]) == 0
        assert len(capfd.readouterr().err.splitlines()) == len(err.splitlines())
    assert asked in err
    assert re.search(r'^\* request: .*"x".*, 16 bytes of tensors behind it$', err, re.M)
    assert re.search(r"^\* concurrency 1, window 1: .* s, 3 requests, 0 failed, .* infer/sec", err, re.M)
    # whether three latencies are skewed is chance
    sizes = {len([line for line in text.splitlines() if "Skewed" not in line]) for text in (once, twice)}
    assert len(sizes) == 1


def test_a_proxy_of_the_environment_is_for_other_machines_and_named_in_errors(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("http_proxy", "http://me:secret@127.0.0.1:9")
    with http_server(Behaviour()) as url:
        assert main([*QUICK, "-u", url, "--request-count", "1"]) == 0
    assert "proxy" not in capfd.readouterr().err
    assert main([*QUICK, "-u", "server.invalid:8000"]) == 99
    error = capfd.readouterr().err
    assert "cannot connect to server.invalid:8000 through the proxy http://127.0.0.1:9: " in error
    assert "requests go through a proxy, sent by httpx (http_proxy=http://me:***@127.0.0.1:9))" in error
    assert main([*QUICK, "-u", "server.invalid:8000", "--client", "tpx"]) == 99
    error = capfd.readouterr().err
    assert "cannot connect to server.invalid:8000: " in error
    assert "http_proxy is not used: --client tpx connects directly)" in error


def test_a_server_that_is_not_there_is_99(capfd: pytest.CaptureFixture[str]) -> None:
    assert main([*QUICK, "-u", "127.0.0.1:9"]) == 99
    error = capfd.readouterr().err
    assert "Error: cannot connect to 127.0.0.1:9" in error
    assert error.endswith("(start one with `tpx serve`, or set its address with -u)\n")


def test_a_service_that_tpx_serve_is_not_is_to_be_looked_for_elsewhere(
    capfd: pytest.CaptureFixture[str],
) -> None:
    openai = ("--service-kind", "openai", "--endpoint", "v1/completions")
    assert main([*QUICK, "-u", "127.0.0.1:9", *openai]) == 99
    assert capfd.readouterr().err.endswith(" (set its address with -u)\n")


def test_a_failure_of_every_request_is_3_with_the_servers_words(capfd: pytest.CaptureFixture[str]) -> None:
    with http_server(Behaviour(status=lambda _: 400)) as url:
        assert main([*QUICK, "-u", url]) == 3
    out, err = capfd.readouterr()
    assert "The first: HTTP 400: failed on purpose with 400" in err
    assert "Concurrency: 1, throughput: 0 infer/sec, latency 0 usec (errors)" in out


def test_one_failure_in_many_is_no_failure_of_the_run_unless_none_is_allowed() -> None:
    words = [*QUICK, "--request-count", "50"]
    with http_server(Behaviour(status=lambda n: 500 if n == 20 else 0)) as url:
        assert main([*words, "-u", url]) == 0
    with http_server(Behaviour(status=lambda n: 500 if n == 20 else 0)) as url:
        assert main([*words, "-u", url, "--max-errors", "0"]) == 6


def test_an_unstable_only_level_is_2_and_its_file_holds_the_header(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    csv = tmp_path / "a.csv"
    with http_server(Behaviour()) as url:
        assert main(["-m", "net", "-p", "20", "-s", "0", "-r", "3", "-u", url, "-f", str(csv)]) == 2
    assert csv.read_text().startswith("Concurrency,Inferences/Second,Client Send,")
    assert csv.read_text().count("\n") == 1
    errors = capfd.readouterr().err
    assert f"Wrote {csv}\n" in errors
    assert f"note: not in {csv}, as with perf_analyzer: concurrency 1 (unstable)\n" in errors


def test_a_job_of_github_gets_the_summary_behind_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "summary.md"
    page.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(page))
    words = [*QUICK, "--request-count", "2", "--step-summary"]
    with http_server(Behaviour()) as url:
        assert main([*words, "-u", url]) == 0
        assert page.read_text().startswith("before\n### ")
        assert "no step summary" not in capfd.readouterr().err
        monkeypatch.delenv("GITHUB_STEP_SUMMARY")
        assert main([*words, "-u", url]) == 0
    assert "note: no step summary: GITHUB_STEP_SUMMARY is not set" in capfd.readouterr().err


def test_a_model_with_dynamic_shapes_is_measured_with_a_guess_only_if_asked(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with http_server(Behaviour(has_config=False)) as url:
        assert main([*QUICK, "--request-count", "2", "-u", url]) == 99
        assert "Give --shape x:N,4, data with --input-data" in capfd.readouterr().err
        assert main([*QUICK, "--request-count", "2", "--assume-shapes", "-u", url]) == 0
    assert "WARNING: the shape of input 'x' is a guess: [1,4] was sent" in capfd.readouterr().err


@dataclass
class Interrupted:
    """What interrupts at these milliseconds did to a run."""

    cancelled: bool = False
    stopped: bool = False
    told: tuple[str, ...] = ()


def interrupted(*at_ms: int, begun: bool = True, notices: Sequence[str] = ("finishing",)) -> Interrupted:
    async def scene() -> Interrupted:
        told: list[str] = []
        times = iter([ms * 1_000_000 for ms in at_ms])
        interrupts = Interrupts(lambda: begun, told.append, clock=lambda: next(times), notices=notices)
        work: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        for _ in at_ms:
            interrupts.interrupt(work)
        return Interrupted(work.cancelled(), interrupts.stop.is_set(), tuple(told))

    return asyncio.run(scene())


def test_the_first_interrupt_asks_to_finish_and_the_second_cancels() -> None:
    once = interrupted(0)
    assert (once.cancelled, once.stopped, len(once.told)) == (False, True, 1)
    twice = interrupted(0, 300)
    assert (twice.cancelled, twice.stopped, len(twice.told)) == (True, True, 1)


def test_an_interrupt_after_the_last_notice_cancels() -> None:
    assert interrupted(0, 300, notices=("one", "two")) == Interrupted(stopped=True, told=("one", "two"))
    assert interrupted(0, 300, 600, notices=("one", "two")).cancelled


def test_a_signal_that_comes_to_the_group_too_is_one() -> None:
    assert not interrupted(0, 5, 90).cancelled


def test_an_interrupt_before_any_level_has_nothing_to_finish() -> None:
    assert interrupted(0, begun=False) == Interrupted(cancelled=True, stopped=True, told=())


def test_a_port_of_something_else_is_asked_about(capfd: pytest.CaptureFixture[str]) -> None:
    with grpc_server(Behaviour()) as url:
        assert main([*QUICK, "-u", url]) == 99
    assert f"(is {url} its HTTP port?)" in capfd.readouterr().err


def test_an_error_without_a_message_is_told_by_its_status(capfd: pytest.CaptureFixture[str]) -> None:
    async def overloaded(_: Request, writer: asyncio.StreamWriter) -> bool:
        writer.write(b"HTTP/1.1 503 Overloaded\r\ncontent-length: 0\r\n\r\n")
        return True

    with conversing(overloaded) as url:
        assert main([*QUICK, "-u", url]) == 99
    assert capfd.readouterr().err == "Error: failed to get server metadata: HTTP 503: (no message)\n"


def test_results_that_find_a_full_disk_end_the_run_with_a_line() -> None:
    code = "import sys; from tpx.cli.perf import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, *QUICK, "--request-count", "1"]
    with http_server(Behaviour()) as url, Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [*command, "-u", url], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (ended.returncode, ended.stderr) == (
        99,
        "Error: cannot write to stdout: No space left on device\n",
    )


def test_a_full_disk_names_every_file_that_it_cost(capfd: pytest.CaptureFixture[str]) -> None:
    with http_server(Behaviour()) as url, Path("/dev/full").open("w") as device:
        full = f"/proc/self/fd/{device.fileno()}"
        assert main([*QUICK, "-u", url, "--request-count", "1", "--json", "/dev/full", "--jsonl", full]) == 99
    said = capfd.readouterr().err
    for path in ("/dev/full", full):
        assert f"cannot write {path}: No space left on device" in said


def started(url: str, *words: str) -> subprocess.Popen[str]:
    """A run in a process of its own, once its first output is there."""
    code = "import sys; from tpx.cli.perf import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "-m", "net", "-p", "60000", "-u", url, *words]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ)
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "*** Measurement Settings ***\n"
    return process


def wait_for_requests(behaviour: Behaviour, count: int) -> None:
    deadline = time.monotonic() + 20
    while behaviour.infers < count:
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.e2e
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_ctrl_c_keeps_what_was_measured_and_so_does_a_supervisor(
    tmp_path: Path, number: signal.Signals
) -> None:
    behaviour = Behaviour()
    with http_server(behaviour) as url:
        process = started(url, "--json", str(tmp_path / "a.json"), "--concurrency-range", "2:4")
        wait_for_requests(behaviour, 50)
        process.send_signal(number)
        out, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "press Ctrl-C again" in err
    assert "(unstable, interrupted)" in out
    (level,) = json.loads((tmp_path / "a.json").read_text())["levels"]
    assert level["interrupted"]
    assert level["requests"] > 10


@pytest.mark.e2e
@pytest.mark.parametrize("flags", [["-u"], ["--ab", "127.0.0.1:9"]])
def test_ctrl_c_while_the_server_says_nothing_ends_the_run(flags: list[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(20)
        url = f"127.0.0.1:{silent.getsockname()[1]}"
        # of several servers the first is asked first
        words = [flags[0], url, *flags[1:]]
        code = "import sys; from tpx.cli.perf import main; sys.exit(main(sys.argv[1:]))"
        process = subprocess.Popen(
            [sys.executable, "-c", code, "-m", "net", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        with process, silent.accept()[0] as asking:
            asking.recv(1)
            process.send_signal(signal.SIGINT)
            assert process.wait(10) == 130


@pytest.mark.e2e
def test_two_ctrl_c_end_the_run_with_130() -> None:
    behaviour = Behaviour(delay_s=lambda _: 30)
    with http_server(behaviour) as url:
        process = started(url)
        wait_for_requests(behaviour, 1)
        for _ in range(2):
            process.send_signal(signal.SIGINT)
            time.sleep(0.2)
        _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "Traceback" not in err


def test_perf_starts_without_grpc_protobuf_and_rich() -> None:
    late = (
        "httpx",
        "grpc",
        "google.protobuf",
        "rich",
        "tpx.protocol.grpc",
        "tpx.perf.capture",
        "tpx.perf.loads.workers",
    )
    program = f"import sys, tpx.cli.perf; print([m for m in {late} if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"
