"""ModelStreamInfer: the order of answers, errors in the stream, cancellation, and the end of a stream."""

import asyncio
import gzip
import threading
import urllib.request
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest

from tests.protocol.http2.raw import RawPeer
from tests.serving.frontends.streams import (
    EMPTY_FINAL,
    STREAM,
    Response,
    counters,
    repeat,
    request,
    stream,
    write_streaming_models,
)
from tests.serving.live import Live, floats, infer_message, serving
from tests.waiting import eventually, stands
from tpx.protocol import messages
from tpx.serving.frontends.grpc_stream import MOST_IN_FLIGHT


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    repository = tmp_path_factory.mktemp("models")
    write_streaming_models(repository)
    with serving(repository) as running:
        yield running


def double(n: float, request_id: str = "", model: str = "double", **flags: Any) -> bytes:
    return request(model, {"x": floats([n, n])}, request_id, **flags)


def ids(responses: list[Response]) -> list[str]:
    return [response.request_id for response in responses]


def test_each_request_is_answered_and_every_answer_says_that_it_is_final(live: Live) -> None:
    with stream(live) as calls:
        calls.send(double(1, "a"), double(2, "b", custom="parameter"), double(3, "c"))
        first, second, last = calls.rest()
    assert first == Response(error="", request_id="a", outputs={"y": [2, 2]}, final=True, model="double")
    assert last == Response(error="", request_id="c", outputs={"y": [6, 6]}, final=True, model="double")
    assert second.outputs == {"y": [4, 4]}


@pytest.mark.parametrize("wants_final", [False, True])
def test_a_decoupled_model_of_a_backend_that_answers_once_gives_one_response_which_is_final(
    live: Live, wants_final: bool
) -> None:
    before = live.http("GET", "/v2/models/once/stats").json["model_stats"][0]
    flags = {EMPTY_FINAL: True} if wants_final else {}
    with stream(live) as calls:
        calls.send(double(1, "a", "once", **flags), double(2, "b", "once", **flags))
        answers = calls.rest()
    assert sorted(answers, key=lambda answer: answer.request_id) == [
        Response(error="", request_id="a", outputs={"y": [2, 2]}, final=True, model="once"),
        Response(error="", request_id="b", outputs={"y": [4, 4]}, final=True, model="once"),
    ]
    after = live.http("GET", "/v2/models/once/stats").json["model_stats"][0]
    assert after["inference_count"] - before["inference_count"] == 2
    success = after["response_stats"]["0"]["success"]["count"]
    assert success - before["response_stats"].get("0", {"success": {"count": 0}})["success"]["count"] == 2


@pytest.mark.parametrize("values", [[], [7], [7, 8, 9]])
@pytest.mark.parametrize("wants_final", [False, True])
def test_a_decoupled_model_gives_what_it_has_and_an_empty_final_answer_to_who_wants_one(
    live: Live, values: list[int], wants_final: bool
) -> None:
    flags = {EMPTY_FINAL: True} if wants_final else {}
    with stream(live) as calls:
        calls.send(request("repeat", repeat(values), "r", **flags))
        got = calls.rest()
    wanted = [
        Response(error="", request_id="r", outputs={"OUT": [v], "IDX": [n]}, final=False, model="repeat")
        for n, v in enumerate(values)
    ]
    end = Response(error="", request_id="r", outputs={}, final=True, model="repeat")
    assert got == wanted + ([end] if wants_final else [])


def test_a_model_that_is_not_decoupled_has_no_second_answer_for_who_asks_for_an_empty_one(live: Live) -> None:
    with stream(live) as calls:
        calls.send(double(1, "a", triton_enable_empty_final_response=True))
        [answer] = calls.rest()
    assert answer.final is True
    assert answer.outputs == {"y": [2, 2]}


def test_answers_of_models_that_are_not_decoupled_come_in_order_and_errors_among_them(live: Live) -> None:
    with stream(live) as calls:
        calls.send(
            double(1, "slow", "patient"),
            double(2, "fast"),
            double(3, "unknown", "nowhere"),
            request("double", {"x": np.zeros((1, 2), np.int32)}, "bad"),
            double(4, "last"),
        )
        got = calls.rest()
    assert ids(got) == ["slow", "fast", "unknown", "bad", "last"]
    assert [bool(response.error) for response in got] == [False, False, True, True, False]
    assert got[2].error == "Request for unknown model: 'nowhere' is not found"
    assert got[3].error == (
        "[request id: bad] inference input 'x' data-type is 'INT32', but model 'double' expects 'FP32'"
    )
    assert [response.model for response in got[2:4]] == ["", ""]


