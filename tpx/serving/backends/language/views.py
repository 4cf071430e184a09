"""Answers of the engine as its clients want them: OpenAI's JSON or tensors, whole or as a stream.

A view takes the chunks of one request in order, as JSON: those of a stream of OpenAI's API. The last chunk of
a choice has llama.cpp's `timings` too, which say how many tokens it had.
"""

import json
import re
from collections.abc import Callable, Sequence
from typing import Protocol

from tpx.protocol.json_values import JsonObject

REQUEST, RESPONSE = "openai_request", "openai_response"
INPUTS = {
    "text_input": "BYTES",
    "stream": "BOOL",
    "sampling_parameters": "BYTES",
    "exclude_input_in_output": "BOOL",
    "return_finish_reason": "BOOL",
    "return_num_input_tokens": "BOOL",
    "return_num_output_tokens": "BOOL",
    REQUEST: "BYTES",
}
OUTPUTS = {
    "text_output": "BYTES",
    "finish_reason": "BYTES",
    "num_input_tokens": "UINT32",
    "num_output_tokens": "UINT32",
    RESPONSE: "BYTES",
}
"""Tensors and their types: those of Triton's vLLM backend, and requests of OpenAI's API as they are."""
_LAST = b'"timings":{'
"""In the last chunk of a choice. Within a text the quotes would be escaped."""

_USAGE = b'"usage":{'
_COUNT = re.compile(rb'"(input|prompt|output|completion|cache_read_input|cache_creation_input)_tokens":(\d+)')
"""Anthropic counts tokens of the prompt that were cached apart from the others."""

_MADE = (b"output", b"completion")

Post = Callable[[Sequence[tuple[str, "bytes | int | float"]]], None]


class TokenCounts:
    """Tokens of a request."""

    def __init__(self, prompts: int) -> None:
        """`prompts` is the number of choices per prompt."""
        self._choices = prompts
        self._prompt = 0
        self.cached = 0
        self.completion = 0

    @property
    def prompt(self) -> int:
        """Tokens of all prompts, once each."""
        return self._prompt // self._choices

    def add(self, timings: JsonObject) -> None:
        """Add a choice."""
        self._prompt += timings["prompt_n"] + timings["cache_n"]
        self.cached += timings["cache_n"]
        self.completion += timings["predicted_n"]

    def note(self, usage: bytes) -> None:
        """Note the numbers of an object `usage`, which begins the text; what is not in it is unchanged."""
        counts = {name: int(digits) for name, digits in _COUNT.findall(usage)}
        for name in _MADE:
            self.completion = counts.pop(name, self.completion)
        self._prompt = sum(counts.values()) if counts else self._prompt

    def as_json(self) -> JsonObject:
        """Return it in OpenAI's form."""
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": {"cached_tokens": self.cached},
        }


class View(Protocol):
    """Sends the answers of one request."""

    usage: TokenCounts
    streams: bool
    """True if a response is sent per token."""

    def take(self, data: bytes) -> None:
        """Take a chunk."""

    def end(self) -> None:
        """Send what is left: all choices have ended."""


class UnreadView:
    """Passes responses on that the engine makes as a whole, but for their numbers of tokens."""

    def __init__(self, post: Post, *, stream: bool) -> None:
        """In a stream, each response is an event with its lines."""
        self.usage = TokenCounts(1)
        self.streams = stream
        self._post = post

    def take(self, data: bytes) -> None:
        start = data.rfind(_USAGE)
        if start >= 0:
            self.usage.note(data[start:])
        self._post(((RESPONSE, data),))

    def end(self) -> None:
        """Do nothing: the response is whole."""


class OpenAiStream:
    """Passes chunks on as they are, except the last of each choice."""

    streams = True

    def __init__(self, post: Post, choices: int, *, include_usage: bool, legacy_logprobs: int) -> None:
        self.usage = TokenCounts(choices)
        self._post = post
        self._include_usage = include_usage
        self._logprobs = LegacyLogprobs(legacy_logprobs) if legacy_logprobs >= 0 else None
        self._last: JsonObject = {}

    def take(self, data: bytes) -> None:
        if self._logprobs is not None or _LAST in data:
            data = self._rewrite(data)
        self._post(((RESPONSE, data),))

    def _rewrite(self, data: bytes) -> bytes:
        chunk = json.loads(data)
        timings = chunk.pop("timings", None)
        if timings is not None:
            self.usage.add(timings)
            chunk.pop("usage", None)
            self._last = chunk
        if self._logprobs is not None:
            for choice in chunk["choices"]:
                self._logprobs.convert(choice)
        return json.dumps(chunk, separators=(",", ":")).encode()

    def end(self) -> None:
        if self._include_usage and self._last:
            chunk = {**self._last, "choices": [], "usage": self.usage.as_json()}
            self._post(((RESPONSE, json.dumps(chunk, separators=(",", ":")).encode()),))


