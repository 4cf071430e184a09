"""generate and generate_stream: JSON in, JSON or server-sent events out, and clients that go away."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.serving.frontends.streams import Events, counters, repeat_body, write_streaming_models
from tests.serving.live import Answer, Live, reset, serving
from tests.serving.onnx_files import graph, identity, node, value, write_model
from tests.waiting import eventually

NOT_ONE = (
    "generate expects model to produce exactly 1 response, use generate stream for model that generates "
    "various number of responses"
)


def write_models(repository: Path) -> None:
    write_streaming_models(repository)
    write_model(repository, "matrix", identity("FP32", "n", "m"), "max_batch_size: 0 " + _io("[ -1, -1 ]"))
    write_model(repository, "pairs", identity("FP32", "n", 2), "max_batch_size: 0 " + _io("[ -1, 2 ]"))
    write_model(repository, "named", _named(), "max_batch_size: 0")


def _io(dims: str) -> str:
    tensor = f"data_type: TYPE_FP32 dims: {dims}"
    return f"input [{{ name: 'x' {tensor} }}] output [{{ name: 'y' {tensor} }}]"


def _named() -> Any:
    """A model whose inputs are called as members of a request that mean something else."""
    names = ("id", "parameters")
    inputs = [value(name, "INT64", 1) for name in names]
    return graph([node("Add", names, ["sum"])], inputs, [value("sum", "INT64", 1)])


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    repository = tmp_path_factory.mktemp("models")
    write_models(repository)
    with serving(repository) as running:
        yield running


def generate(live: Live, model: str, body: Any, verb: str = "generate", **headers: str) -> Answer:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    sent = {name.replace("_", "-"): text for name, text in headers.items()}
    return live.http("POST", f"/v2/models/{model}/{verb}", data, sent)


def events(answer: Answer) -> list[Any]:
    """The events of a whole answer, strictly framed."""
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    *parts, rest = answer.body.decode().split("\n\n")
    assert rest == ""
    assert all(part.startswith("data: ") and "\n" not in part for part in parts)
    return [json.loads(part[len("data: ") :]) for part in parts]


def refusal(live: Live, model: str, body: Any, status: int = 400, **headers: str) -> str:
    """The message with which both verbs refuse a request, as plain JSON."""
    answers = [generate(live, model, body, verb, **headers) for verb in ("generate", "generate_stream")]
    assert [answer.status for answer in answers] == [status, status], answers[0].body
    assert [answer.headers["content-type"] for answer in answers] == ["application/json"] * 2
    assert answers[0].body == answers[1].body
    return answers[0].error


# tensors in, members out


def test_an_answer_is_a_flat_object_with_its_members_in_order_and_single_elements_bare(live: Live) -> None:
    answer = generate(live, "repeat", repeat_body([7], id="abc"))
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.body == b'{"IDX":0,"OUT":7,"id":"abc","model_name":"repeat","model_version":"1"}'


@pytest.mark.parametrize(
    ("given", "got"),
    [(1.5, 3.0), ([1.5], 3.0), ([1, 2], [2.0, 4.0]), ([], []), ([float("nan"), 1], ["NaN", 2.0])],
)
def test_a_scalar_and_a_list_are_tensors_of_the_innermost_variable_dimension(
    live: Live, given: Any, got: Any
) -> None:
    answer = generate(live, "double", {"x": given})
    assert answer.status == 200, answer.body
    assert json.loads(answer.body.replace(b"NaN", b'"NaN"'))["y"] == got
    assert answer.json["model_version"] == "1"


def test_other_variable_dimensions_are_one_and_fixed_ones_must_fit(live: Live) -> None:
    assert generate(live, "matrix", {"x": [1, 2, 3]}).json["y"] == [1.0, 2.0, 3.0]
    assert generate(live, "pairs", {"x": [1, 2, 3, 4]}).json["y"] == [1.0, 2.0, 3.0, 4.0]
    text = "The schema can not convert input 'x' to tensor with proper shape"
    assert refusal(live, "pairs", {"x": [1, 2, 3]}) == text
    assert refusal(live, "pairs", {"x": 1}) == text


def test_strings_and_booleans_go_both_ways(live: Live) -> None:
    assert generate(live, "words", {"x": ["hello", "wörld \u2028", ""]}).json["y"] == [
        "hello",
        "wörld \u2028",
        "",
    ]
    assert generate(live, "words", {"x": "alone"}).json["y"] == "alone"
    assert generate(live, "bool", {"x": [True, False]}).json["y"] == [True, False]


def test_inputs_may_be_among_the_parameters_and_parameters_anywhere(live: Live) -> None:
    body = {"parameters": {"x": [1], "temperature": 0.5, "n": 3}, "stream": False, "text": "t", "id": "i"}
    answer = generate(live, "double", body)
    assert answer.json == {"id": "i", "model_name": "double", "model_version": "1", "y": 2.0}


def test_a_model_may_have_an_input_that_is_called_id(live: Live) -> None:
    assert refusal(live, "named", {"id": 1, "parameters": 2}) == (
        "Keyword 'parameters' for nested schema also given as input tensor name"
    )


def test_of_two_ids_the_first_counts_and_a_tensor_must_not_come_twice(live: Live) -> None:
    assert generate(live, "double", b'{"x":1,"id":"a","id":"b"}').json["id"] == "a"
    for body in (b'{"x":1,"x":1}', b'{"x":1,"parameters":{"x":2}}'):
        assert refusal(live, "double", body).endswith("input 'x' already exists in request")


def test_unknown_models_versions_and_encodings_are_refused(live: Live) -> None:
    assert refusal(live, "nowhere", {"x": 1}, 404) == "Request for unknown model: 'nowhere' is not found"
    text = "Request for unknown model: 'double' version 7 is not found"
    assert refusal(live, "double/versions/7", {"x": 1}, 404) == text
    assert generate(live, "double/versions/1", {"x": 1}).status == 200
    for encoding in ("gzip", "br", "deflate"):
        answer = refusal(live, "double", {"x": 1}, Content_Encoding=encoding)
        assert answer == "Unsupported content-encoding, only 'identity' is supported."
    assert generate(live, "double", {"x": 1}, Content_Encoding="identity").status == 200


def test_only_post_generates(live: Live) -> None:
    for method in ("GET", "HEAD", "PUT", "DELETE"):
        for verb in ("generate", "generate_stream"):
            answer = live.http(method, f"/v2/models/double/{verb}")
            assert answer.status == 405
            assert answer.headers["allow"] == "POST"
            assert answer.body == (b"" if method == "HEAD" else b'{"error":"Method Not Allowed"}')


def test_what_json_cannot_show_is_an_error_and_no_answer_of_another_type(live: Live) -> None:
    assert "FP16 data via JSON is not supported" in refusal(live, "fp16", {"x": 1})


# one response, or many


@pytest.mark.parametrize("count", [0, 2, 1000])
def test_generate_wants_exactly_one_response_and_stops_the_model_at_the_second(
    live: Live, count: int
) -> None:
    answer = generate(live, "lone", repeat_body([1] * count, delay=5 if count > 2 else 0))
    assert (answer.status, answer.error) == (400, NOT_ONE)
    eventually(lambda: counters(live, "lone")["in_flight"] == 0)


@pytest.mark.parametrize("values", [[], [5], [5, 6, 7]])
def test_a_stream_has_an_event_a_response(live: Live, values: list[int]) -> None:
    answer = generate(live, "repeat", repeat_body(values, id="q"), "generate_stream")
    assert answer.status == 200
    assert answer.headers["transfer-encoding"] == "chunked"
    assert events(answer) == [
        {"IDX": n, "OUT": v, "id": "q", "model_name": "repeat", "model_version": "1"}
        for n, v in enumerate(values)
    ]


def test_a_model_that_is_not_decoupled_streams_its_one_response(live: Live) -> None:
    answer = generate(live, "double", {"x": 2}, "generate_stream")
    assert events(answer) == [{"model_name": "double", "model_version": "1", "y": 4.0}]


def test_the_status_of_a_stream_is_that_of_its_first_response(live: Live) -> None:
    unequal = json.dumps({"IN": [1, 2], "DELAY": [0], "WAIT": 0}).encode()
    answer = generate(live, "repeat", unequal, "generate_stream")
    assert answer.status == 500
    assert events(answer) == [{"error": "IN has shape [2], DELAY [1]"}]
    assert generate(live, "repeat", unequal).status == 500


def test_the_connection_serves_on_after_a_stream(live: Live) -> None:
    for n in range(5):
        answer = generate(live, "repeat", repeat_body([n, n]), "generate_stream")
        assert [event["OUT"] for event in events(answer)] == [n, n]
        assert generate(live, "double", {"x": n}).json["y"] == 2 * n


def test_each_event_leaves_as_it_is_made(live: Live) -> None:
    with Events(live, "repeat", repeat_body([1, 2, 3], delay=300)) as client:
        client.head()
        client.until(b'"OUT":1')
        assert counters(live, "repeat")["in_flight"] == 1
        assert b'"OUT":3' not in client.until(b'"OUT":2')
        client.until(b"0\r\n\r\n")


def test_http_1_0_gets_events_without_chunks_until_the_connection_ends(live: Live) -> None:
    for head in ("", "Connection: keep-alive\r\n"):
        with Events(live, "repeat", repeat_body([1, 2]), head, version="1.0") as client:
            lines = client.head()
            assert "chunked" not in lines
            assert "Connection: close" in lines
            body = client.rest()
        assert body.count(b"data: ") == 2
        assert body.endswith(b"}\n\n")


def test_a_client_that_wants_the_connection_closed_gets_chunks_that_tell_the_end(live: Live) -> None:
    with Events(live, "repeat", repeat_body([1]), "Connection: close\r\n") as client:
        lines = client.head()
        assert "Transfer-Encoding: chunked\r\n" in lines
        assert "Connection: close\r\n" in lines
        assert client.rest().endswith(b"\r\n0\r\n\r\n")


# clients that go


@pytest.mark.parametrize("verb", ["generate", "generate_stream"])
def test_a_client_that_goes_stops_the_model_even_in_the_middle_of_a_delay(live: Live, verb: str) -> None:
    before = counters(live, "lone")
    connection = live.begin(f"/v2/models/lone/{verb}", repeat_body([1, 2, 3], delay=60_000))
    eventually(lambda: counters(live, "lone")["in_flight"] == 1)
    reset(connection)
    eventually(lambda: counters(live, "lone")["in_flight"] == 0)
    after = counters(live, "lone")
    assert after["CANCELED"] == before["CANCELED"] + 1
    assert after["success"] == before["success"]
    assert generate(live, "lone", repeat_body([1])).status == 200


def test_a_client_that_closes_its_half_is_told_that_its_stream_was_cut(live: Live) -> None:
    with Events(live, "lone", repeat_body([1] * 1000, delay=20)) as client:
        client.head()
        client.until(b'"OUT":1')
        client.socket.shutdown(socket.SHUT_WR)
        rest = client.rest()
    assert rest.rstrip(b"\r\n0").endswith(b'data: {"error":"the request was cancelled"}')
    assert rest.endswith(b"0\r\n\r\n")


def test_a_stream_in_flight_ends_before_the_server_does(tmp_path_factory: pytest.TempPathFactory) -> None:
    repository = tmp_path_factory.mktemp("models")
    write_streaming_models(repository)
    body = repeat_body([1, 2, 3], delay=100)
    with serving(repository) as ending, Events(ending, "repeat", body) as client:
        client.until(b'"OUT":1')
        ending.ask_to_stop()
        assert b'"OUT":3' in client.rest()
    assert ending.finished is True
