"""OpenAI's API over a real engine, with OpenAI's own client."""

import json
import re
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.serving.backends.language.chats import (
    USER,
    check_a_stream_has_the_text_of_the_whole_response,
    check_messages_stream_as_they_are_whole,
    check_requests_of_coding_agents_are_answered,
    check_responses_stream_as_they_are_whole,
)
from tests.serving.backends.llamacpp.models import write_texts, write_tiny
from tests.serving.live import Live, in_one_process, reset, serving
from tests.waiting import eventually

KEY = "sk-secret"


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    repository = tmp_path_factory.mktemp("models")
    write_tiny(repository, "tiny", threads=1, n_parallel=4)
    write_tiny(repository, "narrow", threads=1, n_parallel=1, max_queue_size=1, kv_cache_type="q8_0")
    write_tiny(repository, "vectors", threads=1, embeddings="true", pooling="mean")
    write_tiny(repository, "ranks", threads=1, embeddings="true", pooling="rank")
    write_texts(repository, "words")
    key = f"inference,metadata:Authorization=Bearer {KEY}"
    with serving(repository, openai_port=0, openai_restricted_api=(key,)) as running:
        yield running


@pytest.fixture(scope="module")
def client(live: Live) -> Iterator[openai.OpenAI]:
    url = f"http://127.0.0.1:{live.http_port}/v1"
    with openai.OpenAI(base_url=url, api_key=KEY, max_retries=0) as made:
        yield made


def post(live: Live, path: str, value: Any, **headers: str) -> Any:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return live.http("POST", path, data, {"Authorization": f"Bearer {KEY}", **headers})


def test_models_are_those_that_make_text(client: openai.OpenAI) -> None:
    assert sorted(model.id for model in client.models.list()) == [
        "narrow",
        "ranks",
        "tiny",
        "vectors",
        "words",
    ]
    assert client.models.retrieve("tiny").owned_by == "tpx"
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("nobody")
    assert caught.value.code == "model_not_found"


def test_a_chat_is_continued(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="tiny", messages=USER, max_completion_tokens=5, seed=1)
    [choice] = answer.choices
    assert choice.message.role == "assistant"
    assert choice.message.content
    assert choice.finish_reason == "length"
    assert answer.model == "tiny"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 5
    assert answer.usage.prompt_tokens > 5


def test_a_stream_of_a_chat_has_the_text_of_the_whole_response(client: openai.OpenAI) -> None:
    check_a_stream_has_the_text_of_the_whole_response(client)


def test_a_stream_ends_with_done(live: Live) -> None:
    answer = post(live, "/v1/completions", {"model": "tiny", "prompt": "a", "max_tokens": 2, "stream": True})
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    *events, done, rest = answer.body.split(b"\n\n")
    assert (done, rest) == (b"data: [DONE]", b"")
    assert all(json.loads(event.removeprefix(b"data: "))["model"] == "tiny" for event in events)


def test_each_event_of_a_stream_counts_as_a_response(live: Live) -> None:
    def counted() -> int:
        answer = live.http("GET", "/v2/models/tiny/stats")
        [version] = json.loads(answer.body)["model_stats"]
        stats = version["response_stats"].values()
        for one in stats:
            assert one["compute_infer"]["count"] == one["success"]["count"] + one["empty_response"]["count"]
        return sum(one["success"]["count"] for one in stats)

    before = counted()
    answer = post(live, "/v1/completions", {"model": "tiny", "prompt": "a", "max_tokens": 6, "stream": True})
    assert counted() - before == answer.body.count(b"data: {")


def test_completions_take_several_prompts_texts_and_tokens(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="tiny", prompt=["And", "The"], max_tokens=3, logprobs=2)
    assert [choice.index for choice in answer.choices] == [0, 1]
    logprobs = answer.choices[1].logprobs
    assert logprobs is not None
    assert logprobs.tokens is not None
    assert logprobs.top_logprobs is not None
    assert "".join(logprobs.tokens) == answer.choices[1].text
    assert [len(top) for top in logprobs.top_logprobs] == [2, 2, 2]
    assert len(client.completions.create(model="tiny", prompt=[5, 6, 7], max_tokens=1).choices) == 1
    default = client.completions.create(model="tiny", prompt="And", extra_body={"ignore_eos": True})
    assert default.usage is not None
    assert default.usage.completion_tokens == 16


