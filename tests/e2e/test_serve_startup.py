"""How `tpx serve` starts: what it says and in which order, and what it tells those who start it wrongly."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.child import ANY_PORTS, Child, environment, serve, tpx
from tests.serving.onnx_files import doubling, write_model
from tests.waiting import eventually

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with one model."""
    path = tmp_path_factory.mktemp("models")
    write_model(path, "net", doubling())
    return path


def get(child: Child, path: str, service: str = "HTTPService") -> tuple[int, bytes]:
    """Status and body of a GET."""
    connection = http.client.HTTPConnection("127.0.0.1", child.port(service), timeout=10)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def infer(child: Child, model: str) -> list[float]:
    """The output for [1, 2]."""
    connection = http.client.HTTPConnection("127.0.0.1", child.port("HTTPService"), timeout=10)
    item = {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}
    try:
        connection.request("POST", f"/v2/models/{model}/infer", json.dumps({"inputs": [item]}))
        data: list[float] = json.loads(connection.getresponse().read())["outputs"][0]["data"]
        return data
    finally:
        connection.close()


@contextmanager
def taken() -> Iterator[int]:
    """A port that somebody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_it_says_what_it_loads_what_it_serves_and_where_in_that_order(repository: Path) -> None:
    with serve("--model-repository", repository) as child:
        child.ready()
        text = "\n".join(child.out)
        marks = [
            "loading: net:1",
            "successfully loaded 'net'",
            "| onnxruntime | tpx.serving.backends.onnxruntime | {",
            "| Model | Version | Status |",
            "| net   | 1       | READY  |",
            "| Option ",
            "| server_id ",
            "Started GRPCInferenceService at 127.0.0.1:",
            "Started HTTPService at 127.0.0.1:",
            "Started Metrics Service at 127.0.0.1:",
            f"is ready: http://127.0.0.1:{child.port('HTTPService')}/v2, "
            f"gRPC 127.0.0.1:{child.port('GRPCInferenceService')}, "
            f"metrics http://127.0.0.1:{child.port('Metrics Service')}/metrics, "
            f"page http://127.0.0.1:{child.port('HTTPService')}/",
        ]
        at = [text.index(mark) for mark in marks]
        assert at == sorted(at)
        assert child.err == []
        assert get(child, "/v2/health/ready") == (200, b"")
        assert get(child, "/metrics", "Metrics Service")[0] == 200
        assert child.stop() == 0


def test_every_line_of_a_json_log_is_an_object(repository: Path) -> None:
    with serve("--model-repository", repository, "--log-format=json") as child:
        child.ready()
        records = [json.loads(line) for line in child.out]
        messages = [record["message"] for record in records]
        assert "loading: net:1" in messages
        assert any("| net   | 1       | READY  |" in message for message in messages)
        assert "is ready: http://" in messages[-1]
        assert records[0].keys() == {"time", "level", "message", "process", "file", "line"}
        assert child.stop() == 0


def test_several_repositories_and_files_are_served_together(repository: Path, tmp_path: Path) -> None:
    write_model(tmp_path, "other")
    with serve(f"--model-repository={repository}", "--model-store", tmp_path) as child:
        child.ready()
        assert (infer(child, "net"), infer(child, "other")) == ([2, 4], [2, 4])


def test_without_a_word_it_serves_the_models_of_this_directory(tmp_path: Path) -> None:
    write_model(tmp_path / "models", "mine")
    with serve(cwd=tmp_path) as child:
        child.ready()
        assert "No model repository given: serving ./models" in child.out
        assert infer(child, "mine") == [2, 4]


def test_without_a_word_and_models_it_writes_and_serves_the_examples(tmp_path: Path) -> None:
    cache, here = tmp_path / "cache", tmp_path / "here"
    here.mkdir()
    env = {"XDG_CACHE_HOME": str(cache), "HOME": str(tmp_path / "home")}
    for _ in range(2):
        with serve(cwd=here, env=env) as child:
            child.ready()
            assert (
                f"No model repository given and no ./models here: serving the example models in "
                f"{cache}/tpx/models"
            ) in child.out
            for model in ("alexnet", "mnist", "add_sub", "identity"):
                assert get(child, f"/v2/models/{model}/ready") == (200, b"")
            assert child.stop() == 0
    assert list(here.iterdir()) == []
    assert not (tmp_path / "home").exists()


def test_without_a_word_models_a_cache_and_a_home_it_says_what_is_missing(tmp_path: Path) -> None:
    done = tpx("serve", cwd=tmp_path, env={"XDG_CACHE_HOME": "/proc/nowhere", "HOME": "/proc/nowhere"})
    assert done.returncode == 1
    assert done.stderr.startswith("error: creating server: ")
    assert "choose another directory" in done.stderr
    assert "Traceback" not in done.stderr


# models that fail


BAD = "input [{ name: 'x' data_type: TYPE_FP32 dims: [ 0 ] }]"


def test_a_model_that_fails_ends_the_start_with_its_reason(repository: Path, tmp_path: Path) -> None:
    write_model(tmp_path, "bad", config=BAD)
    done = tpx("serve", f"--model-repository={repository}", f"--model-repository={tmp_path}")
    assert done.returncode == 1
    assert (
        "failed to load 'bad' version 1: Invalid argument: model input 'x' dimension must be " in done.stderr
    )
    told = r"error: creating server: Internal - failed to load 1 of [2-9] models: bad \(--exit-on-error.*\n$"
    assert re.search(told, done.stderr)
    assert "UNAVAILABLE: Invalid argument: model input 'x' dimension must be integer >= 1" in done.stdout
    assert "is ready" not in done.stdout


@pytest.mark.parametrize(
    ("words", "ready"),
    [(["--exit-on-error=false"], 400), (["--exit-on-error=false", "--strict-readiness=false"], 200)],
)
def test_a_model_that_fails_may_be_done_without(
    repository: Path, tmp_path: Path, words: list[str], ready: int
) -> None:
    write_model(tmp_path, "bad", config=BAD)
    with serve(f"--model-repository={repository}", f"--model-repository={tmp_path}", *words) as child:
        child.ready()
        assert get(child, "/v2/health/live")[0] == 200
        assert get(child, "/v2/health/ready")[0] == ready
        assert get(child, "/v2/models/bad/ready") == (400, b'{"error":"Model version not ready"}')
        status, body = get(child, "/v2/models/bad")
        assert (status, json.loads(body)["error"]) == (
            404,
            "Request for unknown model: 'bad' has no available versions",
        )
        assert infer(child, "net") == [2, 4]
        connection = http.client.HTTPConnection("127.0.0.1", child.port("HTTPService"), timeout=10)
        connection.request("POST", "/v2/repository/index")
        entries = {entry["name"]: entry for entry in json.loads(connection.getresponse().read())}
        connection.close()
        assert entries["bad"]["state"] == "UNAVAILABLE"
        assert entries["bad"]["reason"].startswith("Invalid argument: model input 'x' dimension must be ")
        assert child.stop() == 0


def test_a_terminal_that_cannot_show_a_name_does_not_end_it(tmp_path: Path) -> None:
    write_model(tmp_path, "bäcker")
    with serve("--model-repository", tmp_path, env={"PYTHONIOENCODING": "ascii"}) as child:
        child.ready()
        assert "b\\xe4cker" in child.text
        assert infer(child, "b%C3%A4cker") == [2, 4]


def test_an_empty_repository_is_served_and_said_to_be_empty(tmp_path: Path) -> None:
    with serve("--model-repository", tmp_path) as child:
        child.ready()
        assert "no models found" in child.text
        assert get(child, "/v2/health/ready") == (200, b"")
        assert child.stop() == 0


# command lines that are wrong


@pytest.mark.parametrize("flag", ["--http-port", "--grpc-port", "--metrics-port"])
def test_a_port_in_use_is_named(repository: Path, flag: str) -> None:
    with taken() as port:
        done = tpx("serve", f"--model-repository={repository}", f"{flag}={port}")
    assert done.returncode == 1
    assert f"Socket '127.0.0.1:{port}' already in use" in done.stderr
    assert f"(choose another with {flag} or {flag.removesuffix('port')}address)" in done.stderr
    assert "loading" not in done.stdout, "ports are looked at before models load"
    assert "Traceback" not in done.stderr


# endpoints


def test_endpoints_can_be_left_out(repository: Path) -> None:
    words = ["--allow-grpc=false", "--allow-metrics=false"]
    with serve("--model-repository", repository, *words) as child:
        child.ready()
        assert "GRPCInferenceService" not in child.text
        assert "Metrics Service" not in child.text
        assert infer(child, "net") == [2, 4]
        assert child.stop() == 0


def test_an_ipv6_address_is_written_as_one(repository: Path) -> None:
    with serve("--model-repository", repository, "--http-address=::1") as child:
        child.ready()
        assert re.search(r"is ready: http://\[::1\]:\d+/v2", child.text)


def test_nothing_is_imported_that_no_model_needs(tmp_path: Path) -> None:
    """A server without models of a kind does without the packages of that kind."""
    script = """
import os, signal, sys, threading
from tpx.cli import serve
def look():
    heavy = {"onnxruntime", "onnx", "torch", "grpc", "jinja2", "click", "tritonclient", "typst"}
    print("HEAVY", sorted(heavy & set(sys.modules)), flush=True)
    os.kill(os.getpid(), signal.SIGTERM)
threading.Timer(1.0, look).start()
sys.exit(serve.main(sys.argv[1:]))
"""
    done = subprocess.run(
        [sys.executable, "-c", script, f"--model-repository={tmp_path}", *ANY_PORTS],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "HEAVY []" in done.stdout


def test_sigusr1_tells_where_all_threads_are_and_ends_nothing(repository: Path) -> None:
    with serve("--model-repository", repository) as child:
        child.ready()
        os.kill(child.engine.pid, signal.SIGUSR1)
        eventually(lambda: any("(most recent call first)" in line for line in child.err))
        assert get(child, "/v2/health/ready") == (200, b"")
