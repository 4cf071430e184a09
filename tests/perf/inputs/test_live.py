"""Data, sequences and expected outputs against tpx itself, over every transport."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.perf.clients.running import level, ran
from tests.serving.live import Live, serving, write_models
from tests.serving.onnx_files import accumulator, write_model
from tpx.errors import UsageError

CONTROLS = """
control_input [
  { name: 'START' control [{ kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] }] },
  { name: 'READY' control [{ kind: CONTROL_SEQUENCE_READY fp32_false_true: [ 0, 1 ] }] },
  { name: 'CORRID' control [{ kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 }] }
]
state [{ input_name: 'state_in' output_name: 'state_out' data_type: TYPE_FP32 dims: [ 1 ] }]
"""
TRANSPORTS = (("http",), ("grpc",), ("grpc", "--streaming"))
EVERY = pytest.mark.parametrize("transport", TRANSPORTS, ids=" ".join)


def batching(strategy: str) -> str:
    return (
        f"max_batch_size: 4 instance_group [{{ count: 2 kind: KIND_CPU }}] "
        f"sequence_batching {{ max_sequence_idle_microseconds: 20000000 {strategy} {CONTROLS} }}"
    )


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    repository: Path = tmp_path_factory.mktemp("models")
    write_models(repository)
    write_model(repository, "direct", accumulator(), batching("direct { }"))
    write_model(repository, "oldest", accumulator(), batching("oldest { max_candidate_sequences: 6 }"))
    with serving(repository) as server:
        yield server


def at(live: Live, transport: Sequence[str], model: str) -> tuple[str, ...]:
    protocol, *more = transport
    service = "HTTPService" if protocol == "http" else "GRPCInferenceService"
    return ("-i", protocol, "-u", f"127.0.0.1:{live.ports[service]}", "-m", model, *more)


def data_file(directory: Path, document: Any) -> str:
    path = directory / "data.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    return str(path)


def sums(*streams: Sequence[float]) -> dict[str, Any]:
    """Streams, and what an accumulator gives for them."""
    return {
        "data": [[{"x": [value]} for value in stream] for stream in streams],
        "validation_data": [
            [{"y": [sum(stream[: i + 1])]} for i in range(len(stream))] for stream in streams
        ],
    }


@EVERY
@pytest.mark.parametrize("model", ["direct", "oldest"])
def test_every_answer_of_every_sequence_is_right(
    live: Live, tmp_path: Path, transport: Sequence[str], model: str
) -> None:
    data = data_file(tmp_path, sums((1, 2, 3, 4), (10,), (5, 6)))
    words = ("--input-data", data, "--concurrency-range", "5", "--request-count", "150")
    result = level(*at(live, transport, model), *words)
    assert (result.requests, result.failed) == (150, 0)


@EVERY
def test_sequences_at_a_rate_are_right_too(live: Live, tmp_path: Path, transport: Sequence[str]) -> None:
    data = data_file(tmp_path, sums((1, 2, 3), (10, 20)))
    words = ("--request-rate-range", "400", "--num-of-sequences", "3")
    result = level(*at(live, transport, "oldest"), "--input-data", data, *words)
    assert result.requests > 20
    assert result.failed == 0


def test_sequences_that_are_made_leave_nothing_open_behind_them(live: Live) -> None:
    """All slots are taken while a run lasts: if it left some, the next one would have to wait."""
    words = ("--concurrency-range", "8", "--request-count", "61", "--sequence-length", "9", "--timeout", "5")
    for _ in range(3):
        result = level(*at(live, ("http",), "direct"), *words)
        assert (result.requests, result.failed) == (61, 0)


def test_a_wrong_answer_is_an_error_with_its_place_and_the_run_goes_on(live: Live, tmp_path: Path) -> None:
    document = sums((1, 2), (5, 6))
    document["validation_data"][1][1] = {"y": [12]}
    for transport in TRANSPORTS:
        words = ("--input-data", data_file(tmp_path, document), "--request-count", "80")
        result = level(*at(live, transport, "direct"), *words)
        (error,) = result.errors
        assert error.code == "output mismatch"
        assert "data.json: stream 1, step 1: output 'y': " in error.message
        assert "element 0 is 11.0, expected 12.0 (1 of 1 differ)" in error.message
        assert 0 < error.count < 40
        assert result.requests + error.count == 80


def test_mismatches_spend_the_error_budget(live: Live, tmp_path: Path) -> None:
    document = {"data": [{"x": [1, 2]}], "validation_data": [{"y": [2, 5]}]}
    words = ("--input-data", data_file(tmp_path, document), "--shape", "x:2", "--max-errors", "3")
    report = ran(*at(live, ("http",), "double"), *words, "--request-count", "30")
    assert report.over_budget
    report = ran(*at(live, ("http",), "double"), *words, "--request-count", "30", "--tolerance", "1")
    assert not report.over_budget
    assert report.levels[0].failed == 0


@pytest.mark.parametrize("model", ["words", "fp16", "bf16", "int64", "uint64", "bool", "fp64"])
def test_outputs_of_every_datatype_are_compared(live: Live, tmp_path: Path, model: str) -> None:
    special: dict[str, list[Any]] = {"words": ["é", ""], "bool": [True, False]}
    values = special.get(model, [1, 0])
    document = {"data": [{"x": values}] * 3, "validation_data": [{"y": values}] * 3}
    words = [
        "--input-data",
        data_file(tmp_path, document),
        "--shape",
        "x:2",
        "-b",
        "2",
        "--request-count",
        "6",
    ]
    formats = [("http", ""), ("grpc", "")] + ([] if "16" in model else [("http", "json")])
    for protocol, form in formats:
        more = ("--output-tensor-format", form) if form else ()
        result = level(*at(live, (protocol,), model), *words, *more)
        assert (result.requests, result.failed) == (6, 0), result.errors


def test_a_directory_of_arrays_is_sent_and_compared(live: Live, tmp_path: Path) -> None:
    rows = np.arange(12, dtype=np.float32).reshape(6, 2)
    np.save(tmp_path / "x.npy", rows)
    np.save(tmp_path / "y.npy", rows * 2)
    result = level(
        *at(live, ("http",), "double"), "--input-data", str(tmp_path), "-b", "4", "--request-count", "9"
    )
    assert (result.requests, result.failed) == (9, 0)


def test_only_the_wanted_output_comes(live: Live, tmp_path: Path) -> None:
    document = {"data": [{"a": [3, 4], "b": [1, 1]}], "validation_data": [{"difference": [2, 3]}]}
    words = ("--input-data", data_file(tmp_path, document), "--request-count", "4")
    for output, failed in (("difference", 0), ("sum", None)):
        run = (*at(live, ("http",), "two"), *words, "--output", output)
        if failed is None:
            with pytest.raises(UsageError, match="which --output leaves out"):
                ran(*run)
        else:
            assert level(*run).failed == failed
    with pytest.raises(UsageError, match=r"--output product: model 'two' has no such output .*has: sum, "):
        ran(*at(live, ("http",), "two"), "--output", "product")