def test_decoupled_answers_wait_for_nobody_and_nobody_for_them(live: Live) -> None:
    with stream(live) as calls:
        calls.send(
            double(1, "slow", "patient"),
            request("repeat", repeat([1, 2], delay=1), "quick"),
            request("repeat", repeat([3], delay=1200), "late"),
            double(2, "behind"),
        )
        got = calls.rest()
    assert ids(got) == ["quick", "quick", "slow", "behind", "late"]


def test_bytes_that_are_no_request_are_an_error_without_an_id(live: Live) -> None:
    with stream(live) as calls:
        calls.send(b"\xff\xff\xff\xff", b"", double(1, "good"))
        garbage, empty, good = calls.rest()
    assert (garbage.request_id, garbage.error) == (
        "",
        "Unable to parse request: it is not a ModelInferRequest",
    )
    assert empty.error
    assert good.outputs == {"y": [2, 2]}


def test_sequence_parameters_and_priorities_travel_on_a_stream(live: Live) -> None:
    with stream(live) as calls:
        calls.send(
            double(1, "a", sequence_id=5, sequence_start=True, priority=1, timeout=1000),
            double(2, "b", sequence_id="five", sequence_end=True),
            double(3, "c", sequence_start=1),
        )
        first, second, third = calls.rest()
    assert (first.outputs, second.outputs) == ({"y": [2, 2]}, {"y": [4, 4]})
    assert "sequence_start" in third.error


# the first error as the status of the stream


def test_with_grpc_errors_the_first_one_ends_the_stream_behind_the_answers_before_it(live: Live) -> None:
    with stream(live, metadata=[("triton_grpc_error", "true")]) as calls:
        calls.send(double(1, "slow", "patient"), double(2, "x", "nowhere"), double(3, "never"))
        got, status, words = calls.failure()
    assert ids(got) == ["slow"]
    assert (status, words) == ("NOT_FOUND", "Request for unknown model: 'nowhere' is not found")


def test_with_grpc_errors_a_failing_decoupled_request_ends_the_stream_and_cancels_the_others(
    live: Live,
) -> None:
    before = counters(live, "repeat")
    unequal = repeat([1, 2], delay=0) | {"DELAY": np.zeros(1, np.uint32)}
    with stream(live, metadata=[("triton_grpc_error", "true")]) as calls:
        calls.send(request("repeat", repeat([5] * 1000, delay=50), "long"))
        assert calls.next().request_id == "long"
        calls.send(request("repeat", unequal, "failing"))
        _, status, words = calls.failure()
    assert (status, words) == ("INTERNAL", "IN has shape [2], DELAY [1]")
    eventually(lambda: counters(live, "repeat")["in_flight"] == 0)
    after = counters(live, "repeat")
    assert after["CANCELED"] == before["CANCELED"] + 1
    assert after["BACKEND"] == before["BACKEND"] + 1


@pytest.mark.parametrize("value", ["false", "True", "1", ""])
def test_any_other_value_of_that_metadata_leaves_errors_in_the_stream(live: Live, value: str) -> None:
    with stream(live, metadata=[("triton_grpc_error", value)]) as calls:
        calls.send(double(2, "x", "nowhere"), double(1, "good"))
        assert ids(calls.rest()) == ["x", "good"]


# the end of a stream


def test_a_stream_without_requests_ends_well(live: Live) -> None:
    with stream(live) as calls:
        assert calls.rest() == []
        assert calls.call.code() is grpc.StatusCode.OK


def test_answers_that_are_due_still_come_after_the_client_has_sent_its_last_request(live: Live) -> None:
    with stream(live) as calls:
        delays = {"DELAY": np.array([10, 10, 900], np.uint32)}
        calls.send(double(1, "a", "patient"), request("repeat", repeat([1, 2, 3]) | delays, "r"))
        assert ids(calls.rest()) == ["r", "r", "a", "r"]


def test_a_cancelled_stream_cancels_all_that_is_in_flight(live: Live) -> None:
    before = counters(live, "repeat")
    patient = counters(live, "patient")
    with stream(live) as calls:
        for n in range(5):
            calls.send(request("repeat", repeat([1] * 1000, delay=20), str(n)))
        calls.next()
        calls.send(double(1, "waits", "patient"))
        eventually(lambda: counters(live, "patient")["in_flight"] == 1)
        calls.call.cancel()
        eventually(lambda: counters(live, "repeat")["in_flight"] == 0)
        eventually(lambda: counters(live, "patient")["in_flight"] == 0)
    assert counters(live, "repeat")["CANCELED"] == before["CANCELED"] + 5
    assert counters(live, "patient")["CANCELED"] == patient["CANCELED"] + 1


