"""Python models of sequences: controls, states, and the requests that call for another one."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.serving.backends.python.asking import ask, y_of
from tests.serving.backends.python.zoo import DECOUPLED, MODELS, SAME, add, io
from tests.serving.live import Answer, Live, outputs_of, serving
from tests.waiting import eventually
from tpx.protocol import messages

ONE = "data_type: TYPE_FP32 dims: [ 1 ]"
PAIR = "data_type: TYPE_FP32 dims: [ 2 ]"
VARIES = "data_type: TYPE_FP32 dims: [ -1 ]"
WORD = "data_type: TYPE_STRING dims: [ 1 ]"
CONTROLS = "".join(
    f"control_input {{ name: '{kind}' control {{ kind: CONTROL_SEQUENCE_{kind} fp32_false_true: [0, 1] }} }} "
    for kind in ("START", "END", "READY")
)


def _config(strategy: str) -> str:
    return f"""
sequence_batching {{
  {strategy}
  {CONTROLS}
  control_input {{ name: 'CORRID' control {{ kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 }} }}
  state {{ input_name: 'sum_in' output_name: 'sum_out' data_type: TYPE_FP32 dims: [ 1 ]
    initial_state {{ name: 'hundred' data_type: TYPE_FP32 dims: [ 1 ] data_file: 'hundred' }} }}
}}
"""


def _send(live: Live, sequence: int, value: float, *, rows: bool, **flags: bool) -> Answer:
    shape = [1, 1] if rows else [1]
    tensor = {"name": "x", "datatype": "FP32", "shape": shape, "data": [value]}
    parameters: dict[str, Any] = {"sequence_id": sequence, **flags}
    return live.infer("accumulate", {"inputs": [tensor], "parameters": parameters})


@pytest.mark.parametrize("strategy", ["direct { }", "oldest { max_candidate_sequences: 4 }"])
@pytest.mark.parametrize("rows", [False, True])
def test_controls_and_states_reach_each_request(tmp_path: Path, strategy: str, rows: bool) -> None:
    size = "max_batch_size: 4" if rows else "instance_group { count: 2 }"
    add(tmp_path, "accumulate", config=size + _config(strategy) + io({"x": ONE}, {"y": ONE}))
    start = tmp_path / "accumulate" / "initial_state"
    start.mkdir()
    (start / "hundred").write_bytes(b"\x00\x00\xc8\x42")
    with serving(tmp_path) as live:
        assert y_of(_send(live, 7, 1, rows=rows, sequence_start=True)) == [101]
        assert y_of(_send(live, 8, 10, rows=rows, sequence_start=True)) == [110]
        assert y_of(_send(live, 7, 2, rows=rows)) == [103]
        assert y_of(_send(live, 8, 20, rows=rows, sequence_end=True)) == [130]
        assert y_of(_send(live, 7, 3, rows=rows)) == [106]
        missing = _send(live, 7, 5000, rows=rows)
        assert missing.error == "the model returned no state 'sum_out'"


SLOTS = "max_batch_size: 4 " + _config("direct { }") + io({"x": PAIR, "word": WORD}, {"y": VARIES})


def _slot(live: Live, sequence: int, model: str = "slots", **flags: bool) -> list[float]:
    """How many rows the execution of a request had, and in which it was."""
    x = {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}
    word = {"name": "word", "datatype": "BYTES", "shape": [1, 1], "data": ["abc"]}
    parameters: dict[str, Any] = {"sequence_id": sequence, "mine": 1, **flags}
    return y_of(live.infer(model, {"id": "a", "inputs": [x, word], "parameters": parameters}))


def _slots(repository: Path, more: str = "", model: str = "slots") -> None:
    add(repository, model, config=SLOTS + more)
    start = repository / model / "initial_state"
    start.mkdir()
    (start / "hundred").write_bytes(b"\x00\x00\xc8\x42")


def test_slots_below_the_last_one_are_requests_of_nobody(tmp_path: Path) -> None:
    _slots(tmp_path)
    with serving(tmp_path) as live:
        assert [_slot(live, number, sequence_start=True) for number in (7, 8, 9)] == [[1, 0], [2, 1], [3, 2]]
        assert _slot(live, 8) == [2, 1]
        assert _slot(live, 7, sequence_end=True) == [1, 0]
        assert [_slot(live, 9) for _ in range(20)] == [[3, 2]] * 20
        [statistics] = live.get("/v2/models/slots/stats").json["model_stats"]
        assert (statistics["inference_count"], statistics["execution_count"]) == (25, 25)
        assert statistics["inference_stats"]["success"]["count"] == 25
        sizes = {each["batch_size"]: each["compute_infer"]["count"] for each in statistics["batch_stats"]}
        assert sizes == {1: 2, 2: 2, 3: 21}


def test_a_decoupled_model_may_answer_requests_of_nobody_at_length(tmp_path: Path) -> None:
    """Nobody reads those responses: the model goes on as if somebody did."""
    _slots(tmp_path, DECOUPLED, "slots_decoupled")
    with serving(tmp_path) as live, live.channel() as channel:
        for number in (7, 8):
            message = messages.ModelInferRequest(model_name="slots_decoupled")
            message.parameters["sequence_id"].int64_param = number
            message.parameters["sequence_start"].bool_param = True
            message.inputs.add(name="x", datatype="FP32", shape=(1, 2))
            message.inputs.add(name="word", datatype="BYTES", shape=(1, 1))
            message.raw_input_contents.extend([bytes(8), b"\3\0\0\0abc"])
            call = channel.raw.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
            answers = list(call(iter([message.SerializeToString()]), timeout=20))
            first = messages.ModelStreamInferResponse.FromString(answers[0]).infer_response
            assert outputs_of(first)["y"] == [[number - 6, number - 7]]
        [model] = live.server.plane.served()
        eventually(lambda: model.statistics.execution_count == 2)
        assert sorted(model.statistics.batches) == [1, 2]
        assert model.statistics.inference_count == 2


CALLS_WITH_NO_TEXT = """
import triton_python_backend_utils as pb_utils

START = pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START
END = pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END


class TritonPythonModel:
    def execute(self, requests):
        inputs = requests[0].inputs()
        call = pb_utils.InferenceRequest(
            model_name="double",
            inputs=inputs,
            requested_output_names=["y"],
            correlation_id="\\ud800" if inputs[0].as_numpy()[0] < 0 else "text",
            flags=START | END,
        )
        response = call.exec()
        return [pb_utils.InferenceResponse(response.output_tensors(), response.error())]
"""
BY_TEXT = """
instance_group { count: 1 }
sequence_batching {
  control_input { name: 'ID' control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_STRING } }
}
"""


def test_what_cannot_be_told_a_model_is_an_error_and_the_next_request_is_served(tmp_path: Path) -> None:
    add(tmp_path, "double", config=BY_TEXT + SAME)
    (add(tmp_path, "calls", "double") / "model.py").write_text(CALLS_WITH_NO_TEXT, encoding="utf-8")
    with serving(tmp_path) as live:
        for _ in range(3):
            answer = ask(live, "calls", -1)
            assert answer.status == 500
            assert "a request cannot be given to the model" in answer.error
        assert y_of(ask(live, "calls", 2)) == [4]


ITERATIVE = (
    "max_batch_size: 4 sequence_batching { iterative_sequence: true " + "%s }" + io({"x": ONE}, {"y": ONE})
)


def _count(live: Live, model: str, times: int) -> Answer:
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [times]}
    return live.infer(model, {"inputs": [tensor]})


@pytest.mark.parametrize("strategy", ["direct { }", "oldest { max_candidate_sequences: 8 }"])
def test_a_request_comes_again_as_often_as_the_model_wants(tmp_path: Path, strategy: str) -> None:
    add(tmp_path, "countdown", config=ITERATIVE.replace("%s", strategy))
    with serving(tmp_path) as live:
        with ThreadPoolExecutor(6) as pool:
            counts = [1, 20, 3, 50, 2, 7, 1, 30]
            answers = list(pool.map(lambda times: y_of(_count(live, "countdown", times)), counts))
        assert answers == [[float(times)] for times in counts]
        tensor = {"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [1]}
        named = live.infer("countdown", {"inputs": [tensor], "parameters": {"sequence_id": 5}})
        assert "must not specify a correlation ID" in named.error


def test_a_python_based_backend_may_want_a_request_again(tmp_path: Path) -> None:
    backends, models = tmp_path / "backends", tmp_path / "models"
    (backends / "counting").mkdir(parents=True)
    (backends / "counting" / "model.py").write_text((MODELS / "countdown.py").read_text())
    (models / "countdown" / "1").mkdir(parents=True)
    config = "backend: 'counting' " + ITERATIVE.replace("%s", "direct { }")
    (models / "countdown" / "config.pbtxt").write_text(config)
    with serving(models, backend_directory=backends) as live:
        assert y_of(_count(live, "countdown", 5)) == [5]


def test_a_decoupled_model_sends_a_response_each_time(tmp_path: Path) -> None:
    config = ITERATIVE.replace("%s", "oldest { max_candidate_sequences: 8 }") + DECOUPLED
    add(tmp_path, "tokens", config=config)
    with serving(tmp_path) as live:
        body = json.dumps({"x": 4}).encode()
        answer = live.http("POST", "/v2/models/tokens/generate_stream", body)
        events = [json.loads(line[6:]) for line in answer.body.decode().split("\n\n") if line]
        assert [event["y"] for event in events] == [0, 1, 2, 3]


def test_only_models_that_can_ask_again_are_iterative(tmp_path: Path) -> None:
    config = "backend: 'identity' " + ITERATIVE.replace("%s", "direct { }")
    (tmp_path / "echo" / "1").mkdir(parents=True)
    (tmp_path / "echo" / "config.pbtxt").write_text(config)
    with serving(tmp_path, exit_on_error=False) as live:
        [entry] = live.http("POST", "/v2/repository/index").json
        assert "iterative_sequence needs a backend whose models can reschedule requests" in entry["reason"]
