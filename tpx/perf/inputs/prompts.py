"""Prompts of wanted lengths for a language model, and the lengths of its outputs.

Lengths are in tokens. A tokenizer's file counts them; without one, prompts are made of English words, and the
service's own count of some prompts tells how many tokens a word takes.
"""

from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import numpy as np
import orjson

from tpx.errors import UsageError
from tpx.options import Options, check_range, given, option
from tpx.perf.clients.base import Client
from tpx.perf.clients.endpoint import Endpoint
from tpx.perf.clients.openai import INPUT, SESSION, text_body
from tpx.perf.inputs.steps import DataSet, DataStream, Step
from tpx.perf.inputs.texts import (
    TextMaker,
    TokenizerTexts,
    WordTexts,
    WordTokens,
    learn_tokens,
    parse_word_tokens,
    text_tensor,
)
from tpx.perf.pace import parse_spread
from tpx.protocol.json_values import JsonObject


@dataclass(frozen=True, slots=True)
class Length:
    """A number of tokens: normally distributed around a mean, and at least 1."""

    mean: int
    deviation: float = 0.0

    def __str__(self) -> str:
        return f"{self.mean}" + (f",sd={self.deviation:g}" if self.deviation else "")


def parse_length(text: str) -> Length:
    """Parse `512` or `512,sd=64`."""
    with suppress(ValueError):
        mean, deviation = parse_spread(text)
        if mean >= 1 and mean.is_integer():
            return Length(int(mean), deviation)
    raise ValueError("expected a number of tokens of at least 1 such as 512 or 512,sd=64")


