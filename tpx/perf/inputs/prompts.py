"""Prompts of wanted lengths for a language model, and the lengths of its outputs.

Lengths are in tokens. A tokenizer's file counts them; without one, prompts are made of English words, and the
service's own count of some prompts tells how many tokens a word takes.
"""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Protocol, cast

import numpy as np
import orjson

from tpx.errors import MeasurementError, UsageError, WireError
from tpx.options import check_range, given, option
from tpx.perf.clients.base import Client, Prepared, Slot
from tpx.perf.clients.endpoint import Endpoint
from tpx.perf.clients.openai import INPUT, SESSION, OpenAiAnswer, text_body
from tpx.perf.inputs.steps import DataSet, DataStream, Step
from tpx.perf.pace import parse_spread
from tpx.protocol.json_values import JsonObject
from tpx.protocol.tensors import Tensor, encode_bytes

_TEXT = """
able about above across after again against air along also always among animal answer apple around ask
away back bank base bear beauty become before began behind below best better between bird black blue
board boat body book both bring brother brown build busy call came can care carry catch cause center
change chair child city class clear close cloud cold color come common complete contain correct country
course cover cross current dark day deep develop direct distant door draw dream drive during early earth
east easy end enough even evening event ever every example eye face family farm fast father feel field
figure fill final find fire first fish five floor flower follow food force forest form found four free
friend front full game garden gave general give glass gold good govern grass gray great green ground
group grow half hand happy hard heart heavy help high hill history hold home horse hour house human
hundred hunt idea inch island keep kind king knew land language large last late laugh law lead learn
leave letter life light line list listen little live long lost love machine main many map mark market
matter measure meet middle might mile mind minute money month moon morning mother mountain move music
name nation near never next night north note notice number object ocean often old open order paper part
pass people perhaps person picture piece place plain plant play point poor power present problem produce
"""
WORDS = _TEXT.split()
"""Common English words, which most tokenizers take as one token each."""
PROBED_WORDS = 16
MOST_PROBED_WORDS = 512
PROBES = 6
"""Words of the short and the long prompts that tell how the service counts, and the number of each; the
long ones have half as many words as tokens are wanted."""
PROBE_S = 120.0


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


@dataclass(frozen=True, slots=True)
class WordTokens:
    """Tokens that a service counts for each word of a prompt, and those that it adds to every prompt."""

    per_word: float = 1.0
    added: float = 0.0

    def __str__(self) -> str:
        return f"{self.per_word!r},{self.added!r}"


def parse_word_tokens(text: str) -> WordTokens:
    """Parse `1.3` or `1.3,12`."""
    per_word, _, added = text.partition(",")
    try:
        found = WordTokens(float(per_word), float(added or 0))
    except ValueError:
        raise ValueError("expected numbers of tokens such as 1.3 or 1.3,12") from None
    if not (0 < found.per_word < 1e6 and abs(found.added) < 1e9):
        raise ValueError("expected more than 0 tokens for each word, such as 1.3")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSpec:
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


class TextMaker(Protocol):
    """Makes texts of wanted lengths."""

    def make(self, rng: np.random.Generator, tokens: int, *, first: bool) -> str:
        """Return a text of this many tokens; the `first` of a prompt counts what the service adds."""

    def count(self, text: str) -> int:
        """Return the tokens of a text, at least 1."""


class WordTexts:
    """Implements TextMaker with words."""

    def __init__(self, tokens: WordTokens) -> None:
        self._tokens = tokens

    def make(self, rng: np.random.Generator, tokens: int, *, first: bool) -> str:
        words = round((tokens - (self._tokens.added if first else 0)) / self._tokens.per_word)
        return " ".join(rng.choice(WORDS, max(words, 1)))

    def count(self, text: str) -> int:
        return max(1, round(len(text.split()) * self._tokens.per_word))


