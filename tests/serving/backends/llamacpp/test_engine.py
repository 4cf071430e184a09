"""The real engine behind the v2 protocol: tensors of Triton's vLLM backend, streams, and its death."""

import json
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import psutil
import pytest
import tritonclient.grpc as triton

from tests.serving.backends.llamacpp.models import TINY
from tests.serving.live import Live, serving
from tests.waiting import eventually


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with serving(TINY) as running:
        yield running


def generate(live: Live, **fields: Any) -> Any:
    return live.http("POST", "/v2/models/tiny/generate", json.dumps(fields).encode())


def text(name: str, value: str) -> triton.InferInput:
    made = triton.InferInput(name, [1], "BYTES")
    made.set_data_from_numpy(np.array([value.encode()], object))
    return made


def flag(name: str) -> triton.InferInput:
    made = triton.InferInput(name, [1], "BOOL")
    made.set_data_from_numpy(np.array([True]))
    return made


def streamed(live: Live, *inputs: triton.InferInput) -> list[dict[str, Any]]:
    """The outputs of each response of a gRPC stream."""
    arrived: SimpleQueue[Any] = SimpleQueue()
    with triton.InferenceServerClient(f"127.0.0.1:{live.ports['GRPCInferenceService']}") as client:
        client.start_stream(lambda result, error: arrived.put((result, error)))
        client.async_stream_infer("tiny", list(inputs), enable_empty_final_response=True)
        responses = []
        while True:
            result, error = arrived.get(timeout=20)
            assert error is None, error
            response = result.get_response()
            if response.outputs:
                names = [output.name for output in response.outputs]
                responses.append({name: result.as_numpy(name)[0] for name in names})
            if response.parameters["triton_final_response"].bool_param:
                return responses


def test_a_file_is_served_by_its_name_and_generate_answers_with_prompt_and_text(live: Live) -> None:
    sampling = json.dumps({"max_tokens": 4, "temperature": 0})
    whole = generate(live, text_input="And God said", sampling_parameters=sampling).json["text_output"]
    assert whole.startswith("And God said")
    assert len(whole) > len("And God said")
    without = generate(
        live, text_input="And God said", sampling_parameters=sampling, exclude_input_in_output=True
    )
    assert "And God said" + without.json["text_output"] == whole


def test_a_grpc_stream_has_a_response_per_token(live: Live) -> None:
    sampling = text("sampling_parameters", json.dumps({"max_tokens": 6, "ignore_eos": True, "seed": 3}))
    wanted = [flag(f"return_{name}") for name in ("finish_reason", "num_input_tokens", "num_output_tokens")]
    responses = streamed(live, text("text_input", "And God said"), flag("stream"), sampling, *wanted)
    assert [response["finish_reason"] for response in responses] == [b"None"] * 6 + [b"length"]
    assert sum(response["num_output_tokens"] for response in responses) == 6
    assert {response["num_input_tokens"] for response in responses} == {3}


def test_openai_s_json_streams_over_grpc_as_well(live: Live) -> None:
    request = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "a"}],
        "stream": True,
        "max_tokens": 3,
    }
    responses = streamed(live, text("openai_request", json.dumps(request)))
    chunks = [json.loads(response["openai_response"]) for response in responses]
    assert chunks[0]["object"] == "chat.completion.chunk"
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "text_input: this input or openai_request is required"),
        ({"text_input": "a", "openai_request": "{}"}, "text_input: not allowed together"),
        ({"openai_request": "{}"}, "messages: a request has one of"),
        ({"openai_request": "["}, "the request is no JSON"),
        ({"openai_request": '{"model":"tiny","prompt":"a","foo":1}'}, "foo: unknown"),
        ({"text_input": "a", "sampling_parameters": '{"min_tokens":3}'}, "min_tokens: llama.cpp has no"),
        ({"text_input": "a", "stream": True, "exclude_input_in_output": False}, "must not be false"),
        ({"text_input": "a" * 5_000_000}, "text_input: must have at most"),
        ({"text_input": "a " * 5000}, "increasing it (the model's parameter n_ctx"),
    ],
    ids=lambda value: str(value)[:50],
)
def test_a_wrong_request_is_answered_400(live: Live, fields: dict[str, Any], message: str) -> None:
    answer = generate(live, **fields)
    assert message in answer.error
    assert answer.status == 400


def test_the_command_line_sets_the_context_of_a_file() -> None:
    with serving(TINY, backend_config=("llamacpp,n_ctx=512", "llamacpp,n_parallel=1")) as running:
        assert "the available context size (512 tokens)" in generate(running, text_input="a " * 5000).error


def test_a_file_that_is_cut_short_fails_the_load_with_llama_cpp_s_reason(tmp_path: Path) -> None:
    (tmp_path / "cut.gguf").write_bytes(TINY.read_bytes()[:100_000])
    with serving(tmp_path / "cut.gguf", exit_on_error=False) as running:
        [entry] = running.http("POST", "/v2/repository/index").json
    assert entry["state"] == "UNAVAILABLE"
    assert "model is corrupted or incomplete" in entry["reason"]


def _engines() -> list[psutil.Process]:
    starters = [each for each in psutil.Process().children() if "fork" in each.cmdline()]
    children = [each for starter in starters for each in starter.children()]
    return [each for each in children if each.status() != psutil.STATUS_ZOMBIE]


def test_the_engine_listens_on_no_port_and_leaves_no_socket(live: Live) -> None:
    [engine] = _engines()
    assert [each for each in engine.net_connections("inet") if each.status == psutil.CONN_LISTEN] == []
    names = [str(each.laddr) for each in engine.net_connections("unix")]
    [path] = [name for name in names if name.endswith("http.sock")]
    assert not Path(path).parent.exists()


def test_an_engine_that_dies_fails_its_requests_and_is_started_again(live: Live) -> None:
    connection = live.begin(
        "/v2/models/tiny/generate_stream",
        {
            "text_input": "And",
            "stream": True,
            "sampling_parameters": '{"max_tokens":100000,"ignore_eos":true}',
        },
    )
    received = connection.recv(1 << 16)
    _engines()[0].kill()
    while b"0\r\n\r\n" not in received[-5:]:
        more = connection.recv(1 << 16)
        assert more
        received += more
    connection.close()
    assert b"is not healthy" in received
    eventually(lambda: generate(live, text_input="And").status == 200)