class PromptSpec(Options):
    """Options for made prompts; they need --service-kind openai."""

    input_tokens: Length | None = option(
        None,
        "make prompts of this many tokens, with a standard deviation if given",
        metavar="N[,sd=N]",
        parse=parse_length,
    )
    output_tokens: Length | None = option(
        None,
        "request this many output tokens, with max_tokens and ignore_eos",
        metavar="N[,sd=N]",
        parse=parse_length,
    )
    prompts: int = option(
        100,
        "number of different prompts, which are sent in turns; of a workload's requests the first ones (all)",
    )
    turns: int = option(
        1, "prompts of each conversation, which one user sends in turn (--session-concurrency)", metavar="N"
    )
    prefix_tokens: int = option(
        0, "tokens at the beginning of prompts that several share, added to the others"
    )
    prefixes: int = option(1, "number of different prefixes; prompts take them in turns")
    tokenizer: Path | None = option(
        None,
        "tokenizer.json that counts the tokens (needs the package tokenizers); default: words, by the "
        "service's count of them",
        metavar="FILE",
    )
    word_tokens: WordTokens | None = option(
        None,
        "tokens of the service for each word of a prompt, and those that it adds to every prompt; default: "
        "learnt from its own count of twelve prompts",
        metavar="N[,N]",
        parse=parse_word_tokens,
    )
    ignore_eos: bool = option(True, "send ignore_eos with --output-tokens; false for services that refuse it")

    def __post_init__(self) -> None:
        """Raise UsageError for numbers out of range, and for options without prompts to make."""
        check_range(self, "prompts", "prefixes", "turns", above=0)
        check_range(self, "prefix_tokens", least=0)
        for name in ("prefix_tokens", "prefixes", "turns"):
            if name in given(self) and self.input_tokens is None:
                raise UsageError(f"--{name.replace('_', '-')} requires --input-tokens")
        if self.tokenizer is not None and self.word_tokens is not None:
            raise UsageError("--tokenizer and --word-tokens both count the tokens")

    @property
    def conversations(self) -> int:
        """Number of conversations that the prompts make."""
        return -(-self.prompts // self.turns)

    @property
    def misplaced(self) -> str:
        """An option that has no effect, with those that it needs, if no workload is given; or empty."""
        for name in ("prompts", "tokenizer", "word_tokens"):
            if name in given(self) and self.input_tokens is None:
                return f"--{name.replace('_', '-')} requires --input-tokens, or a workload in --input-data"
        if "ignore_eos" in given(self) and self.output_tokens is None:
            return "--ignore-eos requires --output-tokens, or a workload in --input-data"
        return ""

    @property
    def wanted(self) -> bool:
        """True if requests are made by these options."""
        return self.input_tokens is not None or self.output_tokens is not None


async def learn_words(
    spec: PromptSpec, usual: int, seed: int, endpoint: Endpoint, client: Client
) -> PromptSpec:
    """Return `spec` with the tokens of words by the service's count, unless it says how tokens are counted.

    `usual` is the mean length of the prompts. With the result, workers and later measurements of the service
    need not ask it. Raises MeasurementError if the service refuses a prompt.
    """
    if spec.tokenizer is not None or spec.word_tokens is not None:
        return spec
    return replace(spec, word_tokens=await learn_tokens(usual, seed, endpoint, client))


def make_prompts(spec: PromptSpec, text: str | None, seed: int, endpoint: Endpoint) -> DataSet:
    """Return requests with prompts of the wanted lengths, or with `text`, and wanted lengths of the output.

    Raises UsageError for options that do not fit.
    """
    rng = np.random.default_rng(seed)
    notices: list[str] = []
    texts = [text or ""]
    if spec.input_tokens is not None:
        texts, notices = _make_texts(spec, spec.input_tokens, rng)
    bodies = [text_body(each, endpoint) for each in texts]
    if spec.output_tokens is not None:
        for body, length in zip(bodies, _draw(rng, spec.output_tokens, len(bodies)), strict=True):
            body |= bound_output(spec, length)

    def make(index: int) -> Step:
        inputs = [text_tensor(INPUT.name, orjson.dumps(bodies[index]))]
        if endpoint.sessions:
            inputs.append(text_tensor(SESSION.name, b"%d" % (index // spec.turns)))
        return Step(where=f"prompt {index}", inputs=tuple(inputs))

    return DataSet(streams=(DataStream(len(bodies), make),), made=True, notices=tuple(notices))


def bound_output(spec: PromptSpec, tokens: int) -> JsonObject:
    """Return the members of a body that request this many tokens."""
    return {"max_tokens": tokens} | ({"ignore_eos": True} if spec.ignore_eos else {})


def _make_texts(spec: PromptSpec, length: Length, rng: "np.random.Generator") -> tuple[list[str], list[str]]:
    """Return the prompts, and a notice of how their tokens were counted."""
    maker, notice = choose_maker(spec)
    prefixes = [
        maker.make(rng, spec.prefix_tokens, first=True)
        for _ in range(spec.prefixes if spec.prefix_tokens else 0)
    ]
    texts = [
        maker.make(rng, tokens, first=not (prefixes or i % spec.turns))
        for i, tokens in enumerate(_draw(rng, length, spec.prompts))
    ]
    for i in range(0, len(texts) if prefixes else 0, spec.turns):  # a conversation begins with it
        texts[i] = f"{prefixes[i // spec.turns % len(prefixes)]} {texts[i]}"
    return texts, [notice]


def choose_maker(spec: PromptSpec) -> tuple[TextMaker, str]:
    """Return what makes texts, and a notice of how it counts tokens."""
    if spec.tokenizer is not None:
        return TokenizerTexts(spec.tokenizer), f"tokens of prompts are counted by {spec.tokenizer}"
    tokens = spec.word_tokens or WordTokens()
    if tokens == WordTokens():
        notice = "prompts are words, each taken as one token"
    else:
        notice = f"prompts are words, of which the service counts {tokens.per_word:.2f} tokens each"
    return WordTexts(tokens), notice


def _draw(rng: "np.random.Generator", length: Length, count: int) -> list[int]:
    drawn = rng.normal(length.mean, length.deviation, count)
    return cast("list[int]", np.maximum(np.rint(drawn), 1).astype(int).tolist())
