"""Lazy mode, over both protocols: the first request for a model loads it and is answered by it."""

import gzip
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.e2e.child import FRONTENDS
from tests.serving.frontends.streams import Stream, repeat, repeat_body, request, write_streaming_models
from tests.serving.live import Live, infer_message, outputs_of, serving
from tests.serving.onnx_files import slow_to_load, write_model
from tests.waiting import eventually
from tpx.protocol import messages

ONE = {"x": np.array([[1, 2]], np.float32)}
BODY = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]}


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Live]:
    write_streaming_models(tmp_path)
    write_model(tmp_path, "broken")
    (tmp_path / "broken" / "1" / "model.onnx").write_bytes(b"broken")
    with serving(tmp_path, model_control_mode="lazy") as live:
        live.root = tmp_path  # type: ignore[attr-defined]
        yield live


def states(live: Live) -> dict[str, str]:
    index = live.http("POST", "/v2/repository/index").json
    return {entry["name"]: entry.get("state", "") for entry in index}


def loads(live: Live, name: str) -> bool:
    return states(live)[name] == "READY"


def test_nothing_is_loaded_and_the_server_and_its_models_are_ready(live: Live) -> None:
    assert set(states(live).values()) == {""}
    assert live.get("/v2/health/ready").status == 200
    assert live.get("/v2/models/double/ready").status == 200
    assert live.get("/v2/models/no-such/ready").status == 400
    assert set(states(live).values()) == {""}, "asking whether a model is ready loads it"


def test_an_http_request_loads_its_model(live: Live) -> None:
    assert live.infer("double", BODY).json["outputs"][0]["data"] == [2, 4]
    assert states(live)["double"] == "READY"
    assert [name for name, state in states(live).items() if state] == ["double"]


def test_a_grpc_request_loads_its_model(live: Live) -> None:
    with live.channel() as channel:
        assert outputs_of(channel.infer("double", ONE)) == {"y": [[2, 4]]}
    assert loads(live, "double")


@pytest.mark.parametrize("path", ["", "/config", "/versions/1"])
def test_who_asks_what_a_model_is_like_loads_it(live: Live, path: str) -> None:
    assert live.get(f"/v2/models/double{path}").json["name"] == "double"
    with live.channel() as channel:
        assert channel.call("ModelMetadata", name="words").name == "words"
        assert channel.call("ModelConfig", name="label").config.name == "label"


def test_a_compressed_request_and_a_raw_one_load_their_models(live: Live) -> None:
    body = gzip.compress(json.dumps({**BODY, "parameters": {"pad": "x" * 9000}}).encode(), 0)
    answer = live.http("POST", "/v2/models/double/infer", body, {"Content-Encoding": "gzip"})
    assert answer.json["outputs"][0]["data"] == [2, 4]
    raw = {"Inference-Header-Content-Length": "0"}
    answer = live.http("POST", "/v2/models/label/infer", np.zeros(3, np.float32).tobytes(), raw)
    assert answer.status == 200


def test_generate_loads_its_model_and_so_does_its_stream(live: Live) -> None:
    answer = live.http("POST", "/v2/models/lone/generate", repeat_body([7]))
    assert answer.json["OUT"] == 7
    answer = live.http("POST", "/v2/models/repeat/generate_stream", repeat_body([1, 2, 3]))
    assert [json.loads(line[6:])["OUT"] for line in answer.body.decode().split("\n\n") if line] == [1, 2, 3]


def test_requests_of_a_stream_wait_for_the_model_in_their_order(live: Live) -> None:
    with live.channel() as channel:
        stream = Stream(channel.raw)
        stream.send(*(request("double", {"x": ONE["x"] * n}, f"r{n}") for n in range(20)))
        stream.send(
            request("repeat", repeat([5, 6]), "repeat"), request("label", {"x": np.ones((1, 3), np.float32)})
        )
        stream.half_close()
        responses = [messages.ModelStreamInferResponse.FromString(data) for data in stream.call]
    ids = [response.infer_response.id for response in responses if not response.error_message]
    assert [name for name in ids if name.startswith("r") and name != "repeat"] == [f"r{n}" for n in range(20)]
    assert ids.count("repeat") >= 2
    assert not [response.error_message for response in responses if response.error_message]


