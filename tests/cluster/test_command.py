"""`tpx cluster` without a cluster: help, wrong words, and what is missing."""

import asyncio
import io
import tempfile
from pathlib import Path

import pytest
from rich.console import Console

from tpx.argv import from_argv
from tpx.cli.cluster import table
from tpx.cli.commands import Exit
from tpx.cli.main import run
from tpx.cluster.proxy import Proxy
from tpx.cluster.spec import ClusterSpec


def test_the_group_alone_lists_its_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["cluster"]) == Exit.OK
    page = capsys.readouterr().out
    assert all(f"  {name} " in page for name in ("up", "status", "update", "scale", "logs", "config", "down"))


def test_a_command_that_there_is_not_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["cluster", "updat"]) == Exit.FAILED
    assert "no command 'cluster updat' (did you mean 'update'?)" in capsys.readouterr().err


def test_a_cluster_without_models_is_refused_before_ray_is_asked(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["cluster", "up"]) == Exit.FAILED
    assert "missing: --model-repository" in capsys.readouterr().err


def test_a_fault_in_the_file_is_told_with_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text("model_repository: models\nreplcas: 2\n")
    assert run(["cluster", "up", "-f", str(file)]) == Exit.FAILED
    message = f"Error: {file}:2: unknown key 'replcas' (did you mean 'replicas'?)\n"
    assert capsys.readouterr().err == message


def test_bounds_that_exclude_each_other_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--model-repository", "m", "--min-replicas", "5", "--max-replicas", "3"]
    assert run(["cluster", "up", *words]) == Exit.FAILED
    assert "--min-replicas 5 is above --max-replicas 3" in capsys.readouterr().err


def test_the_table_of_replicas_fits_80_columns_with_every_figure() -> None:
    sample = {"requests_per_s": 12034.0, "p99_ms": 104.25, "queue_ms": 100.4}
    row = {"name": "replica-13", "host": "10.177.119.113", "state": "draining", "models": 12, "restarts": 3}
    replicas = [{**row, "message": "", "sample": sample}]
    shown = {"name": "tpx", "desired": 3, "bounds": (2, 10), "release": 2, "replicas": replicas}
    console = Console(width=80, file=io.StringIO())
    console.print(table(shown))
    page = console.file.getvalue()  # type: ignore[attr-defined]
    assert "\u2026" not in page
    for figure in ("replica-13", "10.177.119.113", "draining", "12034", "104.2", "100.4", "restarts"):
        assert figure in page


def test_a_balancer_without_room_for_its_files_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    spec = from_argv(ClusterSpec, ("--haproxy=true", "--http-port=0", "--grpc-port=0", "--stats-port=0"))
    fault = asyncio.run(Proxy(spec.plain()).start())
    assert fault.startswith("HAProxy's directory cannot be made: ")
    assert "/nowhere" in fault
