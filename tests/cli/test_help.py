"""Help: every option of a command with its spellings, default and section."""

import pytest

from tpx.cli.analyze import COMMANDS
from tpx.cli.main import run
from tpx.options import fields_of
from tpx.serving.options import ServeConfig


@pytest.fixture
def page(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    """The help of `tpx serve`."""
    monkeypatch.setenv("COLUMNS", "200")
    assert run(["serve", "--help"]) == 0
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
    assert "[default: 8000]" in page
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
    for command in COMMANDS:
        assert f"  {command} " in out, command


def test_help_words_behind_values_are_still_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", "--http-port", "9000", "--help"]) == 0
    assert "--model-repository" in capsys.readouterr().out


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_can_be_shown(
    shell: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")  # the test may run below any
    assert run(["--show-completion", shell]) == 0
    assert "_TPX_COMPLETE" in capsys.readouterr().out