def test_several_choices_and_their_log_probabilities(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="tiny",
        messages=USER,
        n=3,
        max_tokens=4,
        logprobs=True,
        top_logprobs=2,
        extra_body={"ignore_eos": True},
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 12
    for choice in answer.choices:
        assert choice.logprobs is not None
        assert choice.logprobs.content is not None
        assert [len(token.top_logprobs) for token in choice.logprobs.content] == [2] * 4


def test_a_schema_is_obeyed(client: openai.OpenAI) -> None:
    shape = {
        "type": "object",
        "properties": {"old": {"enum": [True]}},
        "required": ["old"],
        "additionalProperties": False,
    }
    answer = client.chat.completions.create(
        model="tiny",
        messages=USER,
        response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": shape}},
        max_tokens=200,
        temperature=0,
    )
    content = answer.choices[0].message.content
    assert content is not None
    assert answer.choices[0].finish_reason == "stop"
    assert json.loads(content) == {"old": True}


WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


@pytest.mark.parametrize("choice", ["auto", {"type": "function", "function": {"name": "weather"}}], ids=str)
def test_a_tool_is_called_with_arguments_of_its_schema(client: openai.OpenAI, choice: Any) -> None:
    fields: Any = {"model": "tiny", "messages": USER, "tools": [WEATHER], "tool_choice": choice}
    fields |= {"temperature": 0, "max_tokens": 200}
    whole = client.chat.completions.create(**fields).choices[0]
    assert whole.finish_reason == "tool_calls"
    assert whole.message.tool_calls is not None
    [call] = whole.message.tool_calls
    assert call.type == "function"
    assert call.function.name == "weather"
    assert json.loads(call.function.arguments).keys() == {"city"}
    pieces = [
        piece.function.arguments
        for chunk in client.chat.completions.create(**fields, stream=True)
        for piece in chunk.choices[0].delta.tool_calls or ()
        if piece.function is not None
    ]
    assert len(pieces) > 3
    assert "".join(piece or "" for piece in pieces) == call.function.arguments


def test_a_stop_text_ends_the_generation_and_is_left_out(client: openai.OpenAI) -> None:
    fields: Any = {"model": "tiny", "prompt": "And God said", "temperature": 0, "max_tokens": 20}
    text = client.completions.create(**fields).choices[0].text
    stop = text[6:9]
    shorter = client.completions.create(**fields, stop=[stop]).choices[0]
    assert shorter.text == text[: text.index(stop)]
    assert shorter.finish_reason == "stop"


def test_embeddings_are_vectors_of_the_model_s_width(client: openai.OpenAI) -> None:
    answer = client.embeddings.create(model="vectors", input=["one text", "another"])
    assert [len(each.embedding) for each in answer.data] == [128, 128]
    assert answer.data[0].embedding != answer.data[1].embedding


def test_every_setting_that_llama_cpp_has_is_taken(client: openai.OpenAI) -> None:
    settings = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": -1,
        "min_p": 0.1,
        "presence_penalty": 1,
        "frequency_penalty": -1,
        "repetition_penalty": 1.1,
        "logit_bias": {"7": 1},
        "seed": -1,
        "stop": ["zzz"],
        "n": 2,
        "ignore_eos": True,
        "logprobs": True,
        "top_logprobs": 1,
        "chat_template_kwargs": {"enable_thinking": False},
        "reasoning_effort": "low",
        "parallel_tool_calls": True,
        "user": "u",
    }
    answer = client.chat.completions.create(model="tiny", messages=USER, max_tokens=2, extra_body=settings)
    assert len(answer.choices) == 2
    plain: Any = {"model": "tiny", "prompt": "And", "max_tokens": 60, "temperature": 0}
    text = client.completions.create(**plain, extra_body={"repetition_penalty": 10}).choices[0].text
    most = max(text.split().count(word) for word in text.split())
    text = client.completions.create(**plain, extra_body={"repetition_penalty": 1}).choices[0].text
    assert most < max(text.split().count(word) for word in text.split())


def test_the_client_s_own_message_continues_a_chat(client: openai.OpenAI) -> None:
    first = client.chat.completions.create(model="tiny", messages=USER, max_tokens=3).choices[0].message
    first.tool_calls, first.refusal, first.annotations = [], None, []  # as some servers write them
    messages: Any = [*USER, first, *USER]
    assert client.chat.completions.create(model="tiny", messages=messages, max_tokens=3).choices


