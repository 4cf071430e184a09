"""Requests for language models, with some of their values replaced, up to the engines that take them."""

import copy
import json
from contextlib import suppress
from typing import Any

from tests.fuzz.base import Target
from tests.protocol.client_requests import CLAUDE_CODE, CODEX, LEFT_EMPTY, USER
from tpx.errors import InvalidRequest
from tpx.protocol.openai import Endpoint, decode
from tpx.serving.backends.llamacpp.adapting import adapt as adapt_for_llamacpp
from tpx.serving.backends.openvino_genai.adapting import adapt as adapt_for_openvino

PICTURE = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAAB"
SAMPLING = {
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": -1,
    "seed": 3,
    "stop": ["a"],
    "repetition_penalty": 1.1,
    "presence_penalty": 1,
    "min_tokens": 0,
    "logit_bias": {"5": 1},
    "n": 2,
    "ignore_eos": True,
}
SCHEMA = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 5, "pattern": "a{2}"}}}
SEEN = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": PICTURE}}]}
USED = {
    "role": "user",
    "content": [
        {
            "type": "tool_result",
            "tool_use_id": "i",
            "content": [{"type": "image", "source": {"type": "base64", "data": PICTURE}}],
        }
    ],
}
REQUESTS: tuple[tuple[Endpoint, dict[str, Any]], ...] = (
    ("messages", CLAUDE_CODE),
    ("messages", {"model": "m", "max_tokens": 1, "messages": [USED], "output_config": {"format": SCHEMA}}),
    ("messages/count_tokens", {"model": "m", "messages": [USED]}),
    ("responses", CODEX),
    (
        "responses",
        {"model": "m", "input": [SEEN], "text": {"format": {"type": "json_schema", "schema": SCHEMA}}},
    ),
    (
        "responses",
        {"model": "m", "input": "a", "reasoning": {"effort": "low"}, "chat_template_kwargs": {"a": 1}},
    ),
    ("chat/completions", LEFT_EMPTY),
    ("chat/completions", {"model": "m", "messages": [USER, SEEN], "reasoning_effort": "low", **SAMPLING}),
    (
        "chat/completions",
        {
            "model": "m",
            "messages": [USER],
            "logprobs": True,
            "top_logprobs": 2,
            "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}},
            "tools": [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}],
            "tool_choice": {"type": "function", "function": {"name": "f"}},
        },
    ),
    ("completions", {"model": "m", "prompt": ["a", [1, 2]], "logprobs": 1, "echo": False, **SAMPLING}),
    ("embeddings", {"model": "m", "input": [[1], [2]], "encoding_format": "base64"}),
    ("rerank", {"model": "m", "query": "a", "documents": ["b"], "top_n": 1}),
)
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1.5, 2**31, -(2**63), 10**9, "", "a", "\u00e9" * 300, PICTURE, "system"),
    *(
        [],
        {},
        [None],
        [{}],
        [[]],
        [1, "a"],
        {"type": []},
        {"type": "image"},
        {"type": "function"},
        SCHEMA,
        SEEN,
    ),
)
_DESCEND = 0x80


def run_language(data: bytes) -> None:
    """A request becomes one for an engine, as JSON, or an error."""
    endpoint, fields = REQUESTS[data[0] % len(REQUESTS)] if data else REQUESTS[0]
    fields = copy.deepcopy(fields)
    for at in range(1, min(len(data), 25), 8):
        _replace(fields, data[at : at + 8])
    with suppress(InvalidRequest):
        asked = decode(json.dumps(fields).encode(), endpoint)
        with suppress(InvalidRequest):
            json.loads(adapt_for_llamacpp(asked, tools=True, sees=True, parallel=4, context=512))
        if endpoint in ("chat/completions", "completions"):
            json.dumps(adapt_for_openvino(asked).settings)


def _replace(node: Any, choices: bytes) -> None:
    """Replace a value in the node; each byte chooses a member, and whether to look into it."""
    for choice in choices:
        if not node:
            return
        key = list(node)[choice % len(node)] if isinstance(node, dict) else choice % len(node)
        if not (choice & _DESCEND and isinstance(node[key], dict | list)):
            node[key] = copy.deepcopy(VALUES[choices[-1] % len(VALUES)])
            return
        node = node[key]


TARGETS = (
    Target(
        name="language",
        seeds=tuple(bytes((index, *range(0x80, 0x90))) for index in range(len(REQUESTS))),
        run=run_language,
        examples=400,
    ),
)
