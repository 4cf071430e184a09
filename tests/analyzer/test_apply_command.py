"""`tpx analyze apply` and `rollback` as commands: which run, which configuration, asked or not."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.analyzer.test_conclusion import variant
from tpx.analyzer.results.run import ModelRun, Run
from tpx.cli.analyze import main
from tpx.cli.analyze_apply import choose
from tpx.cli.analyze_options import ApplyConfig
from tpx.errors import UsageError

Replay = Callable[..., Run]
CONFIG = 'platform: "onnxruntime_onnx"\nmax_batch_size: 0\n'


@pytest.fixture
def words(replay: Replay, tmp_path: Path) -> list[str]:
    """A finished run in `tmp_path` and a repository beside it."""
    replay()
    (tmp_path / "models" / "alexnet").mkdir(parents=True)
    (tmp_path / "models" / "alexnet" / "config.pbtxt").write_text(CONFIG)
    return ["-e", str(tmp_path), "-m", str(tmp_path / "models")]


def text(tmp_path: Path) -> str:
    return (tmp_path / "models" / "alexnet" / "config.pbtxt").read_text()


def test_the_recommended_configuration_is_applied_and_rolled_back(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["apply", *words, "--yes"]) == 0
    out = capsys.readouterr().out
    assert "+  count: 5" in out
    assert "Undo with: tpx analyze rollback alexnet" in out
    assert "alexnet_config_4" in text(tmp_path)
    assert main(["rollback", "alexnet", *words[2:], "--yes"]) == 0
    assert text(tmp_path) == CONFIG


def test_a_run_is_rolled_back_as_it_was_applied(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["rollback", *words, "--yes"]) == 1
    assert "no model with a configuration of this run" in capsys.readouterr().err
    assert main(["apply", *words, "--yes"]) == 0
    assert main(["rollback", *words, "--yes"]) == 0
    assert text(tmp_path) == CONFIG


def test_what_can_be_rolled_back_is_listed(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["rollback", *words[2:]]) == 0
    assert capsys.readouterr().out == f"Nothing to roll back in {tmp_path / 'models'}.\n"
    assert main(["apply", *words, "--yes"]) == 0
    capsys.readouterr()
    assert main(["rollback", *words[2:]]) == 0
    out = capsys.readouterr().out
    assert "  alexnet: alexnet_config_4 is applied\n" in out
    assert "tpx analyze rollback alexnet --model-repository" in out
    assert text(tmp_path) != CONFIG


def test_a_file_by_hand_keeps_its_layout_and_comes_back_byte_for_byte(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "models" / "alexnet" / "config.pbtxt"
    by_hand = b"""# of the vision team
name:  "alexnet"  # as its directory
platform: "onnxruntime_onnx"
instance_group [ { count: 1, kind: KIND_CPU } ]  # one was enough
max_batch_size:0 # no newline behind this"""
    path.write_bytes(by_hand)
    assert main(["apply", *words, "--force", "--yes"]) == 0
    out = capsys.readouterr().out
    old, new = b"[ { count: 1, kind: KIND_CPU } ]", b"{ count: 5 kind: KIND_GPU }"
    assert path.read_bytes().partition(b"\n")[2] == by_hand.replace(old, new)
    assert len([line for line in out.splitlines() if line[:1] in ("+", "-")]) == 2 + 3
    assert main(["rollback", "alexnet", *words[2:], "--yes"]) == 0
    assert path.read_bytes() == by_hand


def test_a_dry_run_shows_the_difference_and_writes_nothing(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["apply", "alexnet_config_1", *words, "--dry-run"]) == 0
    assert "+  count: 2" in capsys.readouterr().out
    assert text(tmp_path) == CONFIG


def test_what_is_there_already_is_not_written_again(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["apply", "alexnet_config_default", *words]) == 0
    assert "nothing to do" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["apply"], "nothing was written: confirm with --yes"),
        (["apply", "alexnet_config_44"], "did you mean 'alexnet_config_4'"),
        (["apply", "--model", "alexnett"], "did you mean 'alexnet'"),
        (["apply", "-m", "/nowhere/at/all"], "no such directory"),
        (["apply", "-e", "/nowhere/at/all"], "no run found"),
    ],
)
def test_what_cannot_be_applied_is_status_two_with_the_reason(
    command: list[str], message: str, words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, *own = command
    assert main([name, *words, *own]) == 1
    assert message in capsys.readouterr().err
    assert text(tmp_path) == CONFIG


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["rollback"], "missing: --model-repository"),
        (["rollback", "alexnet"], "missing: --model-repository"),
        (["rollback", "-m", "nowhere"], "--model-repository nowhere: no such directory"),
        (["rollback", "alexnt", "-m", "."], "has no model 'alexnt' (did you mean 'alexnet'?)"),
    ],
)
def test_a_rollback_needs_a_repository_with_the_model(
    command: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "alexnet").mkdir()
    assert main(command) == 1
    assert message in capsys.readouterr().err


def test_a_run_that_recommends_nothing_has_nothing_to_apply(
    replay: Replay, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    replay(latency_budget=1.0)
    (tmp_path / "models").mkdir()
    assert main(["apply", "-e", str(tmp_path), "-m", str(tmp_path / "models"), "--yes"]) == 1
    assert "the run recommends nothing" in capsys.readouterr().err


def test_what_is_not_certain_is_applied_by_name_only(replay: Replay) -> None:
    wild = (variant("default", [100, 101, 99]), variant("0", [200, 90, 130], memory_mb=100))
    run = replace(replay(), models=(ModelRun(models=("m",), variants=wild, decisions=()),))
    with pytest.raises(UsageError, match=r"the run is undecided: .*tpx analyze apply m_config_0"):
        choose(run, ApplyConfig())
    assert choose(run, ApplyConfig(configuration="m_config_0")) == wild[1].configuration


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-m", "online"], ""),
        (["--mode=offline"], ""),
        (["-m"], "Missing value for option '-m'"),
        (["-q", "profile"], "options follow the command"),
    ],
)
def test_the_mode_stands_before_the_command(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "profile", "--profile-models=m"] if not message else words) == 1
    assert (message or "missing: --model-repository") in capsys.readouterr().err


def test_a_mode_that_there_is_not_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-monlin", "profile", "--profile-models=m"]) == 1
    assert "expected one of: online, offline (did you mean 'online'?)" in capsys.readouterr().err


def test_analyze_is_profile_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", "--profile-models", "m"]) == 1
    assert "deprecated" in capsys.readouterr().err
