"""Samples that every instance computes before the model is ready."""

from pathlib import Path

import numpy as np
import pytest

from tests.serving.live import floats, serving
from tests.serving.onnx_files import doubling, identity, write_model

INPUT = "key: 'x' value {{ data_type: TYPE_{} dims: [ {} ] {} }}"


def sample(content: str, datatype: str = "FP32", dims: str = "2", batch_size: int = 1, count: int = 1) -> str:
    entry = INPUT.format(datatype, dims, content)
    return f"model_warmup [{{ name: 'first' batch_size: {batch_size} count: {count} inputs {{ {entry} }} }}]"


def reason(repository: Path) -> str:
    with serving(repository, exit_on_error=False) as server:
        [entry] = server.http("POST", "/v2/repository/index").json
    assert entry["state"] == "UNAVAILABLE"
    text: str = entry["reason"]
    return text


@pytest.mark.parametrize("content", ["zero_data: true", "random_data: true", "input_data_file: 'data'"])
def test_every_instance_computes_every_sample_before_the_model_serves(
    tmp_path: Path, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    config = "instance_group { count: 2 kind: KIND_CPU } max_batch_size: 8 " + sample(content, count=2)
    directory = write_model(tmp_path, "net", doubling(), config)
    (directory / "warmup").mkdir()
    (directory / "warmup" / "data").write_bytes(floats([1, 2]).tobytes())
    with serving(tmp_path) as server:
        answer = server.infer_binary("net", {"x": floats([1, 2])})
        assert np.frombuffer(answer.tail, np.float32).tolist() == [2, 4]
        [counted] = server.get("/v2/models/net/stats").json["model_stats"]
    assert counted["execution_count"] == 1, "samples are not requests"
    said = [
        record.getMessage() for record in caplog.records if "running warmup sample" in record.getMessage()
    ]
    assert said == [
        f"model 'net' instance net_0_{instance} is running warmup sample 'first' for iteration {iteration}"
        for instance in (0, 1)
        for iteration in (1, 2)
    ]


@pytest.mark.parametrize("datatype", ["BYTES", "BF16", "BOOL", "INT8", "FP16", "UINT64"])
@pytest.mark.parametrize("content", ["zero_data: true", "random_data: true"])
def test_samples_have_every_datatype(tmp_path: Path, datatype: str, content: str) -> None:
    name = "STRING" if datatype == "BYTES" else datatype
    write_model(
        tmp_path, "net", identity(datatype), "max_batch_size: 4 " + sample(content, name, batch_size=4)
    )
    with serving(tmp_path) as server:
        assert server.get("/v2/models/net/ready").status == 200


def test_a_sample_of_batch_size_zero_is_skipped(tmp_path: Path) -> None:
    write_model(
        tmp_path, "net", doubling(), "max_batch_size: 8 " + sample("zero_data: true", "INT8", batch_size=0)
    )
    with serving(tmp_path) as server:
        assert server.get("/v2/models/net/ready").status == 200


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (sample("zero_data: true", "INT8"), "data-type is 'INT8', but model 'net' expects 'FP32'"),
        (
            sample("zero_data: true", dims="-1"),
            "warmup input 'x' must be fixed numbers, got [ -1 ]",
        ),
        (sample("zero_data: true", dims="3"), "unexpected shape for input 'x'"),
        (
            sample("random_data: true", dims="200000000000"),
            "the dims of warmup sample 'first' need more than a quarter of this machine's memory",
        ),
        (sample("zero_data: true", count=4_000_000_000), "its count is 4000000000, it may be 10000"),
        (sample("zero_data: true", batch_size=9), "batch size 9 is more than max_batch_size 8"),
        (sample("input_data_file: 'none'"), "No such file or directory"),
        (sample(""), "warmup setting expects input 'x' to have input_data_type set"),
        (sample("input_data_file: '../config.pbtxt'"), "it must name a file below it"),
    ],
)
def test_a_sample_that_fails_fails_the_load_and_is_named(tmp_path: Path, text: str, message: str) -> None:
    write_model(tmp_path, "net", doubling(), "max_batch_size: 8 " + text)
    said = reason(tmp_path)
    assert "failed to run warmup sample 'first': " in said
    assert message in said


def test_a_decoupled_model_is_warmed_up_with_all_its_responses(tmp_path: Path) -> None:
    inputs = [
        ("IN", "INT32", "input_data_file: 'in'", 3),
        ("DELAY", "UINT32", "zero_data: true", 3),
        ("WAIT", "UINT32", "zero_data: true", 1),
    ]
    entries = " ".join(
        f"inputs {{ key: '{name}' value {{ data_type: TYPE_{datatype} dims: [ {dim} ] {content} }} }}"
        for name, datatype, content, dim in inputs
    )
    directory = tmp_path / "many"
    (directory / "1").mkdir(parents=True)
    (directory / "warmup").mkdir()
    (directory / "warmup" / "in").write_bytes(np.arange(3, dtype=np.int32).tobytes())
    text = f"backend: 'repeat' model_warmup [{{ name: 'first' batch_size: 1 {entries} }}]"
    (directory / "config.pbtxt").write_text(text, encoding="utf-8")
    with serving(tmp_path) as server:
        assert server.get("/v2/models/many/ready").status == 200
