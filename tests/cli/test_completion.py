"""Completion: what each shell is told, by the scripts that it is given."""

import os
import pty
import re
import shutil
import signal
import sys
from pathlib import Path

import pytest

from tests.serving.live import serving
from tests.serving.onnx_files import doubling, write_model
from tpx.cli.completion import candidates
from tpx.cli.main import run


def found(*words: str) -> list[str]:
    """Return what the last word may become."""
    return [item.value for item in candidates(words[:-1], words[-1])]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_is_shown_for_each_shell(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--show-completion", shell]) == 0
    assert "_TPX_COMPLETE" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["an"], ["analyze"]),
        (["analyze", "pr"], ["profile"]),
        (["perf", "co"], ["compare"]),
        (["serve", "--http-p"], ["--http-port"]),
        (["serve", "--model-control-mode", ""], ["none", "poll", "explicit", "lazy"]),
        (["serve", "--model-control-mode=e"], ["--model-control-mode=explicit"]),  # zsh, fish
        (["serve", "--model-control-mode", "=", "e"], ["explicit"]),  # bash
        (["serve", "--model-control-mode", "="], ["none", "poll", "explicit", "lazy"]),
        (["perf", "--help-"], ["--help-all"]),
        (["nonsense", "x"], []),
    ],
)
def test_commands_options_and_choices_are_completed(words: list[str], expected: list[str]) -> None:
    assert found(*words) == expected


def test_files_are_left_to_the_shell() -> None:
    (item,) = candidates(["serve", "--log-file"], "lo")
    assert (item.value, item.type) == ("lo", "file")
    assert [item.type for item in candidates(["serve"], "m")] == ["file"]


def test_models_of_the_repository_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("mnist", "alexnet", ".git"):
        (tmp_path / "models" / name).mkdir(parents=True)
    assert found("serve", "--model-repository", str(tmp_path / "models"), "--load-model", "") == [
        "alexnet",
        "mnist",
    ]
    monkeypatch.chdir(tmp_path)
    assert found("analyze", "profile", "--profile-models", "m") == ["mnist"]
    assert found("analyze", "profile", "--profile-models", "mnist,a") == ["mnist,alexnet"]
    assert found("analyze", "profile", "--model-repository=nowhere", "--profile-models", "m") == []


def test_models_of_the_server_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_model(tmp_path, "net", doubling())
    with serving(tmp_path) as live:
        url = f"127.0.0.1:{live.http_port}"
        assert found("perf", "-u", url, "-m", "n") == ["net"]
        assert found("perf", f"--url={url}", "-m", "x") == []
        monkeypatch.setenv("TPX_PERF_URL", url)
        assert found("perf", "-m", "n") == ["net"]
    assert found("perf", "-u", url, "-m", "") == []


def test_installing_writes_the_script_and_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SHELL", "/bin/bash")
    (tmp_path / ".bashrc").write_text("alias ll='ls -l'")
    for _ in range(2):
        assert run(["--install-completion"]) == 0
    script = tmp_path / ".local/share/tpx/completion.bash"
    assert (tmp_path / ".bashrc").read_text() == f"alias ll='ls -l'\nsource \"{script}\"\n"
    assert "_TPX_COMPLETE" in script.read_text()
    assert str(script) in capsys.readouterr().out


@pytest.mark.parametrize(("shell", "told"), [("bahs", "did you mean 'bash'"), ("", "SHELL is not set")])
def test_an_unknown_shell_is_refused_with_those_that_are_known(
    shell: str, told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SHELL", "")
    assert run(["--install-completion", *([shell] if shell else [])]) == 1
    err = capsys.readouterr().err
    assert told in err
    assert "bash, zsh, fish" in err


SHELLS = {
    "bash": (["bash", "--norc"], "source <(tpx --show-completion bash)"),
    "zsh": (["zsh", "-f"], 'autoload -Uz compinit; compinit -u; eval "$(tpx --show-completion zsh)"'),
    "fish": (["fish", "--no-config"], "tpx --show-completion fish | source"),
}
_ESCAPES = re.compile(rb"\x1b\][^\x07]*\x07|\x1b\[[0-9;?]*[A-Za-z]|\x1b\(.|\x1b.|[\x08\r]")


class Shell:
    """A shell on a terminal, in which tpx is completed."""

    def __init__(self, name: str, home: Path) -> None:
        words, setup = SHELLS[name]
        variables = {"PATH": f"{home}:/usr/bin:/bin", "HOME": str(home), "TERM": "xterm", "PYTHONPATH": "."}
        self.pid, self._terminal = pty.fork()
        if self.pid == 0:
            os.execvpe(words[0], words, variables)
        self.type(f"{setup}; echo rea''dy\n")
        self.read_until(b"\nready")

    def type(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def read_until(self, expected: bytes) -> None:
        """Read what the shell shows, without its movements of the cursor; the test's timeout ends it."""
        shown = b""
        while expected not in _ESCAPES.sub(b"", shown):
            piece = os.read(self._terminal, 65536)
            if re.search(rb"\x1b\[0?c", piece):  # fish asks what the terminal is
                self.type("\x1b[?62;c")
            shown += piece

    def close(self) -> None:
        os.close(self._terminal)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


@pytest.mark.e2e
@pytest.mark.parametrize("name", SHELLS)
def test_a_shell_completes_with_the_script(name: str, tmp_path: Path) -> None:
    if shutil.which(name) is None:
        pytest.skip(f"no {name} (Debian: {name})")
    command = tmp_path / "tpx"
    command.write_text(f'#!/bin/sh\ncd {Path.cwd()}\nexec {sys.executable} -m tpx "$@"\n')
    command.chmod(0o755)
    shell = Shell(name, tmp_path)
    try:
        for typed, completed in (
            ("tpx analyze prof\t", b"tpx analyze profile "),
            ("--run-config-search-mode=bru\t", b"--run-config-search-mode=brute"),
        ):
            shell.type(typed)
            shell.read_until(completed)
    finally:
        shell.close()
