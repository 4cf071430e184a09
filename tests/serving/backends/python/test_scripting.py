"""Business logic scripting: Python models that call other models."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tests.serving import onnx_files
from tests.serving.backends.python.asking import ask, said, say, y_of
from tests.serving.backends.python.conftest import ONE, SAY
from tests.serving.backends.python.zoo import MODELS, SAME, add
from tests.serving.live import Live, serving
from tests.serving.onnx_files import write_model
from tests.waiting import eventually, stands
from tpx.serving.backends.python.worker.errors import TritonModelException
from tpx.serving.backends.python.worker.request import InferenceRequest
from tpx.serving.tracing.flags import trace_flag

ZOO = ("say", "returns", "flood", "varies", "double", "bls", "bls_async", "streams_of", "meets", "sizes")


def test_a_model_calls_another(live: Live) -> None:
    assert y_of(ask(live, "bls", 1, 2, model="double")) == [2, 4]


def test_many_models_call_at_once(live: Live) -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda v: y_of(ask(live, "bls", v, model="double")), range(40)))
    assert answers == [[2.0 * value] for value in range(40)]


@pytest.mark.parametrize("size", [1, 5000, 500_000])
def test_tensors_of_any_size_pass_through_both_models(live: Live, size: int) -> None:
    values = np.arange(size, dtype=np.float32)
    answer = live.infer_binary("bls", {"x": values}, parameters={"model": "double"})
    assert np.array_equal(np.frombuffer(answer.tail, np.float32), values * 2)


def test_what_a_model_calls_is_traced_as_its_child(tmp_path: Path) -> None:
    for name in ("bls", "double"):
        add(tmp_path / "models", name)
    file = tmp_path / "trace.json"
    words = (f"triton,file={file}", "level=TIMESTAMPS", "rate=1")
    with serving(tmp_path / "models", trace_config=tuple(map(trace_flag, words))) as traced:
        assert y_of(ask(traced, "bls", 1, 2, model="double")) == [2, 4]
    about = [record for record in json.loads(file.read_bytes()) if "model_name" in record]
    assert [(record["model_name"], record.get("parent_id")) for record in about] == [
        ("bls", None),
        ("double", about[0]["id"]),
    ]


def test_a_decoupled_model_is_iterated(live: Live) -> None:
    assert y_of(ask(live, "bls", 5, 2, model="flood", decoupled=True)) == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert y_of(ask(live, "bls", 9, model="double", decoupled=True)) == [18]


def test_a_caller_sees_the_parameters_of_each_response(live: Live) -> None:
    """Also of one without outputs; the last one only says that it is the last."""
    values = y_of(ask(live, "bls", 1, model="varies", decoupled=True, only_parameters=True))
    assert values == [1, 1, -1, -1, 1, -1]


@pytest.mark.parametrize("parameters", ["no JSON", "", '{"a": [1]}', "[1]"])
def test_parameters_of_a_call_that_cannot_be_are_refused_where_they_are_given(parameters: str) -> None:
    with pytest.raises((ValueError, TritonModelException)):
        InferenceRequest(model_name="double", parameters=parameters)


def test_an_iteration_can_be_ended_early(live: Live, zoo: Path) -> None:
    answer = ask(live, "bls", 5000, 5000, model="flood", decoupled=True, enough=2)
    assert len(y_of(answer)) == 10_000
    sent = zoo / "flood" / "1" / "sent"
    assert stands(lambda: int(sent.read_text() or "0")) < 5000
    assert y_of(ask(live, "bls", 1, 1, model="flood", decoupled=True)) == [0]


def test_responses_that_a_caller_does_not_read_hold_back_who_makes_them(live: Live, zoo: Path) -> None:
    sent = zoo / "flood" / "1" / "sent"
    sent.unlink(missing_ok=True)
    answer = ask(live, "bls", 200, 50_000, model="flood", decoupled=True, enough=30, pause=0.02)
    assert len(y_of(answer)) == 30 * 50_000
    # of 200 KB each: some megabytes on the way when the caller has read enough, and no more
    assert stands(lambda: int(sent.read_text())) < 100


def test_all_of_a_long_stream_is_read_through_the_same_memory(live: Live) -> None:
    values = y_of(ask(live, "bls", 300, 5000, model="flood", decoupled=True, last=True))
    assert values == [299] * 5000


def test_a_coroutine_calls_many_at_once(live: Live) -> None:
    assert y_of(ask(live, "bls_async", 1)) == [2 * sum(range(1, 9)) + 3]


def _streams(live: Live, how: str) -> str:
    tensor = {"name": "how", "datatype": "BYTES", "shape": [1], "data": [how]}
    text: str = said(live.infer("streams_of", {"inputs": [tensor]}))
    return text


def test_coroutines_that_await_streams_wait_for_them_together(live: Live) -> None:
    """No stream begins before all four are asked for."""
    assert _streams(live, "four") == str([[i, -i, None] for i in (0.0, 1.0, 2.0, 3.0)])


def test_a_stream_is_iterated_without_blocking_the_event_loop(live: Live) -> None:
    assert _streams(live, "beside") == str([[i, -i, None] for i in (0.0, 1.0, 2.0, 3.0)])


def test_a_stream_is_iterated_again_from_its_beginning(live: Live) -> None:
    whole = [0.0, 1.0, 2.0, None]
    assert _streams(live, "again") == str((0.0, whole[1:], [whole, whole], whole[2:], "end"))


def test_a_large_stream_is_iterated_once(live: Live) -> None:
    words = "responses of more than 16777216 bytes cannot be iterated a second time"
    assert _streams(live, "again_large") == str((21, words))


def test_streams_that_are_cancelled_before_they_begin_leave_nothing(live: Live) -> None:
    assert _streams(live, "cancelled") == str(["CancelledError"] * 3)
    assert _streams(live, "four") == str([[i, -i, None] for i in (0.0, 1.0, 2.0, 3.0)])


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            "absent",
            "Model absent - Error when running inference: Request for unknown model: 'absent' is not found",
        ),
        ("flood", "Model flood - Error when running inference: Model flood is using the decoupled."),
        ("sizes", "Model sizes - Error when running inference: "),
    ],
)
def test_what_a_call_cannot_do_is_in_its_response(live: Live, model: str, message: str) -> None:
    assert ask(live, "bls", 1, model=model).error.startswith(message)


def test_an_error_of_the_called_model_is_the_callers_to_judge(live: Live) -> None:
    answer = ask(live, "bls", 1, model="returns", what="raise")
    assert "message: TritonModelException: nothing today" in answer.error
    assert answer.error.startswith("Failed to process the request(s) for model 'returns_0_0'")


def test_a_call_goes_to_other_backends_too(tmp_path: Path) -> None:
    write_model(tmp_path, "net", onnx_files.doubling("n"), "max_batch_size: 0 " + SAME)
    add(tmp_path, "bls")
    add(tmp_path, "double")
    with serving(tmp_path) as live:
        assert y_of(ask(live, "bls", 1, 2, 3, model="net")) == [2, 4, 6]


@pytest.fixture(scope="module")
def circles(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A model of one instance that asks itself, and two that ask each other."""
    repository = tmp_path_factory.mktemp("circles")
    for name, other in (("alone", "alone"), ("ping", "pong"), ("pong", "ping")):
        words = f"parameters {{ key: 'other' value {{ string_value: '{other}' }} }}"
        add(repository, name, code="asks", config=SAME + ONE + words)
    with serving(repository, model_control_mode="explicit", load_model=("*",)) as running:
        yield running