def test_responses_are_the_engine_s(client: openai.OpenAI) -> None:
    check_responses_stream_as_they_are_whole(client)
    form: Any = {"type": "json_schema", "name": "s", "schema": {"enum": ["lamb", "lion"]}}
    asked: Any = {"model": "tiny", "input": "And", "max_output_tokens": 20, "temperature": 0}
    assert json.loads(client.responses.create(**asked, text={"format": form}).output_text) in ("lamb", "lion")
    tool: Any = {"type": "function", **WEATHER["function"]}
    [call] = client.responses.create(
        **{**asked, "max_output_tokens": 200}, tools=[tool], tool_choice="required"
    ).output
    assert call.type == "function_call"
    assert json.loads(call.arguments).keys() == {"city"}
    more = {"repetition_penalty": 1.1, "seed": -1, "stop": "zzz", "top_k": -1, "reasoning": {"effort": "low"}}
    assert client.responses.create(**asked, extra_body=more).output_text


@in_one_process
def test_messages_are_the_engine_s(live: Live, caplog: pytest.LogCaptureFixture) -> None:
    check_messages_stream_as_they_are_whole(lambda path, fields: post(live, path, fields), caplog)
    tool = {"name": "look", "input_schema": WEATHER["function"]["parameters"]}
    asked = {"model": "tiny", "messages": USER, "max_tokens": 200, "temperature": 0, "tools": [tool]}
    answer = post(live, "/v1/messages", {**asked, "tool_choice": {"type": "any"}}).json
    assert answer["stop_reason"] == "tool_use"
    assert answer["content"][-1]["input"].keys() == {"city"}
    used = {"role": "assistant", "content": answer["content"]}
    made = {"type": "tool_result", "tool_use_id": answer["content"][-1]["id"], "content": "rain"}
    messages = [*USER, used, {"role": "user", "content": [made]}]
    assert post(live, "/v1/messages", {**asked, "messages": messages}).status == 200


def test_requests_of_coding_agents_are_answered(live: Live) -> None:
    check_requests_of_coding_agents_are_answered(lambda path, fields: post(live, path, fields))


PICTURE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aaaa"}}


@pytest.mark.parametrize(
    ("path", "fields", "message"),
    [
        ("messages", {"messages": [{"role": "user", "content": [PICTURE]}]}, "messages[0].content[0].type: "),
        (
            "messages",
            {"messages": [{"role": "user", "content": [{"type": "tool_result", "content": [PICTURE]}]}]},
            "messages[0].content[0].content[0].type: ",
        ),
        ("messages", {"output_config": {"format": {"schema": {}}}}, "output_config.format: llama.cpp has no"),
        ("messages", {"chat_template_kwargs": {"a": 1}}, "chat_template_kwargs: llama.cpp has no"),
        ("messages", {"max_tokens": "many"}, "Field 'max_tokens'"),
        (
            "messages",
            {"messages": [{"role": "user", "content": "a " * 5000}]},
            "exceeds the available context",
        ),
        (
            "responses",
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:,"}]}]},
            "input[0].content[0].type: only text is",
        ),
        ("responses", {"top_logprobs": 1}, "top_logprobs: llama.cpp has no"),
        (
            "responses",
            {"input": [{"role": "user", "content": [{"type": "input_file"}]}]},
            "input[0].content[0].type: only texts",
        ),
    ],
    ids=lambda value: str(value)[:60],
)
def test_what_the_engine_would_pass_over_or_not_take_is_refused(
    live: Live, path: str, fields: dict[str, Any], message: str
) -> None:
    base = {"responses": {"input": "a"}, "messages": {"messages": USER, "max_tokens": 1}}[path]
    answer = post(live, f"/v1/{path}", {"model": "tiny", **base, **fields})
    assert answer.status == 400
    assert message in json.loads(answer.body)["error"]["message"]


