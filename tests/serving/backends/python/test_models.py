"""Python models in a server in this process: what clients see of them."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tests.serving.backends.python.asking import ask, facts, floats, said, say, y_of
from tests.serving.live import Live, outputs_of
from tests.waiting import eventually

ZOO = (
    "add_sub",
    "say",
    "returns",
    "reshaped",
    "double",
    "doubler_async",
    "imports",
    "ready",
    "dlpack",
    "sizes",
)


@pytest.mark.parametrize("size", [1, 4, 5000, 300_000, 2_000_000])
def test_tensors_of_any_size_go_to_the_model_and_back(live: Live, size: int) -> None:
    a, b = np.random.default_rng(0).random((2, 1, size), np.float32)
    answer = live.infer_binary("add_sub", {"INPUT0": a, "INPUT1": b})
    assert answer.status == 200, answer.body
    both = np.frombuffer(answer.tail, np.float32)
    assert np.array_equal(both[:size], (a + b)[0])
    assert np.array_equal(both[size:], (a - b)[0])


def test_tensors_without_elements_go_to_the_model_and_back(live: Live) -> None:
    nothing = np.empty((1, 0), np.float32)
    with live.channel() as channel:
        response = channel.infer("add_sub", {"INPUT0": nothing, "INPUT1": nothing})
    assert [list(output.shape) for output in response.outputs] == [[1, 0], [1, 0]]


def test_grpc_gets_what_http_gets(live: Live) -> None:
    arrays = {"INPUT0": floats(1, 2, 3)[None], "INPUT1": floats(3, 2, 1)[None]}
    with live.channel() as channel:
        outputs = outputs_of(channel.infer("add_sub", arrays))
    assert outputs == {"OUTPUT0": [[4, 4, 4]], "OUTPUT1": [[-2, 0, 2]]}


def test_memory_that_is_used_again_holds_the_right_tensors(live: Live) -> None:
    def check(seed: int) -> None:
        generator = np.random.default_rng(seed)
        for _ in range(12):
            a, b = generator.random((2, 1, int(generator.integers(1, 60_000))), np.float32)
            answer = live.infer_binary("add_sub", {"INPUT0": a, "INPUT1": b})
            both = np.frombuffer(answer.tail, np.float32).reshape(2, -1)
            assert np.array_equal(both[0], (a + b)[0])
            assert np.array_equal(both[1], (a - b)[0])

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(check, range(6)))


def test_only_the_wanted_outputs_come_in_the_wanted_order(live: Live) -> None:
    tensors = [
        {"name": name, "datatype": "FP32", "shape": [1, 1], "data": [5]} for name in ("INPUT0", "INPUT1")
    ]
    wanted = [{"name": "OUTPUT1"}, {"name": "OUTPUT0"}]
    answer = live.infer("add_sub", {"inputs": tensors, "outputs": wanted})
    assert [item["name"] for item in answer.json["outputs"]] == ["OUTPUT1", "OUTPUT0"]
    only = live.infer("add_sub", {"inputs": tensors, "outputs": wanted[:1]})
    assert [item["data"] for item in only.json["outputs"]] == [[0]]


def test_a_model_sees_everything_of_its_request(live: Live) -> None:
    parameters = {
        "sequence_id": 7,
        "sequence_start": True,
        "timeout": 5_000_000,
        "mine": "words",
        "count": 3,
        "flag": True,
    }
    fields = {"id": "ä-1", "parameters": parameters, "outputs": [{"name": "said"}]}
    assert facts(say(live, "facts", **fields)) == {
        "id": "ä-1",
        "correlation": 7,
        "flags": 1,
        "timeout": 5_000_000,
        "parameters": {"mine": "words", "count": 3, "flag": True},
        "outputs": ["said"],
        "inputs": ["say"],
        "absent": True,
        "directory": "1",
        "kind": "CPU",
        "version": "1",
        "arguments": [""],
    }
    assert facts(say(live, "facts"))["parameters"] == {}


def test_a_request_id_of_any_length_reaches_the_model(live: Live) -> None:
    assert facts(say(live, "facts", id="i" * 70_000))["id"] == "i" * 70_000


def test_a_trace_has_no_context_but_that_of_opentelemetry(live: Live) -> None:
    assert said(say(live, "trace")) == "(None, True)"


def test_an_exception_is_told_with_its_place(live: Live) -> None:
    answer = say(live, "fail on purpose")
    assert answer.status == 500
    start, _, place = answer.error.partition("\n\nAt:\n")
    assert start == "Failed to process the request(s) for model 'say_0_0', message: ValueError: on purpose"
    lines = place.splitlines()
    assert lines[0].endswith(f"1/model.py({_line_of('raise ValueError(rest)')}): fail")
    assert lines[-1].endswith(": execute")
    assert said(say(live, "pid")) == said(say(live, "pid"))


def _line_of(text: str) -> int:
    code = Path(__file__).parent / "models" / "say.py"
    return next(n for n, line in enumerate(code.read_text(encoding="utf-8").splitlines(), 1) if text in line)


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("INTERNAL", 500),
        ("NOT_FOUND", 404),
        ("INVALID_ARG", 400),
        ("UNAVAILABLE", 503),
        ("UNSUPPORTED", 501),
        ("ALREADY_EXISTS", 400),
        ("CANCELLED", 400),
        ("UNKNOWN", 400),
    ],
)
def test_an_error_of_a_response_keeps_its_code_and_words(live: Live, code: str, status: int) -> None:
    answer = say(live, f"refuse {code} not like this")
    assert (answer.status, answer.error) == (status, "not like this")


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("none", "Expected an 'InferenceResponse' object in the execute function return list, found type"),
        ("tuple", "Expected a list in the execute return, found type '<class 'tuple'>'."),
        ("empty", "InferenceRequest(s) size is:1, and InferenceResponse(s) size is:0"),
        ("many", "InferenceRequest(s) size is:1, and InferenceResponse(s) size is:2"),
        ("text", "Expected an 'InferenceResponse' object in the execute function return list, found type"),
        (
            "rescheduled",
            "Expected a None object in the execute function return list for reschduled request, found type "
            "'<class 'tpx.serving.backends.python.worker.response.InferenceResponse'>'.",
        ),
        ("raise", "TritonModelException: nothing today"),
    ],
)
def test_what_execute_must_not_return_is_told(live: Live, what: str, message: str) -> None:
    answer = ask(live, "returns", 1, what=what)
    assert answer.status == 500
    assert answer.error.startswith("Failed to process the request(s) for model 'returns_0_0', message: ")
    assert message in answer.error
    assert y_of(ask(live, "returns", 1, what="good")) == [1]


def test_parameters_of_a_response_reach_both_kinds_of_clients(live: Live) -> None:
    wanted = {"text": "t", "number": 3, "flag": True}
    assert say(live, "parameters").json["parameters"] == wanted
    assert "parameters" not in say(live, "pid").json
    generated = live.http("POST", "/v2/models/say/generate", b'{"say": "parameters"}').json
    assert generated == {"model_name": "say", "model_version": "1", "said": "ok", **wanted}
    with live.channel() as channel:
        tensor = np.array([b"parameters"], dtype=np.object_)
        response = channel.infer("say", {"say": tensor})
    assert response.parameters["text"].string_param == "t"
    assert response.parameters["number"].int64_param == 3
    assert response.parameters["flag"].bool_param is True


def test_an_output_that_the_model_leaves_out_is_not_in_the_answer(live: Live) -> None:
    answer = say(live, "nothing")
    assert answer.status == 200
    assert answer.json["outputs"] == []


def test_an_answer_without_outputs_is_an_answer_to_generate(live: Live) -> None:
    path, body = "/v2/models/say/generate", b'{"say": "nothing"}'
    told = {"model_name": "say", "model_version": "1"}
    assert live.http("POST", path, body).json == told
    events = live.http("POST", path + "_stream", body).body.decode()
    assert json.loads(events.removeprefix("data: ")) == told


def test_an_output_of_another_type_is_told_as_what_it_is(live: Live) -> None:
    [output] = say(live, "other_type").json["outputs"]
    assert (output["datatype"], output["data"]) == ("FP64", [1.5, 2.5])


def test_an_output_that_its_reshape_does_not_fit_is_an_error_of_its_request_alone(live: Live) -> None:
    assert ask(live, "reshaped", 2).json["outputs"][0]["shape"] == [1, 2]
    answer = ask(live, "reshaped", 3)
    assert (answer.status, answer.error) == (500, "output 'y' has shape [3], its reshape requires [2]")
    assert y_of(ask(live, "reshaped", 2)) == [0, 0]


def test_a_sender_answers_a_model_that_is_not_decoupled_once(live: Live) -> None:
    assert said(say(live, "sender")) == "by sender"


def test_an_answer_may_come_after_execute_has_returned(live: Live) -> None:
    assert said(say(live, "later")) == "later"


def test_a_request_that_a_model_drops_is_answered_with_an_error(live: Live) -> None:
    answer = say(live, "forget")
    assert answer.status == 500
    assert "dropped the request without a response" in answer.error


def test_requests_are_batched_but_not_stacked(live: Live) -> None:
    def one(value: float) -> tuple[int, bytes]:
        answer = live.infer_binary("sizes", {"x": floats(value, value)[None]})
        return answer.status, answer.tail if answer.status == 200 else answer.body

    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(one, [1, 1, 1, -1, 1, 1]))
    assert [status for status, _ in answers].count(500) == 1
    sizes = [np.frombuffer(tail, np.float32)[0] for status, tail in answers if status == 200]
    assert max(sizes) > 1
    assert b"below zero" in answers[3][1]


def test_an_async_execute_answers(live: Live) -> None:
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda value: y_of(ask(live, "doubler_async", value)), range(8)))
    assert answers == [[2.0 * value] for value in range(8)]
    assert "ValueError: negative" in ask(live, "doubler_async", -1).error


def test_files_beside_the_model_can_be_imported(live: Live) -> None:
    assert y_of(ask(live, "imports", 2)) == [6]


def test_dlpack_goes_there_and_back(live: Live) -> None:
    assert y_of(ask(live, "dlpack", 1, 2)) == [2, 4]


@pytest.mark.slow  # importing torch takes seconds
def test_dlpack_carries_bf16_through_torch(live: Live) -> None:
    pytest.importorskip("torch")
    bits = (np.array([1.5, -2], np.float32).view(np.uint32) >> 16).astype(np.uint16)
    tensors = [
        {"name": "x", "datatype": "FP32", "shape": [1], "data": [1]},
        {"name": "b", "datatype": "BF16", "shape": [2], "parameters": {"binary_data_size": 4}},
    ]
    outputs = [{"name": "c", "parameters": {"binary_data": True}}]
    answer = live.infer("dlpack", {"inputs": tensors, "outputs": outputs}, bits.tobytes())
    assert answer.status == 200, answer.body
    values = (np.frombuffer(answer.tail, np.uint16).astype(np.uint32) << 16).view(np.float32)
    assert values.tolist() == [3, -4]


@pytest.mark.parametrize("words", ["", "a", "ä" * 20_000, "x" * 200_000])
def test_strings_of_any_size_arrive(live: Live, words: str) -> None:
    tensor = {"name": "say", "datatype": "BYTES", "shape": [2], "data": ["keep", words]}
    assert live.infer("say", {"inputs": [tensor]}).status == 200


def test_tensors_that_a_model_keeps_stay_what_they_were(live: Live) -> None:
    for _ in range(5):
        large = np.array([b"keep " + b"z" * 400_000], dtype=np.object_)
        answer = live.infer_binary("say", {"say": large})
        assert answer.status == 200


def test_a_model_sees_how_much_shared_memory_is_free(live: Live) -> None:
    free = int(said(say(live, "free_memory")))
    assert free > 1 << 24
    assert len(said(say(live, "large 1000000"))) == 1_000_000
    eventually(lambda: int(said(say(live, "free_memory"))) == free)


def test_a_model_is_ready_when_it_says_so(live: Live, zoo: Path) -> None:
    state = zoo / "ready" / "1" / "state"
    found = []
    with live.channel() as channel:
        for text in ("yes", "no", "maybe", "yes"):
            state.write_text(text, encoding="utf-8")
            statuses = [live.get(f"/v2/{path}/ready").status for path in ("models/ready", "health")]
            answers = [channel.call("ModelReady", name="ready").ready, channel.call("ServerReady").ready]
            found.append((statuses, answers))
    good, bad = ([200, 200], [True, True]), ([400, 400], [False, False])
    assert found == [good, bad, bad, good]
    assert live.get("/v2/models/doubler_async/ready").status == 200


def test_a_cancelled_request_is_told_to_the_model(live: Live, tmp_path: Path) -> None:
    marker = tmp_path / "seen"
    tensor = {"name": "say", "datatype": "BYTES", "shape": [1], "data": [f"cancelled {marker}"]}
    raw = live.begin("/v2/models/say/infer", {"inputs": [tensor]})
    eventually(marker.with_name("seen.asked").exists)
    raw.close()
    eventually(marker.exists)


def test_metrics_of_a_model_are_on_the_page_while_it_holds_them(live: Live) -> None:
    assert facts(say(live, "metrics me"))["values"] == [3.5, 3, 3.5]
    page = _metrics(live)
    assert '# HELP calls How often\n# TYPE calls counter\ncalls{model="say",who="me"} 3.5\n' in page
    assert "# TYPE level gauge\nlevel 3\n" in page.replace("3.0", "3")
    for line in (
        'sizes_count{a="b"} 3',
        'sizes_sum{a="b"} 55.5',
        'sizes_bucket{a="b",le="1"} 1',
        'sizes_bucket{a="b",le="10"} 2',
        'sizes_bucket{a="b",le="+Inf"} 3',
        'sizes_bucket{only="+Inf",le="+Inf"} 1',
    ):
        assert line in page
    assert said(say(live, "forget_metrics")) == "ok"
    assert "calls{" not in _metrics(live)


def test_what_metrics_cannot_do_is_told_as_triton_does(live: Live) -> None:
    refused = facts(say(live, "metrics me"))["refused"]
    say(live, "forget_metrics")
    kind = "TRITONSERVER_METRIC_KIND_"
    assert refused == [
        f"Failed to increment metric value: {kind}COUNTER can only be incremented monotonically by "
        "non-negative values.",
        f"Failed to set metric value: {kind}COUNTER does not support Set",
        f"Failed to observe metric value: {kind}GAUGE does not support Observe",
        f"Failed to get metric value: {kind}HISTOGRAM does not support Value",
        "Failed to create metric. Missing required buckets.",
        "Failed to create metric. Buckets must be a list.",
        "Error when creating Metric: Bucket Boundaries must be strictly sorted: those of 'sizes' are "
        "[2.0, 1.0]",
        "Failed to create metric. Unexpected buckets found.",
        "Failed to create metric. Labels must be a dictionary.",
        "Error when creating Metric: the value of label 'a' must be a str, got int",
        "Error when creating Metric: Invalid label name: 'a b' must be letters, digits and _, begin with no "
        "digit and not with __",
        "Error when creating MetricFamily: metric family 'calls' exists already, with kind counter",
        "Error when creating MetricFamily: Invalid metric name: 'nv_mine' must be letters, digits, _ and :, "
        "begin with no digit and not with nv_, which the server's own have",
    ]


def test_a_metric_whose_family_was_deleted_is_refused_and_off_the_page(live: Live) -> None:
    words = facts(say(live, "metric_outlives_its_family"))
    fault = "Invalid metric operation as the corresponding 'MetricFamily' has been deleted."
    starts = ("set", "increment", "get", "observe")
    for start, text in zip(starts, words, strict=True):
        assert text.startswith(f"Failed to {start} metric value: {fault}")
    assert "short_" not in _metrics(live)


def _metrics(live: Live) -> str:
    import http.client

    connection = http.client.HTTPConnection("127.0.0.1", live.ports["Metrics Service"], timeout=5)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    return text


def test_the_log_has_what_a_model_writes_as_of_where_it_writes_it(
    live: Live, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"):
        say(live, "log words")
    lines = {record.getMessage(): record for record in caplog.records if record.filename == "model.py"}
    assert set(lines) == {"plain words", "warning words", "error words"}
    assert lines["warning words"].levelname == "WARNING"
    assert lines["plain words"].lineno == _line_of("Logger.log(")


def test_the_statistics_count_what_python_models_do(live: Live) -> None:
    before = _inferences(live)
    for _ in range(3):
        y_of(ask(live, "double", 1))
    assert _inferences(live) == before + 3
    stats = live.get("/v2/models/double/stats").json["model_stats"][0]["inference_stats"]
    assert all(
        stats[phase]["ns"] > 0 for phase in ("queue", "compute_input", "compute_infer", "compute_output")
    )


def _inferences(live: Live) -> int:
    count: int = live.get("/v2/models/double/stats").json["model_stats"][0]["inference_count"]
    return count
