"""vLLM behind OpenAI's API and the tensors of Triton's backend; `make test-vllm` runs it on a CPU."""

import base64
import http.client
import io
import json
import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
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
pytest.importorskip("PIL")

from PIL import Image

from tests.serving.backends.language.chats import (
    USER,
    check_a_stream_has_the_text_of_the_whole_response,
    check_messages_stream_as_they_are_whole,
    check_requests_of_coding_agents_are_answered,
    check_responses_stream_as_they_are_whole,
)
from tests.serving.backends.vllm.checkpoint import write_adapter, write_checkpoint

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
EMBEDS = {"runner": "pooling", "enable_auto_tool_choice": False, "tool_call_parser": None}
ADAPTERS = {"enable_lora": "true", "max_lora_rank": 8}
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
    write_model(repository, "tiny", **ADAPTERS)
    version = repository / "tiny" / "1"
    write_adapter(version / "adapter", version / "checkpoint")
    (version / "multi_lora.json").write_text('{"noisy": "adapter"}', encoding="utf-8")
    write_model(repository, "vectors", **EMBEDS)
    write_model(repository, "wrong", max_model_length=1024)
    with serving(repository, model_control_mode="explicit") as running:
        assert load(running, "tiny") == (200, "")
        yield running


def post(live: Live, path: str, fields: Any) -> Any:
    return live.http("POST", path, json.dumps(fields).encode())


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
    text = check_a_stream_has_the_text_of_the_whole_response(client)
    assert "And the king" in text, "as it was trained"


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


def test_log_probabilities_are_outputs_as_tritons_backend_has_them(live: Live) -> None:
    sampling = {"max_tokens": 3, "temperature": 0, "logprobs": 2}
    fields = {
        "text_input": "And it came",
        "sampling_parameters": json.dumps(sampling),
        "return_logprobs": True,
        "return_cumulative_logprob": True,
    }
    whole = json.loads(live.http("POST", "/v2/models/tiny/generate", json.dumps(fields).encode()).body)
    tokens = json.loads(whole["logprobs"])
    chosen = [next(iter(token.values())) for token in tokens]
    assert "".join(token["decoded_token"] for token in chosen) == " to pass,"
    assert whole["cumulative_logprob"] == pytest.approx(sum(token["logprob"] for token in chosen), abs=1e-4)
    assert {len(token) for token in tokens} == {2}
    assert chosen[0]["rank"] == 1
    body = json.dumps({**fields, "stream": True}).encode()
    events = live.http("POST", "/v2/models/tiny/generate_stream", body).body.decode().split("\n\n")
    pieces = [json.loads(event.removeprefix("data: ")) for event in events if event]
    assert [token for piece in pieces for token in json.loads(piece["logprobs"])] == tokens
    del fields["sampling_parameters"]
    plain = {**fields, "parameters": {"max_tokens": 3, "temperature": 0.0}}
    answer = json.loads(live.http("POST", "/v2/models/tiny/generate", json.dumps(plain).encode()).body)
    assert answer["text_output"] == "And it came to pass,", "parameters of the request, as in Triton's guide"
    assert answer["logprobs"] == "null"
    assert answer["cumulative_logprob"] == pytest.approx(whole["cumulative_logprob"], abs=1e-4)


def test_an_adapter_is_chosen_by_its_name(live: Live, client: openai.OpenAI) -> None:
    def over_tensors(**sampling: object) -> Any:
        words = json.dumps({"max_tokens": 8, "temperature": 0, "ignore_eos": True, **sampling})
        body = json.dumps({"text_input": "And", "sampling_parameters": words}).encode()
        return json.loads(live.http("POST", "/v2/models/tiny/generate", body).body)

    def over_openai(**more: object) -> str:
        extra = {"ignore_eos": True, **more}
        answer = client.completions.create(
            model="tiny", prompt="And", max_tokens=8, temperature=0, extra_body=extra
        )
        assert answer.model == more.get("lora_name", "tiny")
        return f"And{answer.choices[0].text}"

    plain, noisy = over_tensors()["text_output"], over_tensors(lora_name="noisy")["text_output"]
    assert plain != noisy
    assert [over_openai(), over_openai(lora_name="noisy")] == [plain, noisy]
    assert "has no adapter 'quiet' (it has noisy)" in over_tensors(lora_name="quiet")["error"]
    with pytest.raises(openai.BadRequestError, match="has no adapter 'quiet'"):
        over_openai(lora_name="quiet")


