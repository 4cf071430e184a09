"""Decoupled Python models: any number of responses, whenever they come, to whoever waits."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Queue
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as client

from tests.serving.backends.python.asking import floats
from tests.serving.live import Live
from tests.waiting import stands

ZOO = ("repeat", "flood", "varies", "varies_in_order", "stream_async", "speaks")


class Stream:
    """A gRPC stream, and what has come on it."""

    def __init__(self, grpc: Any) -> None:
        self.grpc = grpc
        self.results: Queue[Any] = Queue()

    def send(self, model: str, arrays: dict[str, Any], **fields: Any) -> None:
        inputs = []
        for name, array in arrays.items():
            datatype = {"int32": "INT32", "uint32": "UINT32", "float32": "FP32"}[array.dtype.name]
            given = client.InferInput(name, array.shape, datatype)
            given.set_data_from_numpy(array)
            inputs.append(given)
        self.grpc.async_stream_infer(model, inputs, **fields)

    def next(self) -> Any:
        """The next response; raises the error it is."""
        result, error = self.results.get(timeout=10)
        if error is not None:
            raise error
        return result


@contextmanager
def streaming(live: Live) -> Iterator[Stream]:
    with client.InferenceServerClient(f"127.0.0.1:{live.ports['GRPCInferenceService']}") as grpc:
        stream = Stream(grpc)
        grpc.start_stream(callback=lambda result, error: stream.results.put((result, error)))
        yield stream
        grpc.stop_stream(cancel_requests=True)


def _repeat(count: int, delay_ms: int = 1) -> dict[str, Any]:
    return {"IN": np.arange(count, dtype=np.int32) + 7, "DELAY": np.full(count, delay_ms, np.uint32)}


def test_responses_come_in_order_and_then_the_final_one(live: Live) -> None:
    with streaming(live) as stream:
        stream.send("repeat", _repeat(4), enable_empty_final_response=True)
        got = [stream.next() for _ in range(5)]
    assert [int(result.as_numpy("OUT")[0]) for result in got[:4]] == [7, 8, 9, 10]
    assert [int(result.as_numpy("IDX")[0]) for result in got[:4]] == [0, 1, 2, 3]
    finals = [r.get_response().parameters["triton_final_response"].bool_param for r in got]
    assert finals == [False, False, False, False, True]
    assert not got[4].get_response().outputs


def test_requests_overlap_because_execute_returns_at_once(live: Live) -> None:
    with streaming(live) as stream:
        stream.send("repeat", _repeat(1, 800), request_id="late")
        for index in range(2):
            stream.send("repeat", _repeat(2), request_id=str(index))
        got = [stream.next().get_response().id for _ in range(5)]
    assert sorted(got[:4]) == ["0", "0", "1", "1"]
    assert got[4] == "late"


def test_an_async_execute_streams(live: Live) -> None:
    with streaming(live) as stream:
        stream.send("stream_async", {"x": floats(3)}, enable_empty_final_response=True)
        got = [stream.next() for _ in range(4)]
    assert [r.as_numpy("y")[0] for r in got[:3]] == [0, 1, 2]


def test_a_coroutine_that_fails_answers_what_is_open(live: Live) -> None:
    with streaming(live) as stream:
        stream.send("stream_async", {"x": floats(6)})
        for _ in range(6):
            stream.next()
        with pytest.raises(Exception, match="ValueError: too many"):
            stream.next()


def test_a_request_that_execute_fails_on_is_answered(live: Live) -> None:
    with streaming(live) as stream:
        stream.send("flood", {"x": floats(0, 1)}, enable_empty_final_response=True)
        assert not stream.next().get_response().outputs
        stream.send("flood", {"x": floats(2, 1)}, enable_empty_final_response=True)
        assert [stream.next().as_numpy("y")[0] for _ in range(2)] == [0, 1]


def test_large_responses_arrive_whole(live: Live) -> None:
    with streaming(live) as stream:
        stream.send("flood", {"x": floats(20, 100_000)})
        for index in range(20):
            assert np.array_equal(stream.next().as_numpy("y"), np.full(100_000, index, np.float32))


def test_a_model_that_nobody_reads_stops_after_a_few_megabytes(live: Live, zoo: Path) -> None:
    sent = zoo / "flood" / "1" / "sent"
    sent.unlink(missing_ok=True)
    raw = live.begin("/v2/models/flood/generate_stream", {"x": [2000, 50_000]})
    assert stands(lambda: int(sent.read_text() or "0") if sent.exists() else 0) < 500
    raw.close()
    # and then the model is told that nobody waits: it goes on with the next request
    with streaming(live) as stream:
        stream.send("flood", {"x": floats(1, 1)})
        assert stream.next().as_numpy("y").tolist() == [0]


def test_a_cancelled_stream_stops_the_model(live: Live) -> None:
    before = threading.active_count()
    with streaming(live) as stream:
        stream.send("repeat", _repeat(500, 10))
        stream.next()
    assert threading.active_count() <= before + 5
    with streaming(live) as stream:
        stream.send("repeat", _repeat(1))
        assert stream.next().as_numpy("OUT").tolist() == [7]


def test_generate_takes_the_one_response_there_is(live: Live) -> None:
    answer = live.http("POST", "/v2/models/stream_async/generate", json.dumps({"x": 1}).encode())
    assert (answer.status, answer.json["y"]) == (200, 0)


@pytest.mark.parametrize("model", ["varies", "varies_in_order"])
def test_each_response_has_its_own_outputs_and_parameters(live: Live, model: str) -> None:
    with streaming(live) as stream:
        stream.send(model, {"x": floats(1)})
        got = [stream.next().get_response() for _ in range(5)]
    assert [[output.name for output in response.outputs] for response in got] == [
        [],
        ["y"],
        ["z"],
        [],
        ["y", "z"],
    ]
    kinds = [response.parameters["n"].WhichOneof("parameter_choice") for response in got]
    assert kinds == ["bool_param", "int64_param", None, None, "bool_param"]


def test_the_events_of_a_stream_have_the_parameters_of_its_responses(live: Live) -> None:
    answer = live.http("POST", "/v2/models/varies/generate_stream", json.dumps({"x": 1}).encode())
    model = {"model_name": "varies", "model_version": "1"}
    assert [json.loads(event[6:]) for event in answer.body.split(b"\n\n")[:-1]] == [
        {"n": True, **model},
        {"n": 1, "y": 1, **model},
        {"z": 2, **model},
        model,
        {"n": True, "y": 1, "z": 2, **model},
    ]


SPOKEN = "one two three-is-longer twice four parameter five bytes error six"
"""Between the words: two elements, a parameter, a byte that is not UTF-8, an error."""


def test_responses_like_the_first_and_others_among_them_come_in_order(live: Live) -> None:
    with streaming(live) as stream:
        said = client.InferInput("text_input", [1], "BYTES")
        said.set_data_from_numpy(np.array([SPOKEN], np.object_))
        stream.grpc.async_stream_infer("speaks", [said], request_id="7", enable_empty_final_response=True)
        got = [stream.next() for _ in range(8)]
        with pytest.raises(Exception, match="as asked"):
            stream.next()
        got += [stream.next(), stream.next()]
    words = [result.as_numpy("text_output") for result in got]
    assert [None if said is None else said.tolist() for said in words] == [
        [b"one"], [b"two"], [b"three-is-longer"], [b"twice", b"twice"], [b"four"], [b"parameter"], [b"five"],
        [b"byte\xff"], [b"six"], None,
    ]  # fmt: skip
    responses = [result.get_response() for result in got]
    assert {(each.model_name, each.model_version, each.id) for each in responses} == {("speaks", "1", "7")}
    assert [sorted(each.parameters) for each in responses].count(["triton_final_response"]) == 9
    assert [each.parameters["triton_final_response"].bool_param for each in responses] == [False] * 9 + [True]


def test_events_like_the_first_and_others_among_them_come_in_order(live: Live) -> None:
    body = json.dumps({"text_input": SPOKEN, "id": "7"}).encode()
    answer = live.http("POST", "/v2/models/speaks/generate_stream", body)
    events = [event.removeprefix(b"data: ") for event in answer.body.split(b"\n\n")[:-1]]
    assert events[1] == b'{"id":"7","model_name":"speaks","model_version":"1","text_output":"two"}'
    assert [json.loads(event).get("text_output") for event in events] == [
        "one", "two", "three-is-longer", ["twice", "twice"], "four", "parameter", "five", "byte\ufffd", None,
        "six",
    ]  # fmt: skip
    assert json.loads(events[8]) == {"error": "as asked"}


def test_each_response_of_a_stream_is_counted(live: Live) -> None:
    def counted() -> dict[str, int]:
        [stats] = live.http("GET", "/v2/models/speaks/stats").json["model_stats"]
        return {
            f"{index} {kind}": durations[kind]["count"]
            for index, durations in stats["response_stats"].items()
            for kind in ("success", "fail", "empty_response")
        }

    before = counted()
    live.http(
        "POST", "/v2/models/speaks/generate_stream", json.dumps({"text_input": "one two error"}).encode()
    )
    after = {key: count - before.get(key, 0) for key, count in counted().items()}
    assert [key for key, count in after.items() if count] == [
        "0 success",
        "1 success",
        "2 fail",
        "3 empty_response",
    ]


def test_the_texts_of_responses_are_events_of_openai_until_one_is_an_error(live: Live) -> None:
    body = json.dumps({"model": "speaks", "prompt": "one two three four error five", "stream": True}).encode()
    answer = live.http("POST", "/v1/completions", body)
    *texts, error = [json.loads(event[6:]) for event in answer.body.split(b"\n\n")[:-1]]
    assert [each["choices"][0]["text"] for each in texts] == ["one", "two", "three", "four"]
    assert error["error"]["message"] == "as asked"