def _left(live: Live, model: str) -> None:
    """A client asks for an answer that cannot come, and goes."""
    tensor = {"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}
    with live.begin(f"/v2/models/{model}/infer", {"inputs": [tensor]}):
        [served] = [each for each in live.server.plane.served() if each.name == model]
        eventually(lambda: served.in_flight > 0)


@pytest.mark.parametrize("model", ["alone", "ping"])
def test_a_model_that_waits_for_itself_is_free_again_when_its_clients_have_left(
    circles: Live, model: str
) -> None:
    for _ in range(3):
        _left(circles, model)
    assert y_of(ask(circles, model, -1)) == [-1]


def test_a_model_that_waits_for_itself_and_for_nobody_else_can_be_unloaded(circles: Live) -> None:
    _left(circles, "alone")
    assert circles.http("POST", "/v2/repository/models/alone/unload").status == 200
    eventually(lambda: b"unloaded" in circles.http("POST", "/v2/repository/index").body)


def test_models_load_and_unload_others(tmp_path: Path) -> None:
    add(tmp_path, "say", config=SAY)
    add(tmp_path, "double")
    with serving(tmp_path, model_control_mode="explicit", load_model=("say",)) as live:
        assert said(say(live, "load double")) == "True"
        assert y_of(ask(live, "double", 4)) == [8]
        assert said(say(live, "unload double")) == "False"
        assert "failed to load 'nobody'" in say(live, "load nobody").error
        assert said(say(live, f"load_with brought {MODELS / 'say.py'}")) == "True"
        pid = np.array([b"pid"], dtype=np.object_)
        assert live.infer_binary("brought", {"say": pid}).status == 200


def test_models_cannot_load_others_where_clients_cannot(live: Live) -> None:
    assert "explicit model load / unload is not allowed" in say(live, "load double").error