def test_a_deadline_ends_a_stream_and_cancels_what_is_in_flight(live: Live) -> None:
    before = counters(live, "repeat")["CANCELED"]
    with stream(live, timeout=1) as calls:
        calls.send(request("repeat", repeat([1] * 1000, delay=20), "r"))
        got, status, _ = calls.failure()
    assert status == "DEADLINE_EXCEEDED"
    assert len(got) > 2
    eventually(lambda: counters(live, "repeat")["in_flight"] == 0)
    assert counters(live, "repeat")["CANCELED"] == before + 1


def test_a_message_over_the_limit_ends_the_stream_and_cancels_what_is_in_flight(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    repository = tmp_path_factory.mktemp("models")
    write_streaming_models(repository)
    large = request("double", {"x": np.zeros((1, 5000), np.float32)})
    with serving(repository, grpc_max_message_size=10_000) as small, stream(small) as calls:
        calls.send(request("lone", repeat([1] * 500, delay=20)))
        calls.next()
        calls.send(large)
        _, status, words = calls.failure()
        assert status == "RESOURCE_EXHAUSTED"
        assert words == f"Received message larger than max ({len(large)} vs. 10000)"
        eventually(lambda: counters(small, "lone")["in_flight"] == 0)


@pytest.mark.slow
def test_three_thousand_requests_on_one_stream_are_answered_in_order(live: Live) -> None:
    count = 3 * MOST_IN_FLIGHT
    with stream(live) as calls:
        calls.send(*[double(n, str(n)) for n in range(count)])
        got = calls.rest()
    assert ids(got) == [str(n) for n in range(count)]
    assert [response.outputs["y"][0] for response in got] == [2 * n for n in range(count)]


@pytest.mark.slow
def test_requests_beyond_a_thousand_in_flight_wait_unread_and_are_answered_all_the_same(live: Live) -> None:
    count = MOST_IN_FLIGHT + 500
    [served] = [served for served in live.server.plane.served() if served.name == "lone"]
    with stream(live, timeout=60) as holder, stream(live) as calls:
        holder.send(request("lone", repeat([0], delay=60_000)))
        eventually(lambda: served.in_flight == 1)
        calls.send(*[request("lone", repeat([n]), str(n)) for n in range(count)])
        eventually(lambda: served.in_flight == 1 + MOST_IN_FLIGHT)
        assert stands(lambda: served.in_flight) == 1 + MOST_IN_FLIGHT
        holder.call.cancel()
        assert ids(calls.rest()) == [str(n) for n in range(count)]


@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate])
def test_compressed_requests_on_a_stream_are_understood(live: Live, compression: grpc.Compression) -> None:
    with stream(live, compression=compression) as calls:
        calls.send(*[double(n, "compressed " * 20) for n in range(5)])
        assert [response.outputs["y"] for response in calls.rest()] == [[2 * n, 2 * n] for n in range(5)]


def test_a_server_that_compresses_does_so_on_streams(tmp_path_factory: pytest.TempPathFactory) -> None:
    repository = tmp_path_factory.mktemp("models")
    write_streaming_models(repository)
    zeros = {"x": np.zeros((1, 3000), np.float32)}

    async def raw_answer(port: int) -> bytes:
        async with await RawPeer.connect(port) as peer:
            peer.open(1, STREAM, (b"grpc-accept-encoding", b"gzip"))
            peer.send_message(1, request("double", zeros), end_stream=True)
            return bytes((await peer.answer(1)).data)

    with serving(repository, grpc_infer_response_compression_level="high") as packed:
        with stream(packed) as calls:
            calls.send(request("repeat", repeat([1, 2, 3])), request("double", zeros))
            assert sorted(len(response.outputs) for response in calls.rest()) == [1, 2, 2, 2]
        answer = asyncio.run(raw_answer(packed.ports["GRPCInferenceService"]))
    assert len(answer) < 1000
    assert Response.of(gzip.decompress(answer[5:])).outputs == {"y": [0] * 3000}


# statistics


def test_the_statistics_of_a_decoupled_model_are_the_same_over_both_protocols(live: Live) -> None:
    with stream(live) as calls:
        calls.send(request("lone", repeat([1, 2])), request("lone", repeat([])))
        assert len(calls.rest()) == 2
    [over_http] = live.get("/v2/models/lone/stats").json["model_stats"]
    with live.channel() as channel:
        [over_grpc] = channel.call("ModelStatistics", name="lone").model_stats
    assert list(over_http["response_stats"]["0"]) == [
        "compute_infer", "compute_output", "success", "fail", "empty_response", "cancel",
    ]  # fmt: skip
    assert set(over_http["response_stats"]) == set(over_grpc.response_stats) >= {"0", "1", "2"}
    for index, kept in over_http["response_stats"].items():
        for name, duration in kept.items():
            same = getattr(over_grpc.response_stats[index], name)
            assert (same.count, same.ns) == (duration["count"], duration["ns"])
    assert live.get("/v2/models/double/stats").json["model_stats"][0]["response_stats"] == {}


