"""`tpx cluster` without a cluster: help, wrong words, and what is missing."""

import asyncio
import io
import tempfile
from pathlib import Path

import pytest
from rich.console import Console

from tests.waiting import eventually
from tpx.argv import from_argv
from tpx.cli.cluster import table
from tpx.cli.commands import Exit
from tpx.cli.main import run
from tpx.cluster.proxy import Proxy
from tpx.cluster.replica import Replica, ReplicaStatus
from tpx.cluster.spec import ClusterSpec
from tpx.examples import write


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


def start_balancer(*words: str) -> str:
    """Return what a balancer says that cannot start."""
    ports = ("--http-port=0", "--grpc-port=0", "--stats-port=0")
    return asyncio.run(Proxy(from_argv(ClusterSpec, (*ports, *words)).plain()).start())


def test_a_balancer_without_room_for_its_files_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    fault = start_balancer("--haproxy=true")
    assert fault.startswith("HAProxy's directory cannot be made: ")
    assert "/nowhere" in fault


def test_a_balancer_without_haproxy_says_so() -> None:
    assert start_balancer("--haproxy=haprosy").startswith("no program 'haprosy' on this node")


def test_a_replica_without_its_models_says_so() -> None:
    spec = from_argv(ClusterSpec, ("--model-repository=/nowhere",))

    async def start() -> ReplicaStatus:
        replica = Replica("replica-1", spec.plain(), "10.0.0.1")
        await replica.start()
        await asyncio.sleep(0)
        found = await replica.status()
        await replica.stop()
        return found

    found = asyncio.run(start())
    assert found.state == "failed"
    assert found.message == "--model-repository /nowhere: no such directory on node 10.0.0.1"


@pytest.mark.e2e
def test_a_replica_without_metrics_serves(tmp_path: Path) -> None:
    write(tmp_path / "models", ["identity"])
    words = (
        f"--model-repository={tmp_path}/models",
        f"--log-dir={tmp_path}",
        "--serve=--allow-metrics=false",
    )
    replica = Replica("replica-1", from_argv(ClusterSpec, words).plain(), "127.0.0.1")
    with asyncio.Runner() as runner:
        runner.run(replica.start())
        eventually(lambda: runner.run(replica.status()).state == "ready")
        assert runner.run(replica.status()).metrics_port == 0
        runner.run(replica.stop())


def test_the_end_of_a_log_is_read_and_a_log_that_is_gone_is_told(tmp_path: Path) -> None:
    replica = Replica("replica-1", from_argv(ClusterSpec, (f"--log-dir={tmp_path}",)).plain(), "10.0.0.1")
    log = tmp_path / "tpx" / "replica-1.log"
    assert asyncio.run(replica.log(2)) == f"{log}: No such file or directory"
    log.parent.mkdir()
    log.write_bytes(b"one\ntwo\nthr\xffee\n")
    assert asyncio.run(replica.log(2)) == "two\nthr\ufffdee"
