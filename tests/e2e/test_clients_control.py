"""Model control as Triton's users do it: with their client library, on a server of their own command line."""

import base64
import http.client
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from tests.e2e.child import Child, serve
from tests.serving import onnx_files
from tests.serving.repository.controlled import write

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models."""
    path = tmp_path_factory.mktemp("control")
    write(path, 2, name="first")
    write(path, 3, name="second")
    return path


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[Child]:
    words = ("--model-control-mode=EXPLICIT", "--load-model=first", "--model-repository", repository)
    with serve(*words) as child:
        yield child.ready()
        assert child.stop() == 0


@pytest.fixture(params=["http", "grpc"])
def client(request: pytest.FixtureRequest, server: Child) -> Iterator[Any]:
    module: ModuleType = {"http": tritonclient.http, "grpc": tritonclient.grpc}[request.param]
    port = server.port({"http": "HTTPService", "grpc": "GRPCInferenceService"}[request.param])
    with module.InferenceServerClient(f"127.0.0.1:{port}") as made:
        made.module = module
        yield made


def factor(client: Any, model: str) -> float:
    """What a model multiplies with."""
    ones = np.ones((1, 2), dtype=np.float32)
    tensor = client.module.InferInput("x", [1, 2], "FP32").set_data_from_numpy(ones)
    return float(client.infer(model, [tensor]).as_numpy("y")[0, 0])


def index(client: Any) -> dict[str, str]:
    found = client.get_model_repository_index()
    models = found if isinstance(found, list) else [{"name": m.name, "state": m.state} for m in found.models]
    return {model["name"]: model.get("state", "") for model in models}


def test_poll_mode_picks_up_what_changes(tmp_path: Path) -> None:
    write(tmp_path, 2)
    with serve("--model-control-mode=poll", "--repository-poll-secs=1", "--model-store", tmp_path) as child:
        port = child.ready().port("HTTPService")
        with tritonclient.http.InferenceServerClient(f"127.0.0.1:{port}") as client:
            client.module = tritonclient.http
            assert factor(client, "net") == 2
            write(tmp_path, 5)
            child.wait_for(r"successfully unloaded 'net' version 1")
            assert factor(client, "net") == 5
        assert child.stop() == 0


def test_repositories_may_have_models_of_one_name_if_told_so(tmp_path: Path) -> None:
    places = [tmp_path / name for name in ("one", "two")]
    for path, factor_of_it in zip(places, (2, 3), strict=True):
        write(path, factor_of_it)
    words = [word for path in places for word in ("--model-repository", path)]
    with serve(
        "--model-namespacing=true", "--model-control-mode=poll", "--repository-poll-secs=1", *words
    ) as child:
        port = child.ready().port("HTTPService")
        with tritonclient.http.InferenceServerClient(f"127.0.0.1:{port}") as client:
            client.module = tritonclient.http
            with pytest.raises(InferenceServerException, match="must be provided to resolve ambiguity"):
                factor(client, "net")
            shutil.rmtree(places[0] / "net")
            child.wait_for(f"successfully unloaded '{places[0]}::net' version 1")
            assert factor(client, "net") == 3
        assert child.stop() == 0
        rows = [line.split()[1] for line in child.out if "| READY" in line]
        assert rows == [f"{path}::net" for path in places]


def test_a_server_goes_on_without_the_models_that_failed_if_told_so(tmp_path: Path) -> None:
    write(tmp_path, 2)
    write(tmp_path, 2, name="broken").write_bytes(b"broken")
    with serve("--exit-on-error=false", "--model-repository", tmp_path) as child:
        port = child.ready().port("HTTPService")
        with tritonclient.http.InferenceServerClient(f"127.0.0.1:{port}") as client:
            assert client.is_server_live()
            assert not client.is_server_ready()
            assert client.is_model_ready("net")
            assert index(client) == {"broken": "UNAVAILABLE", "net": "READY"}
        assert "failed to load 'broken' version 1: Internal: onnx runtime cannot load" in child.text
        assert child.stop() == 0


def test_a_load_that_takes_too_long_does_not_hold_back_the_end(tmp_path: Path) -> None:
    repository, temporary = tmp_path / "repository", tmp_path / "temporary"
    for path in (repository, temporary):
        path.mkdir()
    model = base64.b64encode(onnx_files.slow_to_load().SerializeToString()).decode()
    body = {"parameters": {"config": "{}", "file:1/model.onnx": model}}
    words = ("--model-control-mode=explicit", "--exit-timeout-secs=1", "--model-repository", repository)
    with serve(*words, env={"TMPDIR": str(temporary)}) as child:
        connection = http.client.HTTPConnection("127.0.0.1", child.ready().port("HTTPService"))
        connection.request("POST", "/v2/repository/models/slow/load", json.dumps(body))
        child.wait_for("loading: slow:1")
        assert len(list(temporary.glob("tpx-*"))) == 1
        assert child.stop(10) == 0
        connection.close()
    assert list(temporary.glob("tpx-*")) == []
