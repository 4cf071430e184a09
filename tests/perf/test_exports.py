"""What is written of single requests, measured on tpx itself over every transport."""

import json
import resource
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.perf.servers import Behaviour, http_server
from tests.perf.test_cli import started, wait_for_requests
from tests.serving.live import Live, serving, write_models
from tpx.cli.perf import main

COUNT = 6


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    repository: Path = tmp_path_factory.mktemp("models")
    write_models(repository)
    with serving(repository) as server:
        yield server


def exported(live: Live, path: Path, *words: str, protocol: str = "http") -> dict[str, Any]:
    service = "HTTPService" if protocol == "http" else "GRPCInferenceService"
    url = f"127.0.0.1:{live.ports[service]}"
    command = ["-i", protocol, "-u", url, "--request-count", str(COUNT), "--profile-export-file", str(path)]
    assert main([*command, "--assume-shapes", *words]) == 0
    document: dict[str, Any] = json.loads(path.read_bytes())
    return document


TRANSPORTS = {
    "http": (),
    "http json": ("--input-tensor-format", "json", "--output-tensor-format", "json"),
    "grpc": (),
    "grpc stream": ("--streaming",),
}


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_inputs_and_outputs_of_every_request_are_exported(live: Live, tmp_path: Path, transport: str) -> None:
    words = ("-m", "double", "--shape", "x:3", *TRANSPORTS[transport])
    document = exported(live, tmp_path / "a.json", *words, protocol=transport.split()[0])
    assert list(document) == ["experiments", "version", "service_kind", "endpoint", "tpx"]
    assert (document["service_kind"], document["endpoint"]) == ("triton", "")
    (experiment,) = document["experiments"]
    assert list(experiment) == ["experiment", "requests", "window_boundaries"]
    assert experiment["experiment"] == {"mode": "concurrency", "value": 1}
    assert len(experiment["requests"]) == COUNT
    first, last = experiment["window_boundaries"]
    for request in experiment["requests"]:
        assert list(request) == ["timestamp", "request_inputs", "response_timestamps", "response_outputs"]
        (came,) = request["response_timestamps"]
        assert first <= request["timestamp"] <= came <= last
        (given,) = request["request_inputs"].values()
        (outputs,) = request["response_outputs"]
        assert next(iter(outputs.values())) == pytest.approx([2 * x for x in given], rel=1e-6)


def test_a_string_is_exported_as_it_is(live: Live, tmp_path: Path) -> None:
    words = ("-m", "words", "--string-data", "h\u00e9llo")
    (experiment,) = exported(live, tmp_path / "a.json", *words)["experiments"]
    text = json.dumps(experiment["requests"][0]["request_inputs"], ensure_ascii=False)
    assert "h\u00e9llo" in text


def test_every_level_is_an_experiment_with_its_rate(live: Live, tmp_path: Path) -> None:
    words = ("-m", "double", "--request-rate-range", "3,6")
    experiments = exported(live, tmp_path / "a.json", *words)["experiments"]
    assert [e["experiment"] for e in experiments] == [
        {"mode": "request_rate", "value": 3.0},
        {"mode": "request_rate", "value": 6.0},
    ]
    assert [len(e["requests"]) for e in experiments] == [COUNT, COUNT]


def test_warm_up_is_not_exported(live: Live, tmp_path: Path) -> None:
    words = ("-m", "double", "--warmup-request-count", "20", "--concurrency-range", "3")
    (experiment,) = exported(live, tmp_path / "a.json", *words)["experiments"]
    assert len(experiment["requests"]) == COUNT


