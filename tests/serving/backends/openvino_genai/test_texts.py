"""Texts of tokens: characters of several tokens, and stop texts."""

from collections.abc import Sequence

import pytest

from tpx.serving.backends.openvino_genai.texts import TextStream, TokenTexts

_BYTES = {1: b"a", 2: b" b", 3: b"\xc3", 4: b"\xa9", 5: b"xST", 6: b"OPy", 7: b"\xff", 8: b" c"}


def decode(rows: Sequence[Sequence[int]]) -> list[str]:
    """As tokenizers do: what is no character becomes U+FFFD, and the first word loses its space."""
    texts = [b"".join(_BYTES.get(token, b"") for token in tokens) for tokens in rows]
    return [text.decode(errors="replace").lstrip() for text in texts]


def stream(*stops: str) -> TextStream:
    return TextStream(TokenTexts(decode, [1], 9), stops)


def test_a_word_keeps_its_space_and_a_character_waits_for_all_of_its_tokens() -> None:
    text = stream()
    assert [text.add([token]) for token in (2, 3, 4, 2)] == [" b", "", "é", " b"]
    assert text.end() == ""
    assert text.add([3]) == ""
    assert text.end() == "\ufffd"


def test_bytes_that_never_become_a_character_do_not_hold_the_text_forever() -> None:
    text = stream()
    assert "".join(text.add([7]) for _ in range(8)) == "\ufffd" * 8


@pytest.mark.parametrize(
    ("stops", "tokens", "sent", "rest", "stopped"),
    [
        (["STOP"], [1, 5, 6, 2], ["a", "x", ""], "", True),
        (["STOP"], [5, 2], ["x", "ST b"], "", False),
        (["STOP", "b"], [1, 2], ["a", " "], "", True),
        (["STOP"], [5], ["x"], "ST", False),
    ],
)
def test_a_stop_text_is_held_back_until_it_is_sure(
    stops: list[str], tokens: list[int], sent: list[str], rest: str, stopped: bool
) -> None:
    text = stream(*stops)
    pieces = []
    for token in tokens:
        pieces.append(text.add([token]))
        if text.stopped:
            break
    assert pieces == sent
    assert text.end() == rest
    assert text.stopped == stopped


def test_the_texts_of_a_vocabulary_are_decoded_a_few_thousand_at_a_time() -> None:
    sizes: list[int] = []

    def count(rows: Sequence[Sequence[int]]) -> list[str]:
        sizes.append(len(rows))
        return ["a" if len(row) == 1 else f"a{row[1]}" for row in rows]

    texts = TokenTexts(count, [1], 20_000)
    decoded = len(sizes)
    assert max(sizes) < 10_000
    assert [texts.of([token]) for token in (0, 8192, 19_999)] == ["0", "8192", "19999"]
    assert len(sizes) == decoded
    assert texts.of([20_000]) == "20000"  # a model may have more tokens than its tokenizer