class OpenAiWhole:
    """Joins chunks to one response."""

    streams = False

    def __init__(self, post: Post, choices: int, *, legacy_logprobs: int) -> None:
        self.usage = TokenCounts(choices)
        self._post = post
        self._logprobs = LegacyLogprobs(legacy_logprobs) if legacy_logprobs >= 0 else None
        self._choices: dict[int, JsonObject] = {}
        self._last: JsonObject = {}

    def take(self, data: bytes) -> None:
        chunk = json.loads(data)
        timings = chunk.pop("timings", None)
        if timings is not None:
            self.usage.add(timings)
        self._last = chunk
        for choice in chunk["choices"]:
            if self._logprobs is not None:
                self._logprobs.convert(choice)
            _join(self._choices.setdefault(choice["index"], {"index": choice["index"]}), choice)

    def end(self) -> None:
        choices = [self._choices[index] for index in sorted(self._choices)]
        for choice in choices:
            choice.setdefault("logprobs", None)
            if "text" not in choice:
                message = choice.setdefault("message", {})
                message.setdefault("role", "assistant")
                message["content"] = message.get("content")
                for call in message.get("tool_calls", ()):
                    call.pop("index", None)
        kind = self._last["object"].removesuffix(".chunk")
        whole = {**self._last, "object": kind, "choices": choices, "usage": self.usage.as_json()}
        self._post(((RESPONSE, json.dumps(whole, separators=(",", ":")).encode()),))


def _join(whole: JsonObject, choice: JsonObject) -> None:
    """Add a chunk of a choice to it."""
    whole["finish_reason"] = choice["finish_reason"]
    if "text" in choice:
        whole["text"] = whole.get("text", "") + choice["text"]
    if choice.get("delta"):
        _join_members(whole.setdefault("message", {}), choice["delta"])
    if choice.get("logprobs"):
        _join_members(whole.setdefault("logprobs", {}), choice["logprobs"])


def _join_members(whole: JsonObject, delta: JsonObject) -> None:
    """Append texts and lists, and merge the pieces of tool calls by their index."""
    for name, value in delta.items():
        if name == "tool_calls":
            calls = whole.setdefault(name, [])
            for call in value:
                known = next((each for each in calls if each["index"] == call["index"]), None)
                if known is None:
                    calls.append(call)
                else:
                    function = known["function"]
                    function["arguments"] = function.get("arguments", "") + call["function"].get(
                        "arguments", ""
                    )
        elif isinstance(value, list):
            whole[name] = [*whole.get(name, ()), *value]
        elif isinstance(value, str) and name not in ("role", "id", "type"):
            whole[name] = (whole.get(name) or "") + value
        else:
            whole.setdefault(name, value)


class LegacyLogprobs:
    """Converts log probabilities to the form of /v1/completions, which differs from that of chats."""

    def __init__(self, top: int) -> None:
        """`top` is the number of most probable tokens for each position."""
        self._top = top
        self._offsets: dict[int, int] = {}

    def convert(self, choice: JsonObject) -> None:
        """Convert those of a choice in place, unless the engine has that form itself."""
        offset = self._offsets.get(choice["index"], 0)
        self._offsets[choice["index"]] = offset + len(choice["text"])
        given = choice["logprobs"]
        if given is None or "content" not in given:
            return
        tokens: list[JsonObject] = given["content"]
        choice["logprobs"] = {
            "tokens": [token["token"] for token in tokens],
            "token_logprobs": [token["logprob"] for token in tokens],
            "top_logprobs": [
                {each["token"]: each["logprob"] for each in token["top_logprobs"][: self._top]}
                for token in tokens
            ],
            "text_offset": [offset] * len(tokens),
        }


class TextView:
    """Answers with the tensors of Triton's vLLM backend: a response per chunk, or one with the whole text."""

    def __init__(self, post: Post, prompt: bytes, *, stream: bool, wanted: frozenset[str]) -> None:
        """Answer with `prompt` before the text; `wanted` are outputs besides it."""
        self.usage = TokenCounts(1)
        self._post = post
        self.streams = stream
        self._wanted = wanted
        self._logprobs: list[JsonObject] | None = None
        self._text = prompt
        self._prompt_tokens = 0

    def take(self, data: bytes) -> None:
        chunk = json.loads(data)
        choice = chunk["choices"][0]
        self._text += choice["text"].encode()
        if choice.get("logprobs") is not None and "logprobs" in self._wanted:
            self._logprobs = [*(self._logprobs or ()), *choice["logprobs"]]
        timings = chunk.get("timings")
        if timings is not None:
            self.usage.add(timings)
        reason = choice["finish_reason"]
        if self.streams or reason:
            one = chunk.get("tokens", bool(not reason or choice["text"]))
            self._send(choice, tokens=one if self.streams else self.usage.completion)
            self._text, self._logprobs = b"", None

    def _send(self, choice: JsonObject, *, tokens: int) -> None:
        values: dict[str, bytes | int | float] = {
            "finish_reason": (choice["finish_reason"] or "None").encode(),
            "cumulative_logprob": choice.get("cumulative_logprob", 0.0),
            "logprobs": json.dumps(self._logprobs).encode(),
            "num_input_tokens": self.usage.prompt or self._prompt_tokens,
            "num_output_tokens": int(tokens),
        }
        extra = [(name, value) for name, value in values.items() if name in self._wanted]
        self._post([("text_output", self._text), *extra])

    def note_prompt(self, tokens: int) -> None:
        """Note the size of the prompt, which is known before the first token."""
        self._prompt_tokens = tokens

    def end(self) -> None:
        """Do nothing: the last chunk was sent."""
