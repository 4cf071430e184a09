"""`tpx cluster` without a cluster: help, wrong words, and what is missing."""

import pytest

from tpx.cli.exits import Exit
from tpx.cli.main import run


def test_the_group_alone_lists_its_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["cluster"]) == Exit.OK
    page = capsys.readouterr().out
    assert all(f"  {name} " in page for name in ("up", "status", "update", "scale", "logs", "config", "down"))


def test_a_command_that_there_is_not_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["cluster", "updat"]) == Exit.FAILED
    assert "no command 'tpx cluster updat' (did you mean 'update'?)" in capsys.readouterr().err


def test_a_cluster_without_models_is_refused_before_ray_is_asked(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["cluster", "up"]) == Exit.FAILED
    assert "missing: --model-repository" in capsys.readouterr().err


def test_bounds_that_exclude_each_other_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--model-repository", "m", "--min-replicas", "5", "--max-replicas", "3"]
    assert run(["cluster", "up", *words]) == Exit.FAILED
    assert "--min-replicas 5 is above --max-replicas 3" in capsys.readouterr().err