@in_one_process
def test_documents_are_ranked_by_a_model_that_does(live: Live, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", "tpx.serving.frontends.access_log")
    fields = {"model": "ranks", "query": "the lamb", "documents": ["a lion", "the lamb of God"]}
    ranked = json.loads(post(live, "/v1/rerank", fields).body)
    scores = [result["relevance_score"] for result in ranked["results"]]
    assert sorted(result["index"] for result in ranked["results"]) == [0, 1]
    assert scores == sorted(scores, reverse=True)
    tokens = ranked["usage"]["total_tokens"]
    assert f"Tokens: /v1/rerank ranks: {tokens} of the prompt, 0 generated" in caplog.text
    [best] = json.loads(post(live, "/v1/rerank", {**fields, "top_n": 1}).body)["results"]
    assert best == ranked["results"][0]


@pytest.mark.parametrize(
    ("model", "path", "fields"),
    [
        ("tiny", "score", {"text_1": "a", "text_2": "b"}),
        ("tiny", "embeddings", {"input": "a"}),
        ("vectors", "messages", {"messages": USER, "max_tokens": 1}),
        ("vectors", "completions", {"prompt": "a"}),
        ("vectors", "rerank", {"query": "a", "documents": ["b"]}),
        ("words", "responses", {"input": "a"}),
    ],
)
def test_an_endpoint_that_an_engine_has_not_is_refused_by_its_name(
    live: Live, model: str, path: str, fields: dict[str, Any]
) -> None:
    answer = post(live, f"/v1/{path}", {"model": model, **fields})
    assert answer.status == 400
    error = json.loads(answer.body)["error"]
    assert error["message"].startswith(f"model '{model}' does not serve /v1/{path}")
    assert error["type"] == "invalid_request_error"
    assert live.http("POST", f"/v1/{path}", b"{}").status == 401


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"foo": 1}, "foo"),
        ({"min_tokens": 2}, "min_tokens"),
        ({"n": 9}, "n"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"messages": [{"role": "user", "content": "a " * 5000}]}, None),
    ],
    ids=str,
)
def test_an_error_has_openai_s_form_and_names_the_field(
    client: openai.OpenAI, fields: dict[str, Any], param: str | None
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="tiny", messages=USER, max_tokens=1, extra_body=fields)
    assert caught.value.param == param
    assert caught.value.type == "invalid_request_error"


def test_keys_are_bearer_tokens_on_each_port_and_others_get_401(live: Live) -> None:
    for port in (live.http_port, live.ports["OpenAI HTTPService"]):
        for key in ("", "sk-other"):
            client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key=key or "x", max_retries=0)
            with client, pytest.raises(openai.AuthenticationError):
                client.models.list()
        with openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key=KEY) as client:
            assert client.models.list().data
    assert live.get("/v2/models/tiny").status == 200  # these restrict nothing else


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"x-api-key": KEY}, 200),
        ({"x-api-key": "sk-other"}, 401),
        ({"x-api-key": f"Bearer {KEY}"}, 401),
        ({"x-api-key": KEY, "Authorization": "Bearer sk-other"}, 401),
    ],
)
def test_clients_of_anthropic_s_api_show_the_key_in_their_own_header(
    live: Live, headers: dict[str, str], status: int
) -> None:
    body = json.dumps({"model": "tiny", "messages": USER, "max_tokens": 1}).encode()
    assert live.http("POST", "/v1/messages", body, headers).status == status


def test_the_port_of_its_own_serves_nothing_else(live: Live) -> None:
    url = f"http://127.0.0.1:{live.ports['OpenAI HTTPService']}"
    with urllib.request.urlopen(f"{url}/health/ready", timeout=10) as answer:
        assert answer.status == 200
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(f"{url}/v2", timeout=10)


def test_a_user_s_model_with_vllm_s_tensors_is_served_too(client: openai.OpenAI) -> None:
    fields: Any = {"model": "words", "prompt": "one two three four", "max_tokens": 3}
    whole = client.completions.create(**fields)
    assert (whole.choices[0].text, whole.choices[0].finish_reason) == ("onetwothree", "length")
    assert whole.usage is not None
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (7, 3)
    chunks = list(client.completions.create(**fields, stream=True, stream_options={"include_usage": True}))
    assert [chunk.choices[0].text for chunk in chunks if chunk.choices] == ["one", "two", "three"]
    assert chunks[-1].usage == whole.usage
    for refused in ({"n": 2}, {"logprobs": 1}, {"prompt": ["a", "b"]}):
        with pytest.raises(openai.BadRequestError) as caught:
            client.completions.create(**{**fields, **refused})
        assert caught.value.param == next(iter(refused))
    with pytest.raises(openai.BadRequestError, match="no chat template"):
        client.chat.completions.create(model="words", messages=USER)


LONG: Any = {"prompt": "And", "max_tokens": 100_000, "stream": True, "ignore_eos": True}


def begin(live: Live, path: str, body: Any) -> socket.socket:
    """Send a request and read nothing."""
    data = json.dumps(body).encode()
    connection = live.raw_http()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\r\n"
    connection.sendall(head.encode() + b"Content-Length: %d\r\n\r\n" % len(data) + data)
    return connection


def refused(live: Live, path: str, body: Any, status: int) -> bytes:
    """Send six requests to a model that computes one and lets one wait; return what is refused."""
    connections = [begin(live, path, body) for _ in range(6)]
    answers = [connection.recv(4096) for connection in connections]
    for connection in connections:
        connection.close()
    found = [answer for answer in answers if answer.startswith(b"HTTP/1.1 %d" % status)]
    assert len(found) >= 3
    assert any(answer.startswith(b"HTTP/1.1 200") for answer in answers)
    return found[0]


