"""A model that sees, over OpenAI's and Anthropic's APIs."""

import base64
import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.serving.backends.llamacpp.models import write_tiny
from tests.serving.backends.llamacpp.pictures import JPEG, TOKENS, png, url, write_encoder
from tests.serving.live import Live, serving


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    repository = tmp_path_factory.mktemp("models")
    write_tiny(repository, "tiny", threads=1, mmproj="encoder.gguf")
    write_encoder(repository / "tiny" / "1" / "encoder.gguf")
    with serving(repository) as running:
        yield running


@pytest.fixture(scope="module")
def client(live: Live) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"http://127.0.0.1:{live.http_port}/v1", api_key="k", max_retries=0) as made:
        yield made


TEXT = {"type": "text", "text": "And"}


def ask(client: openai.OpenAI, *images: bytes) -> Any:
    parts: Any = [TEXT, *({"type": "image_url", "image_url": {"url": url(image)}} for image in images)]
    return client.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": parts}],
        max_tokens=12,
        temperature=0,
        logprobs=True,
    )


def test_images_of_a_chat_are_tokens_of_its_prompt_and_change_the_answer(client: openai.OpenAI) -> None:
    without, red, blue, both = (
        ask(client, *images)
        for images in ((), (png(40, 40, (255, 0, 0)),), (png(40, 40, (0, 0, 255)),), (png(9, 9), JPEG))
    )
    counts = [answer.usage.prompt_tokens for answer in (without, red, blue, both)]
    assert counts == [counts[0] + more * TOKENS for more in (0, 1, 1, 2)]
    answers = [[token.logprob for token in each.choices[0].logprobs.content] for each in (without, red, blue)]
    assert len({tuple(answer) for answer in answers}) == 3


def test_images_of_messages_and_responses_are_tokens_too(live: Live, client: openai.OpenAI) -> None:
    source = {"type": "base64", "media_type": "image/jpeg", "data": base64.b64encode(JPEG).decode()}
    counts = []
    for parts in ([TEXT], [TEXT, {"type": "image", "source": source}]):
        fields = {"model": "tiny", "max_tokens": 1, "messages": [{"role": "user", "content": parts}]}
        answer = live.http("POST", "/v1/messages", json.dumps(fields).encode()).json
        counts.append(sum(answer["usage"][f"{kind}input_tokens"] for kind in ("", "cache_read_")))
    assert counts[1] == counts[0] + TOKENS
    part = {"type": "input_image", "image_url": url(JPEG)}
    asked: Any = [{"role": "user", "content": [{"type": "input_text", "text": "And"}, part]}]
    usage = client.responses.create(model="tiny", input=asked, max_output_tokens=1).usage
    assert usage is not None
    assert usage.input_tokens == counts[1]


def test_an_image_that_is_broken_answers_400(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="load image"):
        ask(client, png(40, 40)[:60])
    with pytest.raises(openai.BadRequestError, match="only PNG and JPEG images are supported"):
        ask(client, b"\0\0\0\x18ftypmp42")
    assert ask(client, png(40, 40)).choices
