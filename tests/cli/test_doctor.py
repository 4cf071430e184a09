"""`tpx doctor`: tables, JSON, and the exit status for what is required."""

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest

import tpx as api
from tests.e2e.child import tpx
from tpx.cli import doctor, doctor_server
from tpx.cli.doctor_server import ServerUse, examine
from tpx.cli.main import run
from tpx.errors import MeasurementError
from tpx.examples import write
from tpx.serving.inspection.inspect import InspectedPart, Inspection, Machine, Usability

FOUND = Inspection(
    machine=Machine(
        tpx="1.2",
        python="3.11.7",
        executable="/usr/bin/python",
        system="Linux",
        processor="Fast CPU",
        cores=2,
        memory_bytes=8 * 2**30,
        memory_available_bytes=3 * 2**30,
        gpu_note="no NVIDIA driver",
    ),
    backends=(
        InspectedPart(
            name="onnxruntime", state=Usability.USABLE, version="1.31", providers=("CPUExecutionProvider",)
        ),
        InspectedPart(
            name="tensorrt", state=Usability.MISSING, why="no package", remedy="pip install 'tpx[tensorrt]'"
        ),
        InspectedPart(
            name="mine", state=Usability.BROKEN, origin="mine-backend 1.0", why="it crashed, SIGSEGV [red]"
        ),
    ),
    features=(InspectedPart(name="pdf", state=Usability.USABLE, what="reports as PDF", version="70.0"),),
)


@pytest.fixture(autouse=True)
def _found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "inspect", lambda **_: FOUND)


def test_without_a_terminal_there_are_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor"]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        "tpx     1.2, Python 3.11.7 (/usr/bin/python)",
        "System  Linux",
        "CPU     2 cores, Fast CPU",
        "Memory  8.0 GiB, 3.0 GiB available",
        "GPU     none: no NVIDIA driver",
        "",
        "Backends              Version",
        "onnxruntime  usable   1.31     CPUExecutionProvider",
        "tensorrt     missing           no package",
        "mine         broken            from mine-backend 1.0; it crashed, SIGSEGV [red]",
        "",
        "Features          Version",
        "pdf       usable  70.0     reports as PDF",
        "",
        "What would help",
        "  tensorrt: pip install 'tpx[tensorrt]'",
    ]
    assert err == ""


