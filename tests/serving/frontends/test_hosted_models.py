"""SageMaker's endpoints with several models, by the requests of its container contract."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.protocol.v2_requests import encode_infer_request
from tests.serving import onnx_files
from tests.serving.frontends.test_hosted import BINARY, BODY, SAGEMAKER, send
from tests.serving.live import Live, floats, serving
from tests.serving.onnx_files import write_model
from tests.waiting import eventually
from tpx.errors import UsageError
from tpx.protocol.tensors import Tensor

OPTIONS: dict[str, Any] = {"allow_sagemaker": True, "sagemaker_port": 0, "model_control_mode": "explicit"}
STEPS = """
platform: "ensemble" max_batch_size: 8
input [{ name: "a" data_type: TYPE_FP32 dims: [ 2 ] }] output [{ name: "b" data_type: TYPE_FP32 dims: [ 2 ] }]
ensemble_scheduling { step [
  { model_name: "first" model_version: -1
    input_map { key: "x" value: "a" } output_map { key: "y" value: "m" } },
  { model_name: "second" model_version: -1
    input_map { key: "x" value: "m" } output_map { key: "y" value: "b" } }
] }
"""


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A server without models."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SAGEMAKER_MULTI_MODEL", "true")
        with serving(tmp_path_factory.mktemp("empty"), **OPTIONS) as running:
            yield running


def ask(live: Live, method: str, path: str, body: object = None, **headers: str) -> tuple[int, Any]:
    """Status and parsed body of a request."""
    text = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    status, _, answer = send(live, SAGEMAKER, method, path, text, headers)
    return status, json.loads(answer) if answer else None


def load(live: Live, name: str, url: Path) -> tuple[int, Any]:
    return ask(live, "POST", "/models", {"model_name": name, "url": str(url)})


def test_a_model_is_loaded_listed_invoked_and_unloaded(live: Live, tmp_path: Path) -> None:
    url = tmp_path / "hash" / "model"
    write_model(url, "net", onnx_files.doubling("batch", 2), 'name: "resnet"')
    assert ask(live, "GET", "/models") == (200, {"models": []})
    assert load(live, "a1b2", url) == (200, None)
    described = {"modelName": "a1b2", "modelUrl": str(url)}
    assert ask(live, "GET", "/models") == (200, {"models": [described]})
    assert ask(live, "GET", "/models/a1b2") == (200, described)
    assert load(live, "a1b2", url)[0] == 409
    target = {"X-Amzn-SageMaker-Target-Model": "resnet.tar.gz"}
    status, answer = ask(live, "POST", "/models/a1b2/invoke", BODY, **target)
    assert (status, answer["model_name"], answer["outputs"][0]["data"]) == (200, "a1b2", [2, 4])
    head, tail = encode_infer_request([Tensor.from_numpy("x", floats([3, 4]))])
    content = {"Content-Type": BINARY.format("sagemaker", len(head))}
    for _ in range(3):
        status, _, body = send(live, SAGEMAKER, "POST", "/models/a1b2/invoke", head + b"".join(tail), content)
        assert (status, body[-8:]) == (200, floats([6, 8]).tobytes())
    assert live.infer_binary("a1b2", {"x": floats([1, 2])}).status == 200
    assert ask(live, "DELETE", "/models/a1b2")[0] == 200
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/invoke")):
        assert ask(live, method, f"/models/a1b2{path}", BODY if path else None)[0] == 404
    assert ask(live, "GET", "/models") == (200, {"models": []})
    assert load(live, "a1b2", url) == (200, None), "the name is free again"
    assert ask(live, "DELETE", "/models/a1b2")[0] == 200


@pytest.mark.parametrize("config", [None, 'name: "any" backend: "onnxruntime"'])
def test_the_directory_may_be_the_model_itself(live: Live, tmp_path: Path, config: str | None) -> None:
    write_model(tmp_path, "model", onnx_files.doubling("batch", 2), config)
    assert load(live, "itself", tmp_path / "model") == (200, None)
    assert ask(live, "POST", "/models/itself/invoke", BODY)[1]["outputs"][0]["data"] == [2, 4]
    assert ask(live, "DELETE", "/models/itself")[0] == 200


def test_an_ensemble_comes_and_goes_with_the_models_of_its_steps(live: Live, tmp_path: Path) -> None:
    for name in ("first", "second"):
        write_model(tmp_path, name, onnx_files.doubling("batch", 2), "max_batch_size: 8")
    (tmp_path / "pipeline" / "1").mkdir(parents=True)
    (tmp_path / "pipeline" / "config.pbtxt").write_text(STEPS)
    assert load(live, "whole", tmp_path) == (200, None)
    body = BODY.replace(b'"x"', b'"a"')
    assert ask(live, "POST", "/models/whole/invoke", body)[1]["outputs"][0]["data"] == [4, 8]
    assert [each["modelName"] for each in ask(live, "GET", "/models")[1]["models"]] == ["whole"]
    status, answer = load(live, "again", tmp_path)
    assert (status, answer["error"].partition(" already")[0]) == (400, "there is a model 'first'")
    assert ask(live, "DELETE", "/models/whole")[0] == 200
    assert {entry["name"] for entry in live.http("POST", "/v2/repository/index").json} == set()


def test_what_cannot_be_loaded_is_told(live: Live, tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_model(tmp_path, name, onnx_files.doubling())
    (tmp_path / "broken" / "net" / "1").mkdir(parents=True)
    (tmp_path / "broken" / "net" / "1" / "model.onnx").write_bytes(b"no model")
    (tmp_path / "empty").mkdir()
    for url, why in (
        (tmp_path / "none", "cannot read"),
        (tmp_path / "empty", "it holds no directory"),
        (tmp_path, "it holds broken, empty, one, two"),
        (tmp_path / "broken", "load failed for model 'wrong'"),
        (Path("/proc/1/root"), "where no models are"),
    ):
        for _ in range(2):  # a failure leaves nothing behind
            status, answer = load(live, "wrong", url)
            assert (status, why in answer["error"]) == (400, True), answer
    for body in ({}, {"model_name": "x"}, {"model_name": 3, "url": "/"}, {"model_name": "", "url": "/"}):
        assert ask(live, "POST", "/models", body)[0] == 400
    assert load(live, "a/b", tmp_path / "one")[0] == 400
    for method, path in (("PUT", "/models"), ("POST", "/models/x"), ("GET", "/models/x/invoke")):
        assert ask(live, method, path, b"{}")[0] == 405
    assert ask(live, "GET", "/models/x/y/z")[0] == 404
    assert ask(live, "GET", "/models") == (200, {"models": []})


def test_a_model_that_is_being_loaded_is_not_there_yet(live: Live, tmp_path: Path) -> None:
    write_model(tmp_path, "net", onnx_files.slow_to_load(80, 500))
    with ThreadPoolExecutor(1) as pool:
        loading = pool.submit(load, live, "slow", tmp_path)
        eventually(lambda: b'"slow"' in live.http("POST", "/v2/repository/index").body)
        answers = [load(live, "slow", tmp_path)[0], ask(live, "DELETE", "/models/slow")[0]]
        assert loading.done() or answers == [409, 404]
        assert loading.result() == (200, None)
    ask(live, "DELETE", "/models/slow")
    assert ask(live, "GET", "/models") == (200, {"models": []})


def test_a_lack_of_memory_has_the_status_that_makes_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAGEMAKER_MULTI_MODEL", "true")
    (tmp_path / "empty").mkdir()
    write_model(tmp_path / "url", "net", onnx_files.heavy(8))
    with serving(tmp_path / "empty", model_memory_limit=1 << 20, **OPTIONS) as live:
        status, answer = load(live, "large", tmp_path / "url")
    assert (status, "--model-memory-limit" in answer["error"]) == (507, True)


def test_several_models_need_the_explicit_mode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAGEMAKER_MULTI_MODEL", "true")
    with (
        pytest.raises(UsageError, match="SAGEMAKER_MULTI_MODEL=true needs --model-control-mode=explicit"),
        serving(tmp_path, allow_sagemaker=True, sagemaker_port=0),
    ):
        pass