def test_a_full_queue_answers_429_and_over_v2_503(live: Live) -> None:
    answer = refused(live, "/v1/completions", {**LONG, "model": "narrow"}, 429)
    assert b"Retry-After: 1" in answer
    assert b'"rate_limit_exceeded"' in answer
    sampling = json.dumps({"max_tokens": 100_000, "ignore_eos": True})
    text = {"text_input": "And", "stream": True, "sampling_parameters": sampling}
    assert b"Exceeds maximum queue size" in refused(live, "/v2/models/narrow/generate_stream", text, 503)


def tokens_of(live: Live, model: str) -> float:
    """Generated tokens by the metrics page."""
    with urllib.request.urlopen(
        f"http://127.0.0.1:{live.ports['Metrics Service']}/metrics", timeout=10
    ) as page:
        text = page.read().decode()
    [line] = [
        line
        for line in text.splitlines()
        if line.startswith(f'vllm:generation_tokens_total{{model="{model}"')
    ]
    return float(line.split()[-1])


LONG_MESSAGE = {"messages": USER, "max_tokens": 100_000, "stream": True}


@pytest.mark.parametrize(
    ("path", "fields", "token"),
    [("completions", LONG, b"data: "), ("messages", LONG_MESSAGE, b"content_block_delta")],
    ids=["completions", "messages"],
)
def test_a_client_that_leaves_frees_its_sequence(
    live: Live, path: str, fields: dict[str, Any], token: bytes
) -> None:
    before = tokens_of(live, "tiny")
    connection = begin(live, f"/v1/{path}", {**fields, "model": "tiny"})
    received = b""
    while token not in received:
        more = connection.recv(4096)
        assert more
        received += more
    reset(connection)

    def cancelled() -> bool:
        [stats] = live.get("/v2/models/tiny/stats").json["model_stats"]
        return bool(stats["response_stats"].get("0")) and tokens_of(live, "tiny") > before

    eventually(cancelled)
    whole = post(live, "/v1/completions", {**LONG, "model": "tiny", "stream": False})
    assert tokens_of(live, "tiny") - before < 2 * whole.json["usage"]["completion_tokens"]


def test_a_client_that_does_not_read_is_cancelled_and_told_why(live: Live) -> None:
    chat = {"model": "tiny", "messages": USER, "stream": True, "ignore_eos": True, "n": 4}
    connection = begin(live, "/v1/chat/completions", {**chat, "logprobs": True, "top_logprobs": 20})
    connection.recv(1)

    def failures() -> int:
        [stats] = live.get("/v2/models/tiny/stats").json["model_stats"]
        return int(stats["inference_stats"]["fail"]["count"])

    before = failures()
    eventually(lambda: failures() > before)
    data = b""
    while not data.endswith(b"0\r\n\r\n"):
        more = connection.recv(1 << 20)
        assert more
        data = (data + more)[-2000:]
    connection.close()
    assert b"the client reads too slowly" in data
    assert b"[DONE]" not in data


def test_the_metrics_page_has_vllm_s_series(live: Live, client: openai.OpenAI) -> None:
    client.completions.create(model="tiny", prompt="And", max_tokens=3)
    with urllib.request.urlopen(
        f"http://127.0.0.1:{live.ports['Metrics Service']}/metrics", timeout=10
    ) as page:
        families = {family.name: family for family in text_string_to_metric_families(page.read().decode())}
    assert {name for name in families if name.startswith("vllm:")} == {
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:kv_cache_usage_perc",
        "vllm:prompt_tokens",
        "vllm:generation_tokens",
        "vllm:time_to_first_token_seconds",
        "vllm:time_per_output_token_seconds",
        "vllm:e2e_request_latency_seconds",
    }
    labels = {"model": "tiny", "version": "1"}
    assert any(
        sample.labels == labels and sample.value >= 3 for sample in families["vllm:generation_tokens"].samples
    )


@in_one_process
def test_the_log_has_the_tokens_of_a_request(live: Live, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", "tpx.serving.frontends.access_log")
    asked = {"model": "tiny", "prompt": [5, 6, 7], "max_tokens": 4, "ignore_eos": True}
    for stream in (False, True):
        caplog.clear()
        post(live, "/v1/completions", {**asked, "stream": stream})
        text = r"Tokens: /v1/completions tiny: 3 of the prompt, 4 generated, \d+ us"
        assert [message for message in caplog.messages if re.fullmatch(text, message)]