def test_json_has_everything(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["machine"]["cores"] == 2
    assert [each["state"] for each in told["backends"]] == ["usable", "missing", "broken"]
    assert told["backends"][1]["remedy"] == "pip install 'tpx[tensorrt]'"
    assert told["features"][0]["name"] == "pdf"


@pytest.mark.parametrize(
    ("names", "status", "error"),
    [
        ("onnxruntime", 0, ""),
        ("onnxruntime,pdf", 0, ""),
        (
            "onnxruntime,tensorrt",
            1,
            "Error: tensorrt is required and missing: no package; pip install 'tpx[tensorrt]'\n",
        ),
        ("mine", 1, "Error: mine is required and broken: it crashed, SIGSEGV [red]\n"),
        (
            "onnxrutime",
            1,
            "Error: --require: no 'onnxrutime' (did you mean 'onnxruntime'?) (there is: onnxruntime, "
            "tensorrt, mine, pdf)\n",
        ),
    ],
)
def test_the_status_is_one_unless_all_that_is_required_is_usable(
    capsys: pytest.CaptureFixture[str], names: str, status: int, error: str
) -> None:
    assert run(["doctor", "--require", names]) == status
    assert capsys.readouterr().err == error


@pytest.mark.parametrize("words", [["--requires=x"], ["--timeout-secs=0"]])
def test_a_wrong_word_is_told(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    assert run(["doctor", *words]) == 1
    assert words[0].partition("=")[0] in capsys.readouterr().err


def use(**changed: float | None) -> ServerUse:
    return replace(
        ServerUse(
            url="http://localhost:8002/metrics",
            models=3,
            requests_per_s=41234.4,
            failures_per_s=0.0,
            in_flight=64,
            waiting=12,
            event_loop=0.99,
            frontends=0,
            advised_frontends=3,
            cpu=0.11,
            resident_bytes=2**30,
            files=70,
            max_files=20_000,
        ),
        **changed,  # type: ignore[arg-type]
    )


def test_a_running_server_is_shown_first(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "examine", lambda _: use())
    assert run(["doctor", "--metrics-url=localhost:8002"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[:8] == [
        "Server      http://localhost:8002/metrics, 3 models",
        "Requests    41,234 per second, 0 failed",
        "In flight   64, of which 12 wait",
        "Event loop  99% of a core",
        "CPU         11% of its machine",
        "Memory      1.00 GiB resident",
        "Files       70 open, at most 20,000",
        "",
    ]
    help_ = out[out.index("What would help") + 1 :]
    assert help_[0] == "  the server: --frontends 3 (its event loop fills a core while others are idle)"
    assert run(["doctor", "--metrics-url=localhost:8002", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["server"]["advised_frontends"] == 3


def test_what_a_page_lacks_is_left_out(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    triton = use(in_flight=None, event_loop=None, resident_bytes=None, files=None, advised_frontends=0)
    monkeypatch.setattr(doctor, "examine", lambda _: triton)
    assert run(["doctor", "--metrics-url=localhost:8002"]) == 0
    out = capsys.readouterr().out
    assert [line.split("  ")[0] for line in out.splitlines()[:3]] == ["Server", "Requests", "CPU"]
    assert "the server:" not in out


def test_a_server_is_examined_by_its_page(tmp_path: Path) -> None:
    write(tmp_path, ["identity", "add_sub"])
    with api.serve(tmp_path) as server:
        found = examine(server.metrics)
        assert found.url == f"http://{server.metrics}/metrics"
        assert (found.models, found.frontends, found.advised_frontends) == (2, 0, 0)
        assert (found.requests_per_s, found.failures_per_s, found.in_flight) == (0.0, 0.0, 0.0)
        assert found.resident_bytes is not None
        assert found.resident_bytes > 2**24
        assert examine(f"http://{server.metrics}/metrics").models == 2
        with pytest.raises(MeasurementError, match="the page has no metrics of an inference server"):
            examine(f"{server.http}/v2")
        with pytest.raises(MeasurementError, match="no page of metrics; it is the address"):
            examine(server.grpc)
    with pytest.raises(MeasurementError, match=r"Connection refused; .* port 8002 unless --metrics-port"):
        examine(server.metrics)


def test_the_address_is_that_of_tpx_perf(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "--metrics-url=https://localhost:8002"]) == 1
    assert "metrics are read over http only" in capsys.readouterr().err
    assert run(["doctor", "--metrics-url=localhost:http"]) == 1
    assert "does not match <host>:<port>/<path>" in capsys.readouterr().err


def test_figures_that_are_no_numbers_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    page = b'nv_inference_count{model="a"} 1\ntpx_advised_frontends NaN\nnv_cpu_utilization +Inf\n'
    monkeypatch.setattr(doctor_server, "open_page", lambda *_: io.BytesIO(page))
    found = examine("localhost")
    assert found.url == "http://localhost:8002/metrics"
    assert (found.advised_frontends, found.cpu) == (0, None)


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.timeout(180)
def test_the_command_tells_of_this_machine() -> None:
    ended = tpx("doctor", "--json", "--require=python,onnxruntime", "--timeout-secs=120", timeout_s=150)
    assert ended.returncode == 0, ended.stderr
    told = {each["name"]: each for each in json.loads(ended.stdout)["backends"]}
    assert told["python"]["state"] == "usable"
    assert "CPUExecutionProvider" in told["onnxruntime"]["providers"]
    assert told["pytorch"]["version"].startswith("2.")
    assert [each["name"] for each in told.values() if each["state"] == "broken"] == []