def test_a_stream_is_told_why_a_model_is_not_there_and_goes_on(live: Live) -> None:
    with live.channel() as channel:
        stream = Stream(channel.raw)
        stream.send(request("broken", ONE, "a"), request("no-such", ONE, "b"), request("double", ONE, "c"))
        stream.half_close()
        responses = [messages.ModelStreamInferResponse.FromString(data) for data in stream.call]
    assert [response.infer_response.id for response in responses] == ["a", "b", "c"]
    assert "load failed for model 'broken'" in responses[0].error_message
    assert responses[1].error_message == "Request for unknown model: 'no-such' is not found"
    assert not responses[2].error_message


def test_requests_at_the_same_time_load_a_model_once(live: Live, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    answers: list[Any] = []

    def ask() -> None:
        with live.channel() as channel:
            answers.append(outputs_of(channel.infer("double", ONE))["y"])
        answers.append(live.infer("double", BODY).json["outputs"][0]["data"])

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(str, answers)) == sorted(["[2.0, 4.0]", "[[2.0, 4.0]]"] * 8)
    assert sum(record.getMessage() == "loading: double:1" for record in caplog.records) == 1


def test_a_failure_is_told_and_the_load_is_not_tried_again_at_once(live: Live) -> None:
    first = live.infer("broken", BODY)
    assert first.status == 503
    assert first.error.startswith(
        "load failed for model 'broken': version 1 is at UNAVAILABLE state: Internal"
    )
    second = live.infer("broken", BODY)
    assert second.status == 503
    assert "(it is tried again in " in second.error
    assert live.get("/v2/models/broken/ready").status == 400
    assert live.get("/v2/health/ready").status == 200
    with live.channel() as channel:
        assert channel.outcome("ModelInfer", infer_message("broken", ONE)) == "UNAVAILABLE"
    write_model(live.root, "broken")  # type: ignore[attr-defined]
    eventually(lambda: live.infer("broken", BODY).status == 200)


def test_an_unknown_model_is_not_found(live: Live) -> None:
    answer = live.infer("no-such", BODY)
    assert (answer.status, answer.error) == (404, "Request for unknown model: 'no-such' is not found")
    with live.channel() as channel:
        assert channel.outcome("ModelInfer", infer_message("no-such", ONE)) == "NOT_FOUND"
        assert channel.outcome("ModelInfer", infer_message("../double", ONE)) == "NOT_FOUND"


def test_clients_load_and_unload_too_and_the_next_request_loads_again(live: Live) -> None:
    assert live.http("POST", "/v2/repository/models/double/load").status == 200
    assert live.http("POST", "/v2/repository/models/double/unload").status == 200
    assert live.infer("double", BODY).status == 200
    wrong = live.infer("double", BODY, version="7")
    assert (wrong.status, wrong.error) == (404, "Request for unknown model: 'double' version 7 is not found")


def test_a_request_waits_no_longer_than_it_may(tmp_path: Path) -> None:
    directory = write_model(
        tmp_path,
        "slow",
        config="output [{ name: 'y' data_type: TYPE_FP32 dims: [ 2 ] label_filename: 'labels' }]",
    )
    os.mkfifo(directory / "labels")  # whoever reads it waits until somebody writes
    with serving(tmp_path, model_control_mode="lazy", lazy_load_timeout_secs=1) as live:
        answer = live.infer("slow", BODY)
        assert answer.status == 503
        assert "is still being loaded after 1 s (--lazy-load-timeout-secs)" in answer.error
        (directory / "labels").write_text("cat")
        eventually(lambda: live.infer("slow", BODY).status == 200)
        assert live.infer("slow", BODY).json["outputs"][0]["data"] == [2, 4]


def test_a_client_that_goes_away_leaves_the_load_to_others(live: Live) -> None:
    live.begin("/v2/models/busy/infer", BODY).close()
    assert live.infer("busy", BODY).status == 200
    assert live.get("/v2/models/busy/stats").json["model_stats"][0]["inference_count"] in (1, 2)