def test_a_decoupled_request_is_one_success_in_the_metrics(live: Live) -> None:
    def successes() -> float:
        with urllib.request.urlopen(f"http://127.0.0.1:{live.ports['Metrics Service']}/metrics") as answer:
            page = answer.read().decode()
        [line] = [
            line for line in page.splitlines() if line.startswith('nv_inference_request_success{model="lone"')
        ]
        return float(line.split()[-1])

    before = successes()
    with stream(live) as calls:
        calls.send(request("lone", repeat([1, 2, 3])), request("lone", repeat([])))
        calls.rest()
    assert successes() == before + 2


# shutdown


def test_at_shutdown_streams_stay_until_all_that_is_in_flight_is_answered(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    repository = tmp_path_factory.mktemp("models")
    write_streaming_models(repository)
    text = "GRPC server is shutting down and has stopped accepting new requests."
    with serving(repository) as ending, stream(ending) as idle, stream(ending) as working:
        idle.send(double(1, "before"))
        assert idle.next().request_id == "before"
        working.send(request("repeat", repeat([1, 2, 3, 4], delay=250), "r"))
        assert working.next().outputs["OUT"] == [1]
        ending.ask_to_stop()
        eventually(lambda: ending.server.plane.stopping)
        idle.send(double(1, "too late"))
        refused = idle.next()
        assert refused.request_id == "too late"
        assert refused.error.endswith("scheduler for model has stopped accepting new inference requests")
        assert counters(ending, "repeat")["in_flight"] == 1, (
            "the stream stays open until nothing is in flight"
        )
        got, status, words = working.failure()
        assert [response.outputs["OUT"] for response in got] == [[2], [3], [4]]
        assert (status, words) == ("UNAVAILABLE", text)
        assert idle.failure() == ([], "UNAVAILABLE", text)
    assert ending.finished is True


def test_streams_and_single_calls_of_many_threads_do_not_mix(live: Live) -> None:
    wrong: list[str] = []

    def work(seed: int) -> None:
        with stream(live) as calls:
            for n in range(30):
                calls.send(double(seed * 100 + n, f"{seed}-{n}"))
                calls.send(request("repeat", repeat([seed, n]), f"{seed}-{n}-d"))
            got = calls.rest()
        plain = [response for response in got if response.model == "double"]
        decoupled = [response for response in got if response.model == "repeat"]
        if [r.outputs["y"][0] for r in plain] != [2 * (seed * 100 + n) for n in range(30)]:
            wrong.append(f"plain answers of {seed}")
        for n in range(30):
            mine = [r.outputs["OUT"][0] for r in decoupled if r.request_id == f"{seed}-{n}-d"]
            if mine != [seed, n]:
                wrong.append(f"decoupled answers of {seed}-{n}: {mine}")

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert wrong == []


def test_a_decoupled_model_is_refused_outside_of_streams(live: Live) -> None:
    with live.channel() as channel:
        assert channel.error("ModelInfer", infer_message("repeat", repeat([1]))) == (
            "UNIMPLEMENTED",
            "ModelInfer RPC doesn't support models with decoupled transaction policy",
        )


def explicit(values: list[float], request_id: str) -> bytes:
    """A request whose numbers are in the message: many of them are decoded beside the event loop."""
    message = messages.ModelInferRequest(model_name="double", id=request_id)
    item = message.inputs.add(name="x", datatype="FP32", shape=[1, len(values)])
    item.contents.fp32_contents.extend(values)
    data: bytes = message.SerializeToString()
    return data


def test_requests_behind_one_that_takes_long_to_decode_wait_for_their_turn(live: Live) -> None:
    long = [1.0] * 300_000
    with stream(live) as calls:
        calls.send(
            double(1, "a"), explicit(long, "b"), double(3, "c"), explicit(long[:-1], "d"), double(5, "e")
        )
        answers = calls.rest()
    assert ids(answers) == ["a", "b", "c", "d", "e"]
    assert [len(answer.outputs["y"]) for answer in answers] == [2, 300_000, 2, 299_999, 2]
    assert set(answers[1].outputs["y"]) == {2}


def test_a_stream_goes_on_behind_a_long_request_that_is_refused(live: Live) -> None:
    wrong = explicit([1.0] * 200_000, "wrong").replace(b"\x12\x04FP32", b"\x12\x04INT8")
    with stream(live) as calls:
        calls.send(wrong, double(2, "b"))
        refused, answer = calls.rest()
    assert "unexpected explicit tensor data" in refused.error
    assert (refused.request_id, answer.request_id, answer.outputs) == ("wrong", "b", {"y": [4, 4]})
