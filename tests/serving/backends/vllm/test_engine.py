"""vLLM behind OpenAI's API and the tensors of Triton's backend; `make test-vllm` runs it on a CPU."""

import http.client
import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import openai
import psutil
import pytest

from tests.serving.frontends.metrics.pages import ask
from tests.serving.live import Live, serving
from tests.waiting import eventually

pytest.importorskip("vllm")
pytest.importorskip("gguf")

from tests.serving.backends.vllm.checkpoint import write_checkpoint

USER: Any = [{"role": "user", "content": "And it came to pass"}]
ARGUMENTS = {
    "model": "checkpoint",
    "disable_log_requests": True,
    "gpu_memory_utilization": 0.3,
    "enforce_eager": True,
    "max_model_len": 1024,
    "dtype": "float32",
    "max_num_seqs": 8,
    "enable_auto_tool_choice": True,
    "tool_call_parser": "hermes",
}
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "look",
        "strict": True,  # unless told, vLLM asks for the name only
        "parameters": {"type": "object", "properties": {"at": {"enum": ["lamb"]}}, "required": ["at"]},
    },
}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def write_model(repository: Path, name: str, **arguments: object) -> None:
    """A repository as for Triton's vLLM backend, with the checkpoint beside model.json."""
    version = repository / name / "1"
    write_checkpoint(version / "checkpoint")
    (version / "model.json").write_text(json.dumps({**ARGUMENTS, **arguments}), encoding="utf-8")
    config = 'backend: "vllm" instance_group [ { count: 1 kind: KIND_MODEL } ]'
    (repository / name / "config.pbtxt").write_text(config, encoding="utf-8")


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ.setdefault("TORCH_COMPILE_DISABLE", "1")  # compiling takes minutes
    repository = tmp_path_factory.mktemp("models")
    write_model(repository, "tiny")
    write_model(repository, "wrong", max_model_length=1024)
    with serving(repository, model_control_mode="explicit") as running:
        assert load(running, "tiny") == (200, "")
        yield running


def load(live: Live, name: str) -> tuple[int, str]:
    """Status and body of a load, which takes a minute."""
    connection = http.client.HTTPConnection("127.0.0.1", live.http_port, timeout=600)
    with closing(connection):
        connection.request("POST", f"/v2/repository/models/{name}/load")
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


@pytest.fixture(scope="module")
def client(live: Live) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"http://127.0.0.1:{live.http_port}/v1", api_key="k", max_retries=0) as made:
        yield made


def test_a_stream_of_a_chat_has_the_text_of_the_whole_response(client: openai.OpenAI) -> None:
    fields: Any = {"model": "tiny", "messages": USER, "max_tokens": 12, "temperature": 0}
    whole = client.chat.completions.create(**fields)
    chunks = list(
        client.chat.completions.create(**fields, stream=True, stream_options={"include_usage": True})
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert "And the king" in text, "as it was trained"
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "length"
    assert chunks[-1].usage is not None
    assert whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens == 12
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens == 8


def test_choices_logprobs_stops_and_schemas_are_vllms(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model="tiny", prompt="And the", max_tokens=3, n=2, logprobs=2, seed=3, extra_body={"ignore_eos": True}
    )
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert answer.choices[0].logprobs is not None
    assert len(answer.choices[0].logprobs.tokens or ()) == 3
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (2, 6)
    form: Any = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"enum": ["lamb", "lion"]}}}
    chat = client.chat.completions.create(
        model="tiny", messages=USER, response_format=form, max_tokens=20, temperature=0
    )
    assert json.loads(chat.choices[0].message.content or "") in ("lamb", "lion")


def test_a_tool_that_is_required_is_called(client: openai.OpenAI) -> None:
    fields: Any = {"tools": [TOOL], "tool_choice": "required", "max_tokens": 80, "temperature": 0}
    message = client.chat.completions.create(model="tiny", messages=USER, **fields).choices[0].message
    [call] = message.tool_calls or []
    assert call.type == "function"
    assert (call.function.name, json.loads(call.function.arguments)) == ("look", {"at": "lamb"})


def test_many_at_once_are_independent(client: openai.OpenAI) -> None:
    def ask(prompt: str) -> str:
        answer = client.completions.create(
            model="tiny", prompt=prompt, max_tokens=8, temperature=0, extra_body={"ignore_eos": True}
        )
        return str(answer.choices[0].text)

    prompts = ["And", "The Lord", "In the", "Thou shalt", "But", "Who", "He", "She", "They"]
    with ThreadPoolExecutor(9) as pool:
        together = list(pool.map(ask, prompts))
    assert together == [ask(prompt) for prompt in prompts]


def test_the_tensors_of_tritons_backend_work(live: Live) -> None:
    wanted = dict.fromkeys(
        ("return_num_input_tokens", "return_num_output_tokens", "return_finish_reason"), True
    )
    sampling = json.dumps({"max_tokens": "4", "temperature": 0})
    fields = {"text_input": "And it came", "sampling_parameters": sampling, **wanted}
    whole = json.loads(live.http("POST", "/v2/models/tiny/generate", json.dumps(fields).encode()).body)
    assert whole["text_output"] == "And it came to pass, when"
    assert (whole["num_input_tokens"], whole["num_output_tokens"], whole["finish_reason"]) == (3, 4, "length")
    body = json.dumps({**fields, "stream": True}).encode()
    events = live.http("POST", "/v2/models/tiny/generate_stream", body).body.decode().split("\n\n")
    pieces = [json.loads(event.removeprefix("data: ")) for event in events if event]
    assert "".join(piece["text_output"] for piece in pieces) == " to pass, when"
    assert {piece["num_input_tokens"] for piece in pieces} == {3}
    assert sum(piece["num_output_tokens"] for piece in pieces) == 4
    assert [piece["finish_reason"] for piece in pieces][-1] == "length"


def test_what_vllm_refuses_answers_400(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="maximum context length is 1024"):
        client.completions.create(model="tiny", prompt="a " * 3000, max_tokens=4)
    with pytest.raises(openai.BadRequestError, match="makes text only"):
        client.embeddings.create(model="tiny", input="a")


def test_an_argument_that_vllm_has_not_fails_the_load(live: Live) -> None:
    status, answer = load(live, "wrong")
    assert status == 400
    assert "vLLM has no argument 'max_model_length' (did you mean 'max_model_len'?)" in answer


def test_a_client_that_leaves_frees_its_sequence(live: Live, client: openai.OpenAI) -> None:
    stream = client.completions.create(
        model="tiny", prompt="And", max_tokens=900, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    stream.close()

    def ended() -> bool:
        page = ask(live.ports["Metrics Service"]).text
        return 'vllm:num_requests_running{model="tiny",version="1"} 0' in page

    eventually(ended)
    [stats] = live.get("/v2/models/tiny/stats").json["model_stats"]
    assert sum(each["success"]["count"] for each in stats["response_stats"].values()) < 900


def test_an_engine_that_dies_is_started_again(live: Live, client: openai.OpenAI) -> None:
    [core] = [each for each in psutil.Process().children(recursive=True) if "EngineCore" in each.name()]
    core.kill()

    def answers() -> bool:
        try:
            return bool(client.completions.create(model="tiny", prompt="And", max_tokens=1).choices)
        except openai.InternalServerError:  # any other error fails the test
            return False

    eventually(answers, 600)
