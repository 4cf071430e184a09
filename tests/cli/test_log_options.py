"""What the options for logs and traces do, from the command line on."""

import http.client
import json
import re
from pathlib import Path

import pytest

from tests.e2e.child import serve
from tests.serving.live import Live
from tests.serving.onnx_files import doubling, write_model
from tests.serving.tracing.collector import collecting
from tpx.argv import from_argv
from tpx.cli.serve import main
from tpx.serving.options import ServeConfig

ANY_PORTS = ("--http-port=0", "--grpc-port=0", "--metrics-port=0")


@pytest.fixture
def failing(tmp_path: Path) -> Path:
    """A repository that gives rise to lines of every level, and ends the start."""
    repository = tmp_path / "models"
    write_model(repository, "net", doubling())
    (repository / "net" / "01").mkdir()
    write_model(repository, "bad", config="max_batch_size: -1")
    return repository


def levels(failing: Path, capsys: pytest.CaptureFixture[str], *words: str) -> set[str]:
    """The levels of the lines on both streams."""
    assert main([f"--model-repository={failing}", *ANY_PORTS, *words]) == 1
    captured = capsys.readouterr()
    return set(re.findall(r"^([IWE])\d{4} \d\d:", captured.out + captured.err, re.MULTILINE))


def test_by_default_every_level_is_logged(failing: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert levels(failing, capsys) == {"I", "W", "E"}


@pytest.mark.parametrize(("flag", "level"), [("info", "I"), ("warning", "W"), ("error", "E")])
def test_a_level_can_be_left_out(
    failing: Path, capsys: pytest.CaptureFixture[str], flag: str, level: str
) -> None:
    assert levels(failing, capsys, f"--log-{flag}=false") == {"I", "W", "E"} - {level}


def test_lines_can_have_an_iso_time(failing: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert levels(failing, capsys, "--log-format=ISO8601") == set()
    main([f"--model-repository={failing}", *ANY_PORTS, "--log-format=ISO8601"])
    assert re.search(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ E ", capsys.readouterr().err, re.MULTILINE)


def test_lines_can_go_to_a_file(failing: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert levels(failing, capsys, f"--log-file={tmp_path / 'tpx.log'}") == set()
    assert re.search(r"^E\d{4} ", (tmp_path / "tpx.log").read_text(encoding="utf-8"), re.MULTILINE)


@pytest.mark.e2e
def test_verbose_logs_have_a_line_for_each_request(tmp_path: Path) -> None:
    write_model(tmp_path, "net", doubling())
    for level, lines in ((0, 0), (1, 2)):
        with serve("--model-repository", tmp_path, f"--log-verbose={level}") as child:
            child.ready()
            assert _asked(child.port("HTTPService")) == [200, 200]
            assert child.stop() == 0
            assert sum("/v2/" in line and "is ready" not in line for line in child.out) == lines


def _asked(port: int) -> list[int]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    statuses = []
    for method, path, body in (
        ("GET", "/v2/health/live", ""),
        ("POST", "/v2/models/net/infer", json.dumps(REQUEST)),
    ):
        connection.request(method, path, body)
        answer = connection.getresponse()
        answer.read()
        statuses.append(answer.status)
    connection.close()
    return statuses


REQUEST = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]}


def traced(repository: Path, requests: int, *words: str) -> None:
    """Serve so many requests with these options."""
    write_model(repository, "net", doubling())
    live = Live(from_argv(ServeConfig, [f"--model-repository={repository}", *ANY_PORTS, *words])).start()
    for _ in range(requests):
        assert live.infer("net", REQUEST).status == 200
    live.stop()


def ids(*files: Path) -> set[int]:
    """Of the traces in these files."""
    return {entry["id"] for file in files for entry in json.loads(file.read_text(encoding="utf-8"))}


@pytest.mark.parametrize(
    ("words", "count"),
    [
        (
            ["--trace-config=level=TIMESTAMPS", "--trace-config=rate=2", "--trace-config=triton,file={file}"],
            3,
        ),
        (["--trace-level=TIMESTAMPS", "--trace-rate=2", "--trace-file={file}"], 3),
        (["--trace-level=TIMESTAMPS", "--trace-rate=1", "--trace-count=2", "--trace-file={file}"], 2),
    ],
    ids=["config", "rate", "count"],
)
def test_requests_are_traced_to_a_file(tmp_path: Path, words: list[str], count: int) -> None:
    file = tmp_path / "trace.json"
    traced(tmp_path / "models", 6, *(word.format(file=file) for word in words))
    assert len(ids(*tmp_path.glob("trace.json*"))) == count


def test_requests_are_traced_to_a_collector_until_the_end(tmp_path: Path) -> None:
    with collecting() as collector:
        flags = ("mode=opentelemetry", f"opentelemetry,url={collector.url}", "level=TIMESTAMPS", "rate=2")
        traced(tmp_path / "models", 5, *(f"--trace-config={flag}" for flag in flags))
        assert sorted(span.name for span in collector.spans(6)) == sorted(
            ["InferRequest", "net", "compute"] * 2
        )


def test_traces_can_go_to_a_file_every_so_many(tmp_path: Path) -> None:
    words = ["--trace-level=TIMESTAMPS", "--trace-rate=1", "--trace-log-frequency=2"]
    traced(tmp_path / "models", 4, *words, f"--trace-file={tmp_path / 'trace.json'}")
    files = sorted(tmp_path.glob("trace.json.*"))
    assert [len(ids(file)) for file in files] == [2, 2]
