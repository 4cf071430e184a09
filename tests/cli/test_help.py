"""Help: the options of a command with their spellings, defaults and sections, as wide as the terminal."""

import os
import pty
import subprocess
import sys

import pytest

from tests.e2e.child import environment
from tpx.cli.commands import COMMANDS, below
from tpx.cli.help import options_of
from tpx.cli.main import run
from tpx.options import fields_of
from tpx.serving.options import ServeConfig


@pytest.fixture
def page(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    """The whole help of `tpx serve`."""
    monkeypatch.setenv("COLUMNS", "200")
    assert run(["serve", "--help-all"]) == 0
    return capsys.readouterr().out


def test_every_option_is_there_with_every_spelling(page: str) -> None:
    for field in fields_of(ServeConfig):
        if field.option.positional:
            assert field.option.metavar in page
        for spelling in field.spellings if not field.option.positional else ():
            assert spelling in page


def test_every_section_is_there(page: str) -> None:
    for section in {field.section for field in fields_of(ServeConfig)}:
        assert f"{section}:" in page


def test_defaults_are_told_and_switches_say_how_to_turn_them_off(page: str) -> None:
    assert "default: 8000; 0<=x<=65535]" in page
    assert "--no-exit-on-error" in page
    assert "none|low|medium|high" in page


def test_the_first_lines_say_what_it_does_and_how(page: str) -> None:
    assert "Serve models over HTTP and gRPC as Triton does." in page
    assert "tpx serve model.onnx" in page


@pytest.mark.parametrize(
    "words", [["perf"], ["analyze"], ["analyze", "profile"], ["analyze", "apply"], ["quickstart"]]
)
def test_the_other_commands_have_help_too(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*words, "--help"]) == 0
    assert "Usage: tpx " + " ".join(words) in capsys.readouterr().out


def test_every_command_of_the_analyzer_is_listed_with_what_it_does(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["analyze", "--help"]) == 0
    out = capsys.readouterr().out
    for command in below(("analyze",)):
        assert f"  {command} " in out, command


def test_help_words_behind_values_are_still_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", "--http-port", "9000", "--help"]) == 0
    assert "--model-repository" in capsys.readouterr().out


LARGE = [("serve",), ("perf",), ("analyze", "profile")]


@pytest.mark.parametrize("path", LARGE)
def test_the_short_help_has_the_options_that_people_use_and_says_how_to_see_more(
    path: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    fields = options_of(COMMANDS[path])
    common = [field for field in fields if field.option.common]
    assert 18 <= len(common) <= 26
    assert run([*path, "--help"]) == 0
    short = capsys.readouterr().out
    assert (
        f"{len(common)} of {len(fields)} options. For all of them: tpx {' '.join(path)} --help-all."
        in " ".join(short.split())
    )
    assert run([*path, "--help-all"]) == 0
    whole = capsys.readouterr().out
    for field in fields:
        assert field.flag in whole or field.option.positional
    left_out = [field.flag for field in fields if f"{field.flag} " not in short and field.flag in whole]
    assert len(left_out) > len(common)


@pytest.mark.parametrize(
    ("words", "there", "absent"),
    [
        (["perf", "--help", "tls"], "--ssl-https-verify-peer", "--concurrency-range"),
        (["perf", "--help", "input", "data"], "--string-length", "--percentile"),
        (["serve", "--help", "keepalive"], "--grpc-keepalive-time ", "--http-port"),
        (["serve", "--help", "--http-port"], "--http-port INTEGER", "--log-file"),
        (["analyze", "profile", "--help", "docker"], "--triton-docker-image", "--budget"),
        (["help", "serve", "metrics"], "--metrics-port", "--grpc-port"),
    ],
)
def test_help_about_a_section_or_a_word_has_only_what_is_asked_for(
    words: list[str], there: str, absent: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words) == 0
    page = capsys.readouterr().out
    assert there in page
    assert absent not in page


def test_help_about_nothing_names_the_sections(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["perf", "--help", "tracs"]) == 1
    told = capsys.readouterr().err
    assert "tpx perf: no section or option about 'tracs'" in told
    assert "sections: target, load," in told


@pytest.mark.parametrize("path", [(), *COMMANDS])
@pytest.mark.parametrize("width", [80, 120])
def test_no_page_is_wider_than_the_terminal(
    path: tuple[str, ...], width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    assert run([*path, "--help-all"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if len(line) > width] == []
    assert all("\033" not in line for line in lines)


def _on_terminal(**variables: str) -> str:
    """The help of `tpx doctor` as a terminal is sent it."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "tpx", "doctor", "--help"],
        stdout=theirs,
        env=environment() | {"TERM": "xterm"} | variables,
    ) as child:
        os.close(theirs)
        text = b""
        while True:
            try:
                piece = os.read(ours, 65536)
            except OSError:  # the terminal's end on Linux
                break
            if not piece:
                break
            text += piece
        assert child.wait() == 0
    os.close(ours)
    return text.decode()


def test_a_terminal_gets_colours_unless_it_asks_for_none() -> None:
    assert "\033[1mUsage:\033[0m tpx doctor" in _on_terminal()
    assert "\033" not in _on_terminal(NO_COLOR="1")
    assert "\033" not in _on_terminal(TERM="dumb")


def test_the_commands_below_a_command_are_listed_at_the_top(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    top = capsys.readouterr().out
    assert "  perf compare  " in top
    assert "--version" in top
    assert run(["perf", "--help"]) == 0
    assert "Commands:\n  compare  " in capsys.readouterr().out
