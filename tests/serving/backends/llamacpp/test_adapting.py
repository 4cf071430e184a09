"""Requests as llama.cpp takes them."""

import json
from typing import Any

import pytest

from tpx.protocol.json_checks import FieldRefused
from tpx.protocol.openai import Endpoint, endpoint_of, validate
from tpx.serving.backends.language.tensors import from_tensors
from tpx.serving.backends.llamacpp.adapting import adapt

ALWAYS = {"stream": True, "return_progress": True}
CHAT = {"model": "m", "messages": [{"role": "user", "content": "a"}]}
TEXT = {"model": "m", "prompt": "a"}


def tool(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def adapted(fields: dict[str, Any], *, tools: bool = True) -> Any:
    endpoint: Endpoint = endpoint_of(fields)
    return json.loads(adapt(validate(fields, endpoint), tools=tools, sees=False, parallel=4, context=512))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({**TEXT, "user": "u", "echo": False, "best_of": 1}, {"prompt": "a", "max_tokens": 16}),
        ({**TEXT, "max_tokens": 3, "stop": "x"}, {"prompt": "a", "max_tokens": 3, "stop": ["x"]}),
        ({**TEXT, "logprobs": 0}, {"prompt": "a", "max_tokens": 16, "logprobs": 1}),
        ({**TEXT, "top_k": -1, "min_tokens": 0}, {"prompt": "a", "max_tokens": 16, "top_k": 0}),
        (
            {**TEXT, "repetition_penalty": 1.5},
            {"prompt": "a", "max_tokens": 16, "repeat_penalty": 1.5, "repeat_last_n": 512},
        ),
        ({**CHAT, "max_completion_tokens": 3}, {"messages": CHAT["messages"], "max_tokens": 3}),
        (
            {**CHAT, "reasoning_effort": "low", "chat_template_kwargs": {"a": 1}},
            {"messages": CHAT["messages"], "chat_template_kwargs": {"a": 1, "reasoning_effort": "low"}},
        ),
        (
            {
                **CHAT,
                "messages": [*CHAT["messages"], {"role": "assistant", "content": "b", "reasoning": "c"}],
            },
            {
                "messages": [
                    *CHAT["messages"],
                    {"role": "assistant", "content": "b", "reasoning_content": "c"},
                ]
            },
        ),
        (
            {
                **CHAT,
                "tools": [tool("f"), tool("g")],
                "tool_choice": {"type": "function", "function": {"name": "g"}},
            },
            {"messages": CHAT["messages"], "tools": [tool("g")], "tool_choice": "required"},
        ),
    ],
    ids=str,
)
def test_fields_are_translated(given: dict[str, Any], expected: dict[str, Any]) -> None:
    assert adapted(given) == {**expected, **ALWAYS}


@pytest.mark.parametrize("seed", [-5, 2**32 - 1, 2**63 - 1])
def test_no_seed_becomes_the_one_that_means_a_random_one(seed: int) -> None:
    assert 0 <= adapted({**TEXT, "seed": seed})["seed"] < 2**32 - 1


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({**TEXT, "min_tokens": 2}, "min_tokens"),
        ({**TEXT, "echo": True}, "echo"),
        ({**TEXT, "lora_name": "a"}, "lora_name"),
        ({**TEXT, "n": 5}, "n"),
        ({**CHAT, "tools": [tool("f")]}, "tools"),
    ],
    ids=str,
)
def test_the_engine_s_limits_are_named(given: dict[str, Any], param: str) -> None:
    with pytest.raises(FieldRefused) as caught:
        adapted(given, tools=False)
    assert caught.value.param == param


def test_a_tool_that_is_not_offered_cannot_be_chosen() -> None:
    choice = {"type": "function", "function": {"name": "h"}}
    with pytest.raises(FieldRefused, match="there is no tool 'h'"):
        adapted({**CHAT, "tools": [tool("f")], "tool_choice": choice})


def test_sampling_parameters_may_be_strings_as_in_triton() -> None:
    given = {"temperature": "0.5", "max_tokens": "3", "ignore_eos": "true", "stop": ["x"]}
    request = from_tensors(b"text", json.dumps(given).encode(), (), frozenset())
    assert request.as_completion().fields == {
        "model": "",
        "prompt": "text",
        "temperature": 0.5,
        "max_tokens": 3,
        "ignore_eos": True,
        "stop": ["x"],
    }


@pytest.mark.parametrize(
    ("sampling", "image", "param"),
    [
        (b"[", b"", "sampling_parameters"),
        (b"[]", b"", "sampling_parameters"),
        (b'{"best_of":2}', b"", "sampling_parameters.best_of"),
        (b'{"n":2}', b"", "sampling_parameters.n"),
        (b'{"temperature":"hot"}', b"", "temperature"),
        (b"{}", b"?", "image"),
    ],
)
def test_wrong_tensors_are_named(sampling: bytes, image: bytes, param: str) -> None:
    with pytest.raises(FieldRefused) as caught:
        from_tensors(b"text", sampling, (image,), frozenset()).as_completion()
    assert caught.value.param == param
