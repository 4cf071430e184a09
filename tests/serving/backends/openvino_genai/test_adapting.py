"""Requests as OpenVINO GenAI takes them."""

from typing import Any

import pytest

from tpx.protocol.json_checks import FieldRefused
from tpx.protocol.openai import endpoint_of, validate
from tpx.serving.backends.openvino_genai.adapting import Generated, adapt

CHAT = {"model": "m", "messages": [{"role": "user", "content": "a"}]}
TEXT = {"model": "m", "prompt": "a"}


def adapted(fields: dict[str, Any]) -> Generated:
    return adapt(validate(fields, endpoint_of(fields)))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({**TEXT, "seed": 3}, {"max_new_tokens": 16, "do_sample": True, "rng_seed": 3}),
        (
            {**TEXT, "temperature": 0, "top_p": 0.5, "min_tokens": 2, "seed": -1},
            {"max_new_tokens": 16, "min_new_tokens": 2, "do_sample": False, "rng_seed": 2**63 - 1},
        ),
        (
            {
                **CHAT,
                "max_completion_tokens": 3,
                "top_k": -1,
                "top_p": 0.5,
                "seed": 0,
                "n": 1,
                "logprobs": False,
            },
            {"max_new_tokens": 3, "top_k": 2**63 - 1, "top_p": 0.5, "do_sample": True, "rng_seed": 0},
        ),
        (
            {**CHAT, "top_p": 0, "seed": 0},
            {"top_p": 1.0, "top_k": 1, "do_sample": True, "rng_seed": 0},
        ),
    ],
    ids=str,
)
def test_fields_become_members_of_its_configuration(given: dict[str, Any], expected: dict[str, Any]) -> None:
    assert adapted(given).settings == expected


def test_two_requests_without_a_seed_have_different_ones() -> None:
    assert adapted(TEXT).settings["rng_seed"] != adapted(TEXT).settings["rng_seed"]


def test_prompts_stops_and_formats_are_translated() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    chat = adapted({**CHAT, "messages": [{"role": "user", "content": parts}], "stop": "x"})
    assert chat.prompt == [{"role": "user", "content": "ab"}]
    assert chat.stops == ("x",)
    assert adapted({**TEXT, "prompt": [[5, 6]], "echo": True}).prompt == [5, 6]
    schema = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "integer"}}}
    assert adapted({**CHAT, "response_format": schema}).schema == '{"type": "integer"}'
    assert adapted({**CHAT, "response_format": {"type": "text"}}).schema == ""


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({**TEXT, "prompt": ["a", "b"]}, "prompt"),
        ({**TEXT, "n": 2}, "n"),
        ({**TEXT, "logprobs": 1}, "logprobs"),
        ({**TEXT, "logit_bias": {"1": 1}}, "logit_bias"),
        ({**CHAT, "tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({**CHAT, "messages": [{"role": "tool", "content": "a"}]}, "messages[0].role"),
        ({"model": "m", "input": "a"}, "input"),
    ],
    ids=str,
)
def test_what_it_cannot_do_is_refused_by_name(given: dict[str, Any], param: str) -> None:
    with pytest.raises(FieldRefused) as caught:
        adapted(given)
    assert caught.value.param == param