@pytest.mark.parametrize(
    ("sampling", "message"),
    [
        ({"nonsense": 1}, "sampling_parameters: .*nonsense"),
        ({"temperature": -1}, "sampling_parameters: .*temperature"),
        ({"_eos_token_id": 1}, "sampling_parameters._eos_token_id: not supported"),
        ({"guided_decoding": "{"}, "sampling_parameters.guided_decoding: must be JSON"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_wrong_sampling_parameters_are_refused(live: Live, sampling: object, message: str) -> None:
    fields = {"text_input": "And", "sampling_parameters": json.dumps(sampling)}
    answer = live.http("POST", "/v2/models/tiny/generate", json.dumps(fields).encode())
    assert answer.status == 400
    assert re.search(message, json.loads(answer.body)["error"])


def test_a_text_is_one_of_the_choices_of_guided_decoding(live: Live) -> None:
    sampling = {"max_tokens": 20, "guided_decoding": {"choice": ["lamb", "lion"]}}
    fields = {
        "text_input": "And",
        "sampling_parameters": json.dumps(sampling),
        "exclude_input_in_output": True,
    }
    answer = live.http("POST", "/v2/models/tiny/generate", json.dumps(fields).encode())
    assert json.loads(answer.body)["text_output"] in ("lamb", "lion")


def picture(side: int) -> str:
    """A black image in base64."""
    data = io.BytesIO()
    Image.new("1", (side, side)).save(data, "PNG")
    return base64.b64encode(data.getvalue()).decode()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (picture(8), "Multi-modal"),
        (picture(6000), "image: has more than 33554432 pixels"),
        ("????", "image: must be base64"),
        ("aaaa", "image: is no image"),
    ],
    ids=["small", "large", "no base64", "no image"],
)
def test_images_are_opened_for_vllm_which_has_no_eyes_here(live: Live, given: str, message: str) -> None:
    fields = {"text_input": "And", "image": [given]}
    answer = live.http("POST", "/v2/models/tiny/generate", json.dumps(fields).encode())
    assert answer.status == 400
    assert message in json.loads(answer.body)["error"]


def test_images_in_chats_reach_vllm(client: openai.OpenAI) -> None:
    part = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{picture(8)}"}}
    messages: Any = [{"role": "user", "content": [part]}]
    with pytest.raises(openai.BadRequestError, match="multimodal"):
        client.chat.completions.create(model="tiny", messages=messages)


def test_responses_are_vllms(client: openai.OpenAI) -> None:
    assert "And the king" in check_responses_stream_as_they_are_whole(client)


def test_messages_are_vllms_and_their_tokens_are_logged(live: Live, caplog: pytest.LogCaptureFixture) -> None:
    assert "And the king" in check_messages_stream_as_they_are_whole(partial(post, live), caplog)


def test_requests_of_coding_agents_are_answered(live: Live) -> None:
    check_requests_of_coding_agents_are_answered(partial(post, live))


def test_a_model_of_vectors_ranks_scores_and_writes_no_text(live: Live, client: openai.OpenAI) -> None:
    assert load(live, "vectors") == (200, "")
    vectors = client.embeddings.create(model="vectors", input=["the lamb", "the lion"])
    assert [len(each.embedding) for each in vectors.data] == [len(vectors.data[0].embedding)] * 2
    ask = {"model": "vectors", "query": "the lamb", "documents": ["a stone", "the lamb"], "top_n": 1}
    ranked = json.loads(live.http("POST", "/v1/rerank", json.dumps(ask).encode()).body)
    assert [result["index"] for result in ranked["results"]] == [1]
    pair = {"model": "vectors", "text_1": "the lamb", "text_2": ["a stone", "the lamb"]}
    scores = json.loads(live.http("POST", "/v1/score", json.dumps(pair).encode()).body)["data"]
    assert scores[0]["score"] < scores[1]["score"]
    with pytest.raises(openai.BadRequestError, match="does not serve /v1/completions"):
        client.completions.create(model="vectors", prompt="And")
    assert live.http("POST", "/v2/repository/models/vectors/unload").status == 200


def test_what_vllm_refuses_answers_400(live: Live, client: openai.OpenAI) -> None:
    answer = live.http("POST", "/v2/models/tiny/generate", json.dumps({"text_input": "a " * 3000}).encode())
    assert answer.status == 400
    assert "maximum" in json.loads(answer.body)["error"]
    with pytest.raises(openai.BadRequestError, match="maximum context length is 1024"):
        client.completions.create(model="tiny", prompt="a " * 3000, max_tokens=4)
    with pytest.raises(openai.BadRequestError, match="does not serve /v1/embeddings"):
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
    sampling = json.dumps({"max_tokens": 900, "ignore_eos": True})
    body = json.dumps({"text_input": "And", "stream": True, "sampling_parameters": sampling})
    with closing(http.client.HTTPConnection("127.0.0.1", live.http_port, timeout=60)) as connection:
        connection.request("POST", "/v2/models/tiny/generate_stream", body)
        assert connection.getresponse().readline().startswith(b"data: {")

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
