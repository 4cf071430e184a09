"""The identity backend: what goes in comes out, of any datatype, at the speed it is told."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.serving.live import Live, infer_message, outputs_of, serving
from tpx.protocol import messages

BOTH = """
backend: "identity" max_batch_size: {batch}
input [{{ name: "INPUT0" data_type: TYPE_{kind} dims: [ -1 ] }}]
output [{{ name: "OUTPUT0" data_type: TYPE_{kind} dims: [ -1 ] }}]
"""
KINDS = {"FP32": np.float32, "FP16": np.float16, "INT64": np.int64, "UINT8": np.uint8, "BOOL": np.bool_}
DELAYED = 'parameters { key: "execute_delay_ms" value { string_value: "%s" } }'
BROKEN = {
    "bare": 'backend: "identity"',
    "uneven": BOTH.format(batch=0, kind="FP32") + 'output [{ name: "O1" data_type: TYPE_FP32 dims: [ 1 ] }]',
    "unlike": 'backend: "identity" input [{ name: "a" data_type: TYPE_FP32 dims: [ 1 ] }]'
    'output [{ name: "b" data_type: TYPE_INT32 dims: [ 1 ] }]',
    "wordy": BOTH.format(batch=0, kind="FP32") + DELAYED % "soon",
    "odd": BOTH.format(batch=0, kind="FP32") + DELAYED.replace("execute", "creation") % "1",
}


def _write(repository: Path, name: str, config: str) -> None:
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(config)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    repository = tmp_path_factory.mktemp("models")
    for kind in KINDS:
        _write(repository, kind.lower(), BOTH.format(batch=0, kind=kind))
    _write(repository, "words", BOTH.format(batch=0, kind="STRING"))
    _write(repository, "batched", BOTH.format(batch=4, kind="FP32") + "dynamic_batching { }")
    _write(repository, "slow", BOTH.format(batch=0, kind="FP32") + DELAYED % "60")
    for name, config in BROKEN.items():
        _write(repository, name, config)
    with serving(repository, exit_on_error=False) as running:
        yield running


@pytest.mark.parametrize("kind", KINDS)
def test_every_datatype_comes_back_bit_by_bit(live: Live, kind: str) -> None:
    sent: Any = np.arange(100).astype(KINDS[kind])
    answer = live.infer_binary(kind.lower(), {"INPUT0": sent})
    assert answer.status == 200, answer.body
    assert answer.tail == sent.tobytes()
    with live.channel() as channel:
        got = channel.infer(kind.lower(), {"INPUT0": sent})
        assert bytes(got.raw_output_contents[0]) == sent.tobytes()


def test_strings_and_large_tensors_come_back(live: Live) -> None:
    words = {"name": "INPUT0", "datatype": "BYTES", "shape": [3], "data": ["a", "", "日本"]}
    assert live.infer("words", {"inputs": [words]}).json["outputs"][0]["data"] == ["a", "", "日本"]
    large = np.random.default_rng(0).random(1 << 20, dtype=np.float32)
    assert live.infer_binary("fp32", {"INPUT0": large}).tail == large.tobytes()


def test_requests_in_one_batch_get_their_own_rows(live: Live) -> None:
    with live.channel() as channel:
        futures = [
            channel.raw.unary_unary("/inference.GRPCInferenceService/ModelInfer", None, None).future(
                infer_message("batched", {"INPUT0": np.full((1, 3), n, np.float32)})
            )
            for n in range(50)
        ]
        for n, future in enumerate(futures):
            got = outputs_of(messages.ModelInferResponse.FromString(future.result(timeout=10)))
            assert got == {"OUTPUT0": [[n, n, n]]}


def test_an_execution_takes_as_long_as_it_is_told_and_holds_up_nobody_else(live: Live) -> None:
    x = np.zeros(1, np.float32)
    assert live.infer_binary("slow", {"INPUT0": x}).status == 200
    [statistics] = live.get("/v2/models/slow/stats").json["model_stats"]
    assert statistics["inference_stats"]["compute_infer"]["ns"] >= 60_000_000
    assert live.infer_binary("fp32", {"INPUT0": x}).status == 200


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("bare", "must specify at least one output"),
        ("uneven", "as many outputs as inputs, the configuration has 2 and 1"),
        ("unlike", "output 'b' must have the data_type and dims of input 'a'"),
        ("wordy", "parameter 'execute_delay_ms' of model 'wordy' must be milliseconds, got 'soon'"),
        ("odd", "has no parameter 'creation_delay_ms' (has: execute_delay_ms)"),
    ],
)
def test_a_configuration_that_it_cannot_follow_is_refused_in_words(live: Live, name: str, words: str) -> None:
    entries = {entry["name"]: entry for entry in live.http("POST", "/v2/repository/index").json}
    assert entries[name]["state"] == "UNAVAILABLE"
    assert words in entries[name]["reason"]
