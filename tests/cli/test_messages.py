"""Messages: whole words on a terminal, whole lines in a pipe."""

import io
import sys

import pytest

from tpx.cli.messages import complain, fitted, spell_missing_characters, terminal_width


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_lines_are_broken_between_words_and_indented_by_two_more() -> None:
    text = "Error: no such thing as this one\n  short\n  95% CI: 1 to 2 infer/s (few)\n"
    assert fitted(text, 20) == (
        "Error: no such thing\n  as this one\n  short\n  95% CI: 1 to 2\n    infer/s (few)\n"
    )
    assert fitted(text, None) == text


def test_no_word_is_broken_however_long_it_is() -> None:
    assert fitted("see --metrics-url=http://localhost:8002/metrics", 20) == (
        "see\n  --metrics-url=http://localhost:8002/metrics"
    )


def test_a_message_is_as_wide_as_the_terminal_that_stderr_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "12")
    complain("Error: one two three")
    assert capsys.readouterr().err == "Error: one two three\n"
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    complain("Error: one two three")
    assert terminal.getvalue() == "Error: one\n  two three\n"
    assert terminal_width(terminal) == 12


def test_signs_that_an_encoding_lacks_are_spelled(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = {}
    for encoding in ("ascii", "latin-1", "utf-8"):
        raw = io.BytesIO()
        monkeypatch.setattr("sys.stdout", io.TextIOWrapper(raw, encoding=encoding))
        spell_missing_characters()
        sys.stdout.write("p99 638 \u00b5s \u00b1 2 \u2705")
        sys.stdout.flush()
        shown[encoding] = raw.getvalue().decode(encoding)
    assert shown == {
        "ascii": "p99 638 us +- 2 \\u2705",
        "latin-1": "p99 638 \u00b5s \u00b1 2 \\u2705",
        "utf-8": "p99 638 \u00b5s \u00b1 2 \u2705",
    }