ENSEMBLE = """
platform: "ensemble" max_batch_size: 4
input [{ name: "x" data_type: TYPE_FP32 dims: [ 2 ] }]
output [{ name: "y" data_type: TYPE_FP32 dims: [ 2 ] }]
ensemble_scheduling {
  step [{ model_name: "one" model_version: -1
          input_map { key: "x" value: "x" } output_map { key: "y" value: "m" } },
        { model_name: "two" model_version: -1
          input_map { key: "x" value: "m" } output_map { key: "y" value: "y" } }]
}
"""


def test_an_ensemble_brings_what_it_is_made_of_and_goes_with_it(tmp_path: Path) -> None:
    for name in ("one", "two", "three"):
        write_model(tmp_path, name, config="max_batch_size: 4")
        with (tmp_path / name / "1" / "weights.bin").open("wb") as padding:
            padding.truncate(100 << 20)
    (tmp_path / "whole" / "1").mkdir(parents=True)
    (tmp_path / "whole" / "config.pbtxt").write_text(ENSEMBLE)
    with serving(tmp_path, model_control_mode="lazy", model_memory_limit=250 << 20) as live:
        assert live.infer("whole", BODY).json["outputs"][0]["data"] == [4, 8]
        assert states(live) == {"one": "READY", "two": "READY", "whole": "READY", "three": ""}
        assert live.infer("three", BODY).json["outputs"][0]["data"] == [2, 4]
        assert states(live)["whole"] == "UNAVAILABLE"
        assert sum(state == "READY" for state in states(live).values()) == 2
        assert live.infer("whole", BODY).json["outputs"][0]["data"] == [4, 8]
        assert states(live) == {"one": "READY", "two": "READY", "whole": "READY", "three": "UNAVAILABLE"}


def test_startup_models_are_there_at_once(tmp_path: Path) -> None:
    write_model(tmp_path, "now")
    write_model(tmp_path, "later")
    with serving(tmp_path, model_control_mode="lazy", load_model=("now",)) as live:
        assert states(live) == {"now": "READY", "later": ""}


def test_models_take_turns_under_a_limit(tmp_path: Path) -> None:
    for name in ("one", "two", "three"):
        write_model(tmp_path, name)
        with (tmp_path / name / "1" / "weights.bin").open("wb") as padding:
            padding.truncate(100 << 20)
    with serving(tmp_path, model_control_mode="lazy", model_memory_limit=250 << 20) as live:
        for name in ("one", "two", "three", "one", "two", "three"):
            assert live.infer(name, BODY).json["outputs"][0]["data"] == [2, 4]
            assert sum(state == "READY" for state in states(live).values()) <= 2
        assert states(live)["one"] == "UNAVAILABLE"
        with live.channel() as channel:
            assert outputs_of(channel.infer("one", ONE)) == {"y": [[2, 4]]}
    with serving(tmp_path, model_control_mode="lazy", model_memory_limit=50 << 20) as live:
        answer = live.infer("one", BODY)
        assert answer.status == 503
        assert "model 'one' needs 104,857," in answer.error
        assert "it is tried again in" not in live.infer("one", BODY).error


@pytest.mark.skipif(
    FRONTENDS > 0,
    reason="a frontend sends a request after its load, when the engine has stopped: UNAVAILABLE",
)
def test_a_stop_is_not_held_up_by_those_who_wait(tmp_path: Path) -> None:
    write_model(tmp_path, "slow", slow_to_load(rounds=60, width=500))
    with (
        serving(tmp_path, model_control_mode="lazy") as live,
        live.raw_grpc() as channel,
    ):
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer", None, None)
        future = call.future(infer_message("slow", ONE), timeout=30)
        eventually(lambda: bool(live.server.control.in_use.busy) or future.done())
        live.ask_to_stop()
        assert outputs_of(messages.ModelInferResponse.FromString(future.result())) == {"y": [[2, 4]]}
    assert live.finished