def test_an_export_is_never_overwritten(
    live: Live, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.json"
    path.write_text("mine")
    assert main(["-m", "double", "--profile-export-file", str(path)]) == 99
    assert "Failed to parse --profile-export-file. Path must not already exist." in capfd.readouterr().err
    assert path.read_text() == "mine"


def test_a_run_that_cannot_begin_leaves_no_file(tmp_path: Path) -> None:
    files = ("--profile-export-file", "--jsonl")
    words = [word for flag in files for word in (flag, str(tmp_path / flag))]
    assert main(["-m", "double", "-u", "127.0.0.1:9", *words]) == 99
    assert list(tmp_path.iterdir()) == []


def test_all_files_of_a_run_are_written(live: Live, tmp_path: Path) -> None:
    flags = ("-f", "--json", "--jsonl", "--junit", "--markdown", "--html")
    words = [word for flag in flags for word in (flag, str(tmp_path / flag.strip("-")))]
    exported(live, tmp_path / "export", "-m", "double", "--concurrency-range", "1:2", *words)
    assert {path.name for path in tmp_path.iterdir()} == {"export", *(flag.strip("-") for flag in flags)}
    assert len((tmp_path / "jsonl").read_text().splitlines()) == 2 * COUNT
    assert len(json.loads((tmp_path / "json").read_text())["levels"]) == 2


@pytest.mark.e2e
def test_an_interrupted_run_writes_every_file(tmp_path: Path) -> None:
    flags = ["-f", "--json", "--jsonl", "--junit", "--markdown", "--html"]
    flags.append("--profile-export-file")
    words = [word for flag in flags for word in (flag, str(tmp_path / flag.strip("-")))]
    behaviour = Behaviour()
    with http_server(behaviour) as url:
        process = started(url, "--concurrency-range", "2:4", *words)
        wait_for_requests(behaviour, 50)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=20)
    assert process.returncode == 130
    assert {path.name for path in tmp_path.iterdir()} == {flag.strip("-") for flag in flags}
    (level,) = json.loads((tmp_path / "json").read_text())["levels"]
    assert level["interrupted"]
    assert len((tmp_path / "f").read_text().splitlines()) == 1
    assert "This run was interrupted" in (tmp_path / "html").read_text()
    (experiment,) = json.loads((tmp_path / "profile-export-file").read_bytes())["experiments"]
    assert len(experiment["requests"]) == level["requests"]
    assert len((tmp_path / "jsonl").read_text().splitlines()) == level["requests"]


def test_a_disk_that_is_full_costs_a_file_and_not_the_measurement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    lines, summary = tmp_path / "a.jsonl", tmp_path / "a.json"
    with http_server(Behaviour()) as url:
        words = [
            "-m",
            "net",
            "-u",
            url,
            "--request-count",
            "500",
            "--jsonl",
            str(lines),
            "--json",
            str(summary),
        ]
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
        try:
            status = main(words)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    out, err = capsys.readouterr()
    assert status == 99
    assert f"Error: cannot write {lines}: File too large\n" in err
    assert "Concurrency: 1, throughput: " in out
    assert json.loads(summary.read_text())["error"].startswith("cannot write")
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


SECRET = "Bearer s3cr3t"
SHARED = ("--json", "--html", "--junit", "--markdown", "-f", "--jsonl", "--profile-export-file")


@pytest.mark.parametrize(
    "words",
    [
        ("-H", f"Authorization: {SECRET}"),
        (f"-HAuthorization: {SECRET}",),
        (f"--header=x-api-key :{SECRET}",),
    ],
    ids=" ".join,
)
def test_what_lets_somebody_in_is_sent_and_stands_in_no_file(
    tmp_path: Path, words: tuple[str, ...], capfd: pytest.CaptureFixture[str]
) -> None:
    behaviour = Behaviour()
    files = [part for flag in SHARED for part in (flag, str(tmp_path / f"out{flag}"))]
    with http_server(behaviour) as url:
        assert main(["-m", "net", "-u", url, "--request-count", "3", *words, *files]) == 0
    assert SECRET in behaviour.seen[0][0].values()
    told = [path.read_text() for path in tmp_path.iterdir()] + list(capfd.readouterr())
    assert len(told) == len(SHARED) + 2
    assert [text for text in told if "s3cr3t" in text] == []
    assert ":***" in (tmp_path / "out--json").read_text()