class TokenizerTexts:
    """Implements TextMaker; a tokenizer's file counts the tokens."""

    def __init__(self, path: Path) -> None:
        """Raises UsageError if the file or the package is missing."""
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise UsageError("--tokenizer needs the package tokenizers: pip install tokenizers") from None
        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as exc:  # the package raises plain exceptions
            raise UsageError(f"--tokenizer {path}: {exc}") from exc

    def make(self, rng: np.random.Generator, tokens: int, *, first: bool) -> str:  # noqa: ARG002 (unknown)
        """Return a text of this many tokens; one more or less where its end merges differently."""
        ids: list[int] = []
        while len(ids) < tokens:
            more = " " + " ".join(rng.choice(WORDS, tokens))
            ids += self._tokenizer.encode(more, add_special_tokens=False).ids
        return str(self._tokenizer.decode(ids[:tokens]))

    def count(self, text: str) -> int:
        return max(1, len(self._tokenizer.encode(text, add_special_tokens=False).ids))


async def learn_words(
    spec: PromptSpec, usual: int, seed: int, endpoint: Endpoint, client: Client
) -> PromptSpec:
    """Return `spec` with the tokens of words by the service's count, unless it says how tokens are counted.

    `usual` is the mean length of the prompts. With the result, workers and later measurements of the service
    need not ask it. Raises MeasurementError if the service refuses a prompt.
    """
    if spec.tokenizer is not None or spec.word_tokens is not None:
        return spec
    rng = np.random.default_rng(seed)
    probed = PROBED_WORDS, max(2 * PROBED_WORDS, min(usual // 2, MOST_PROBED_WORDS))
    few, many = [await _count_mean(rng, n, endpoint, client) for n in probed]
    per_word = (many - few) / (probed[1] - probed[0])
    learnt = WordTokens(per_word, few - per_word * probed[0]) if per_word > 0 else WordTokens()
    return replace(spec, word_tokens=learnt)


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
        inputs = [_tensor(INPUT.name, orjson.dumps(bodies[index]))]
        if endpoint.sessions:
            inputs.append(_tensor(SESSION.name, b"%d" % (index // spec.turns)))
        return Step(where=f"prompt {index}", inputs=tuple(inputs))

    return DataSet(streams=(DataStream(len(bodies), make),), made=True, notices=tuple(notices))


def bound_output(spec: PromptSpec, tokens: int) -> JsonObject:
    """Return the members of a body that request this many tokens."""
    return {"max_tokens": tokens} | ({"ignore_eos": True} if spec.ignore_eos else {})


def _make_texts(spec: PromptSpec, length: Length, rng: np.random.Generator) -> tuple[list[str], list[str]]:
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


def _draw(rng: np.random.Generator, length: Length, count: int) -> list[int]:
    drawn = rng.normal(length.mean, length.deviation, count)
    return cast("list[int]", np.maximum(np.rint(drawn), 1).astype(int).tolist())


async def _count_mean(rng: np.random.Generator, words: int, endpoint: Endpoint, client: Client) -> float:
    """Return how many tokens the service counts in prompts of so many words, on average."""
    texts = [" ".join(rng.choice(WORDS, words)) for _ in range(PROBES)]
    return fmean([await _count(text, endpoint, client) for text in texts])


async def _count(text: str, endpoint: Endpoint, client: Client) -> int:
    """Return the tokens that the service counts in a prompt; 0 if it does not count."""
    body = text_body(text, endpoint) | {"max_tokens": 1}
    tensors = [_tensor(INPUT.name, orjson.dumps(body))]
    request = await client.prepare(tensors)
    (slot,) = await client.open(1)
    answer = await _ask(slot, request)
    if answer.status != client.success:
        failure = client.failure(answer)
        raise MeasurementError(f"--input-tokens: a prompt was refused: {failure.code}: {failure.message}")
    return answer.usage[0]


async def _ask(slot: Slot, request: Prepared) -> OpenAiAnswer:
    ended: asyncio.Future[OpenAiAnswer] = asyncio.get_running_loop().create_future()
    slot.send(request, ended.set_result)
    try:
        return await asyncio.wait_for(ended, PROBE_S)
    except TimeoutError as exc:
        raise WireError(f"--input-tokens: no answer to a prompt within {PROBE_S:g} s") from exc


def _tensor(name: str, element: bytes) -> Tensor:
    return Tensor(name, "BYTES", (1,), encode_bytes([element]))
