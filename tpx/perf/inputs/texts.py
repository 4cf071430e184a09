"""Texts of wanted lengths in tokens: of a tokenizer's, or of words, of which the service's own count of some
prompts tells how many tokens each takes.
"""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Protocol

import numpy as np
import orjson

from tpx.errors import MeasurementError, UsageError, WireError
from tpx.perf.clients.base import Client, Prepared, Slot, ignore_loss
from tpx.perf.clients.endpoint import Endpoint
from tpx.perf.clients.openai import INPUT, OpenAiAnswer, text_body
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


class TextMaker(Protocol):
    """Makes texts of wanted lengths."""

    def make(self, rng: "np.random.Generator", tokens: int, *, first: bool) -> str:
        """Return a text of this many tokens; the `first` of a prompt counts what the service adds."""

    def count(self, text: str) -> int:
        """Return the tokens of a text, at least 1."""


class WordTexts:
    """Implements TextMaker with words."""

    def __init__(self, tokens: WordTokens) -> None:
        self._tokens = tokens

    def make(self, rng: "np.random.Generator", tokens: int, *, first: bool) -> str:
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

    def make(self, rng: "np.random.Generator", tokens: int, *, first: bool) -> str:  # noqa: ARG002 (unknown)
        """Return a text of this many tokens; one more or less where its end merges differently."""
        ids: list[int] = []
        while len(ids) < tokens:
            more = " " + " ".join(rng.choice(WORDS, tokens))
            ids += self._tokenizer.encode(more, add_special_tokens=False).ids
        return str(self._tokenizer.decode(ids[:tokens]))

    def count(self, text: str) -> int:
        return max(1, len(self._tokenizer.encode(text, add_special_tokens=False).ids))


async def learn_tokens(usual: int, seed: int, endpoint: Endpoint, client: Client) -> WordTokens:
    """Return the tokens of words by the service's count; `usual` is the mean length of the prompts to make.

    Raises MeasurementError if the service refuses a prompt.
    """
    rng = np.random.default_rng(seed)
    probed = PROBED_WORDS, max(2 * PROBED_WORDS, min(usual // 2, MOST_PROBED_WORDS))
    few, many = [await _count_mean(rng, n, endpoint, client) for n in probed]
    per_word = (many - few) / (probed[1] - probed[0])
    return WordTokens(per_word, few - per_word * probed[0]) if per_word > 0 else WordTokens()


async def _count_mean(rng: "np.random.Generator", words: int, endpoint: Endpoint, client: Client) -> float:
    """Return how many tokens the service counts in prompts of so many words, on average."""
    texts = [" ".join(rng.choice(WORDS, words)) for _ in range(PROBES)]
    return fmean([await _count(text, endpoint, client) for text in texts])


async def _count(text: str, endpoint: Endpoint, client: Client) -> int:
    """Return the tokens that the service counts in a prompt; 0 if it does not count."""
    body = text_body(text, endpoint) | {"max_tokens": 1}
    tensors = [text_tensor(INPUT.name, orjson.dumps(body))]
    request = await client.prepare(tensors)
    (slot,) = await client.open(1)
    try:
        answer = await _ask(slot, request)
    except WireError:
        if not slot.unanswered:
            raise
        await client.renew(slot, None)
        answer = await _ask(slot, request)
    if answer.status != client.success:
        failure = client.failure(answer)
        raise MeasurementError(f"--input-tokens: a prompt was refused: {failure.code}: {failure.message}")
    return answer.usage[0]


async def _ask(slot: Slot, request: Prepared) -> OpenAiAnswer:
    ended: asyncio.Future[OpenAiAnswer] = asyncio.get_running_loop().create_future()

    def lose(error: WireError) -> None:
        if not ended.done():
            ended.set_exception(error)

    slot.on_lost = lose
    slot.send(request, ended.set_result)
    try:
        return await asyncio.wait_for(ended, PROBE_S)
    except TimeoutError as exc:
        raise MeasurementError(f"--input-tokens: no answer to a prompt within {PROBE_S:g} s") from exc
    finally:
        slot.on_lost = ignore_loss


def text_tensor(name: str, element: bytes) -> Tensor:
    """Return a tensor of one element of bytes."""
    return Tensor(name, "BYTES", (1,), encode_bytes([element]))
