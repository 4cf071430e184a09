"""What of a request's contents llama.cpp is given."""

import base64
import struct
from typing import Any

import pytest

from tests.serving.backends.llamacpp.pictures import JPEG, png, url
from tpx.protocol.json_checks import FieldRefused
from tpx.protocol.openai import Endpoint, validate
from tpx.serving.backends.llamacpp.parts import check_parts

TEXT = {"type": "text", "text": "a"}
BOMB = png(1, 1).replace(struct.pack(">II", 1, 1), struct.pack(">II", 8192, 4097))
HALF = png(1, 1).replace(struct.pack(">II", 1, 1), struct.pack(">II", 4096, 4097))


def chat(*parts: Any) -> tuple[Endpoint, dict[str, Any]]:
    return "chat/completions", {"messages": [{"role": "user", "content": list(parts)}]}


def message(*parts: Any) -> tuple[Endpoint, dict[str, Any]]:
    return "messages", {"messages": [{"role": "user", "content": list(parts)}], "max_tokens": 1}


def response(*items: Any) -> tuple[Endpoint, dict[str, Any]]:
    return "responses", {"input": list(items)}


def shown(image: bytes) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url(image)}}


def sent(image: bytes) -> dict[str, Any]:
    data = base64.b64encode(image).decode()
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}


def beside(**source: Any) -> dict[str, Any]:
    """A small image, with something else in its source."""
    image = sent(JPEG)
    return {**image, "source": {**image["source"], **source}}


def given(image: bytes) -> dict[str, Any]:
    return {"type": "input_image", "image_url": url(image)}


def result(*parts: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": "i", "content": list(parts)}


def check(asked: tuple[Endpoint, dict[str, Any]], *, sees: bool = True) -> None:
    check_parts(validate({"model": "m", **asked[1]}, asked[0]), sees=sees)


@pytest.mark.parametrize(
    "asked",
    [
        chat(TEXT, shown(png(3, 2)), shown(JPEG)),
        message(TEXT, sent(png(3, 2)), result(TEXT, sent(JPEG))),
        message({"type": "tool_use", "id": "i", "name": "f", "input": {"content": [{"type": "any"}]}}),
        response({"role": "user", "content": [{"type": "input_text", "text": "a"}, given(JPEG)]}),
        response({"type": "function_call_output", "call_id": "c", "output": [given(png(3, 2))]}),
        response({"type": "function_call_output", "call_id": "c", "output": "a text"}),
        chat(shown(JPEG[:2] + b"\xff" + JPEG[2:])),
    ],
    ids=["chat", "message", "call", "response", "output", "text", "a filled JPEG"],
)
def test_texts_and_images_are_taken(asked: tuple[Endpoint, dict[str, Any]]) -> None:
    check(asked)


@pytest.mark.parametrize(
    ("asked", "param", "why"),
    [
        (chat(TEXT, shown(BOMB)), "messages", "33562624 pixels, more than"),
        (message(sent(HALF), result(sent(HALF))), "messages", "pixels, more than"),
        (response({"role": "user", "content": [given(HALF)] * 3}), "input", "pixels, more than"),
        (chat(shown(b"GIF89a" + bytes(20))), "messages[0].content[0]", "only PNG and JPEG"),
        (chat(shown(JPEG[:60])), "messages[0].content[0]", "only PNG and JPEG"),
        (chat(shown(png(1, 1)[:20])), "messages[0].content[0]", "only PNG and JPEG"),
        (chat(shown(b"\xff\xd8" + b"\xff" * 9)), "messages[0].content[0]", "only PNG and JPEG"),
        (message(beside(data="?")), "messages[0].content[0]", "must be in base64"),
        (message(beside(data=5)), "messages[0].content[0]", "must be in base64"),
        (message(beside(type="url", url=url(BOMB))), "messages[0].content[0]", "must be in base64"),
        (
            message(beside(media_type=f"image/png;base64,{url(BOMB)[22:]}")),
            "messages[0].content[0]",
            "must be in",
        ),
        (message({"type": "image"}), "messages[0].content[0]", "must be in base64"),
        (
            response({"content": [given(BOMB) | {"source": sent(JPEG)["source"]}, given(HALF)]}),
            "input",
            "pixels, more than",
        ),
        (
            chat(shown(b"") | {"image_url": {"url": f"{url(BOMB)},{url(JPEG)[22:]}"}}),
            "messages[0].content[0]",
            "must",
        ),
        (("messages", {**message(TEXT)[1], "system": [sent(BOMB)]}), "messages", "pixels, more than"),
        (message({"type": "document"}), "messages[0].content[0].type", "only texts"),
        (message({"type": []}), "messages[0].content[0].type", "only texts"),
        (message(result(result(TEXT))), "messages[0].content[0].content[0].type", "only texts"),
        (message(result({"type": "document"})), "messages[0].content[0].content[0].type", "only texts"),
        (response({"content": [{"type": "input_audio"}]}), "input[0].content[0].type", "only texts"),
        (response({"output": [{"type": "input_file"}]}), "input[0].output[0].type", "only texts"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_is_no_text_or_image_is_refused_by_name(
    asked: tuple[Endpoint, dict[str, Any]], param: str, why: str
) -> None:
    with pytest.raises(FieldRefused, match=why) as caught:
        check(asked)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("asked", "where"),
    [
        (chat(shown(JPEG)), "messages[0].content[0].type"),
        (message(result(sent(JPEG))), "messages[0].content[0].content[0].type"),
        (response({"output": [given(JPEG)]}), "input[0].output[0].type"),
    ],
    ids=["chat", "message", "response"],
)
def test_a_model_without_an_encoder_takes_texts_only(
    asked: tuple[Endpoint, dict[str, Any]], where: str
) -> None:
    with pytest.raises(FieldRefused, match="the model has no mmproj") as caught:
        check(asked, sees=False)
    assert caught.value.param == where
