"""`tpx COMMAND`: finding the command, and leaving everything else unimported."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.child import environment, tpx
from tests.serving.onnx_files import doubling, write_model
from tpx import __version__
from tpx.cli.commands import below
from tpx.cli.main import run

HEAVY = (
    "torch",
    "onnxruntime",
    "onnx",
    "grpc",
    "jinja2",
    "numpy",
    "click",
    "rich",
    "google.protobuf",
    "psutil",
)


def imported(*words: str) -> set[str]:
    """The modules that a command imports."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "tpx", *words],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if "|" in line}


def test_the_version_is_told_without_importing_anything_heavy() -> None:
    modules = imported("--version")
    assert "tpx.cli.main" in modules
    assert modules.isdisjoint(HEAVY)


@pytest.mark.parametrize(
    "words", [[], ["serve"], ["analyze"], ["perf"], ["analyze", "profile"], ["analyze", "rollback"]]
)
def test_help_imports_the_options_and_no_framework(words: list[str]) -> None:
    modules = imported(*words, "--help")
    heavy = {"torch", "onnxruntime", "onnx", "grpc", "jinja2", "tritonclient", "typer", "rich", "pydantic"}
    heavy |= {"numpy.random", "google.protobuf", "psutil"}
    assert modules.isdisjoint(heavy | {"tpx.analyzer.profile", "tpx.perf.run"})


@pytest.mark.parametrize("given", [None, "20"])
def test_a_command_leaves_the_environment_to_its_processes(
    given: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENBLAS_THREAD_TIMEOUT", raising=False)
    if given is not None:
        monkeypatch.setenv("OPENBLAS_THREAD_TIMEOUT", given)
    assert run(["quickstart", str(tmp_path / "models")]) == 0
    assert os.environ.get("OPENBLAS_THREAD_TIMEOUT") == given


@pytest.mark.parametrize(
    "words", [["--version"], ["-v"], ["-V"], ["version"], ["serve", "-V"], ["perf", "-V"]]
)
def test_the_version_is_the_packages(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(words) == 0
    assert capsys.readouterr().out == f"tpx {__version__}\n"


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"], ["help"]])
def test_help_lists_every_command(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(words) == 0
    out = capsys.readouterr().out
    assert all(command in out for command in below(()))


@pytest.mark.parametrize(("word", "meant"), [("serv", "serve"), ("pref", "perf"), ("analyse", "analyze")])
def test_a_slip_of_the_pen_is_told_the_right_command(
    word: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([word]) == 1
    assert f"tpx: no command '{word}' (did you mean '{meant}'?)" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["help", "nonsense"], ["analyze", "nonsense", "--help"]])
def test_help_for_nonsense_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(words) == 1
    err = capsys.readouterr().err
    assert "nonsense" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("word", ["--nonsense", "-x", "--port=3"])
def test_a_flag_in_the_place_of_a_command_is_refused(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([word]) == 1
    assert f"tpx: no command '{word}'" in capsys.readouterr().err


def test_nonsense_is_refused_with_the_list_of_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["nonsense", "--help"]) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith("tpx: no command 'nonsense'\n")
    assert "did you mean" not in captured.err
    assert "quickstart" in captured.out


def test_a_value_that_reads_help_is_a_value(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_model(tmp_path, "help", doubling(), config="max_batch_size: -1")
    ports = ["--http-port=0", "--grpc-port=0", "--metrics-port=0"]
    assert run(["serve", *ports, "--id", "help", "--model-repository", str(tmp_path)]) == 1
    assert "failed to load 1 of 1 models: help" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [["serve", "help"], ["help", "serve"], ["serve", "-h"], ["serve", "--help"], ["-h", "serve"]]
)
def test_help_for_a_command_may_be_asked_in_many_ways(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words) == 0
    assert "--model-repository" in capsys.readouterr().out


def test_a_reader_that_leaves_is_no_error() -> None:
    done = subprocess.run(
        f"{sys.executable} -m tpx serve --help | head -1",
        shell=True,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stderr == ""
    assert done.stdout


@pytest.mark.parametrize("words", ["version", "analyze --help-all"])
def test_a_full_disk_below_stdout_is_told(words: str) -> None:
    command = f"exec {sys.executable} -m tpx {words} > /dev/full"
    done = subprocess.run(
        command, shell=True, env=environment(), capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (1, "Error: cannot write to stdout: No space left on device\n")


def test_the_module_runs_as_the_command() -> None:
    done = tpx("--version")
    assert (done.returncode, done.stdout) == (0, f"tpx {__version__}\n")


@pytest.mark.parametrize("words", ["perf --help", "serve no.onnx", "perf -m net -u localhost:1"])
def test_closed_streams_are_no_error(words: str) -> None:
    command = f"exec {sys.executable} -m tpx {words} <&- >&- 2>&-"
    done = subprocess.run(command, shell=True, env=environment(), timeout=120, check=False)
    assert done.returncode == {"perf --help": 0, "serve no.onnx": 1}.get(words, 99)
