"""Prompts that are made to have a length, and the length that is asked of the output."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.perf.clients.openai_server import Script, openai_server
from tests.perf.clients.running import level
from tpx.errors import MeasurementError, UsageError
from tpx.perf.inputs.prompts import Length, parse_length
from tpx.perf.inputs.texts import PROBES, WORDS, WordTokens, parse_word_tokens
from tpx.perf.results import LevelResult, Sessions

SERVICE = ("--service-kind", "openai", "-m", "llm", "--endpoint")
CHAT = "v1/chat/completions"


def asked(script: Script, *words: str, path: str = CHAT) -> LevelResult:
    with openai_server(script) as url:
        return level(*SERVICE, path, "-u", url, *words)


def measured(script: Script) -> list[dict[str, Any]]:
    """The bodies of the load, without those of the prompts that tell how the service counts."""
    return script.bodies[2 * PROBES :]


def contents(bodies: list[dict[str, Any]]) -> list[str]:
    return [body["messages"][0]["content"] for body in bodies]


@pytest.mark.parametrize("per_word", [1.0, 1.7])
def test_the_service_counts_as_many_tokens_as_are_wanted(per_word: float) -> None:
    script = Script(first_s=0, gap_s=0, per_word=per_word)
    words = ("--streaming", "--input-tokens", "400,sd=40", "--request-count", "60", "--prompts", "60")
    streaming = asked(script, *words).streaming
    assert streaming is not None
    found = streaming.figure("input_tokens")
    assert found is not None
    assert found.summary.mean_ns == pytest.approx(400, rel=0.04)
    assert 25 <= found.summary.std_ns <= 55
    assert len({*contents(measured(script))}) == 60


def test_output_tokens_are_asked_for_and_the_end_is_ignored() -> None:
    script = Script(first_s=0, gap_s=0, per_word=1)
    words = ("--input-tokens", "50", "--output-tokens", "30,sd=5", "--request-count", "40", "--prompts", "40")
    asked(script, *words)
    lengths = [body["max_tokens"] for body in measured(script)]
    assert 26 < sum(lengths) / 40 < 34
    assert len(set(lengths)) > 5
    assert all(body["ignore_eos"] is True for body in measured(script))


def test_a_text_of_the_users_may_have_a_length_of_output() -> None:
    script = Script(first_s=0)
    words = ("--output-tokens", "7", "--ignore-eos", "false", "--request-count", "1")
    asked(script, "--string-data", "Why?", *words, path="v1/completions")
    assert script.bodies == [{"model": "llm", "prompt": "Why?", "max_tokens": 7}]


def test_prompts_share_prefixes_in_turns() -> None:
    script = Script(first_s=0, per_word=1)
    words = ("--input-tokens", "20", "--prefix-tokens", "30", "--prefixes", "2", "--prompts", "6")
    asked(script, *words, "--request-count", "6")
    texts = contents(measured(script))
    # 12 tokens are the service's own, within the prefix
    assert {len(text.split()) for text in texts} == {18 + 20}
    assert len({tuple(text.split()[:18]) for text in texts}) == 2
    assert len({tuple(text.split()[18:]) for text in texts}) == 6


def test_prompts_are_turns_of_conversations(tmp_path: Path) -> None:
    script = Script(first_s=0, per_word=1, replies=True)
    words = ("--session-concurrency", "2", "--turns", "3", "--prompts", "6", "--input-tokens", "30")
    result = asked(script, *words, "--prefix-tokens", "20", "--word-tokens", "1")
    assert result.sessions == Sessions(total=2, finished=2, unsent_turns=0)
    users = [[m["content"] for m in b["messages"] if m["role"] == "user"] for b in script.bodies]
    first, second = (turns for turns in users if len(turns) == 3)
    assert [len(text.split()) for text in first] == [50, 30, 30]
    assert first[0].split()[:20] == second[0].split()[:20]
    assert len({*first, *second}) == 6
    assert [message["role"] for message in script.bodies[-1]["messages"]] == ["user", "assistant"] * 2 + [
        "user"
    ]


def test_the_same_seed_makes_the_same_prompts() -> None:
    def made(seed: str) -> list[str]:
        script = Script(first_s=0, per_word=1)
        asked(script, "--input-tokens", "20", "--request-count", "3", "--prompts", "3", "--seed", seed)
        return contents(measured(script))

    assert made("1") == made("1")
    assert made("1") != made("2")


def test_words_are_tokens_where_a_service_does_not_count() -> None:
    script = Script(first_s=0, usage=False)
    asked(script, "--input-tokens", "33", "--request-count", "2", "--prompts", "2")
    assert {len(text.split()) for text in contents(measured(script))} == {33}


def test_a_tokenizers_file_counts_the_tokens(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    pieces = tokenizers.Tokenizer(tokenizers.models.BPE())
    pieces.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    pieces.decoder = tokenizers.decoders.ByteLevel()
    pieces.train_from_iterator([" ".join(WORDS)], tokenizers.trainers.BpeTrainer(vocab_size=300))
    pieces.save(str(tmp_path / "tokenizer.json"))
    script = Script(first_s=0)
    words = ("--tokenizer", str(tmp_path / "tokenizer.json"), "--prompts", "4", "--request-count", "4")
    asked(script, "--input-tokens", "64", *words)
    counted = [len(pieces.encode(text).ids) for text in contents(script.bodies)]
    assert len(counted) == 4
    assert all(abs(count - 64) <= 1 for count in counted)


def test_a_refused_prompt_ends_the_run_with_the_services_words() -> None:
    with pytest.raises(MeasurementError, match="a prompt was refused: HTTP 404: no such model"):
        asked(Script(status=404), "--input-tokens", "20")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--input-tokens", "20", "--string-data", "x"), "both make the prompt"),
        (("--input-tokens", "20", "--input-data", __file__), "have lengths of their own"),
        (("--output-tokens", "20"), "give the prompt by --input-tokens or --string-data"),
        (("--input-tokens", "9", "--turns", "2"), "--turns requires --session-concurrency"),
        (
            ("--input-tokens", "9", "--turns", "4", "--prompts", "10", "--session-concurrency", "4"),
            "--prompts 10 of --turns 4 make 3 conversations",
        ),
        (("--prompts", "3"), "--prompts requires --input-tokens"),
        (("--ignore-eos", "false"), "--ignore-eos requires --output-tokens"),
        (("--input-tokens", "0"), "at least 1"),
        (("--input-tokens", "9", "--word-tokens", "0"), "more than 0 tokens"),
        (("--input-tokens", "9", "--word-tokens", "few"), "such as 1.3 or 1.3,12"),
        (("--input-tokens", "9", "--word-tokens", "1", "--tokenizer", "/x"), "both count the tokens"),
        (("--input-tokens", "20,mean=3"), "such as 512 or 512,sd=64"),
        (("--input-tokens", "many"), "such as 512 or 512,sd=64"),
        (("--input-tokens", "20", "--tokenizer", "/nowhere"), "--tokenizer /nowhere: "),
    ],
)
def test_options_that_do_not_fit_are_refused(words: tuple[str, ...], said: str) -> None:
    with openai_server(Script(first_s=0)) as url, pytest.raises(UsageError, match=re.escape(said)):
        level(*SERVICE, CHAT, "-u", url, *words)


def test_other_services_have_no_prompts() -> None:
    with pytest.raises(UsageError, match="--input-tokens requires --service-kind openai"):
        level("-m", "net", "--input-tokens", "20")


@pytest.mark.slow
def test_the_service_is_asked_once_and_not_by_every_process() -> None:
    script = Script(first_s=0, per_word=2)
    words = ("--concurrency-range", "4", "--request-count", "8", "--prompts", "2", "--workers", "2")
    asked(script, "--input-tokens", "20", *words)
    assert len(script.bodies) == 2 * PROBES + 8


def test_a_service_that_closes_behind_each_answer_is_asked_to_the_end() -> None:
    script = Script(first_s=0, gap_s=0, per_word=1, lingers=False)
    words = ("--streaming", "--input-tokens", "50", "--request-count", "4", "--prompts", "4")
    result = asked(script, *words)
    assert len(script.bodies) == 2 * PROBES + 4
    assert {len(text.split()) for text in contents(measured(script))} == {50 - 12}
    assert result.failed == 0


def test_what_words_take_may_be_said() -> None:
    script = Script(first_s=0, per_word=2)
    words = ("--input-tokens", "52", "--word-tokens", "2,12", "--prompts", "1", "--request-count", "1")
    asked(script, *words)
    (text,) = contents(script.bodies)
    assert len(text.split()) == 20


def test_a_length_is_written_as_it_is_read() -> None:
    for length in (Length(512), Length(512, 64.0)):
        assert parse_length(str(length)) == length
    assert parse_word_tokens(str(WordTokens(4 / 3, 12.5))) == WordTokens(4 / 3, 12.5)
