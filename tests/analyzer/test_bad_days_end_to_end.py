"""Runs that are cut off for real, by kill -9, Ctrl-C or a full disk, and go on; and where servers run."""

import random
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.e2e.child import start, tpx
from tpx import examples
from tpx.analyzer.results.journal import Measured, VariantPrepared, read_last_run
from tpx.analyzer.results.run import Run
from tpx.cli.interrupts import SAME_NS

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(180)]

QUICK = (
    *("--measurement-interval=40", "--max-trials=3", "--duration-seconds=0", "--final-rounds=0"),
    *("--run-config-search-max-instance-count=2", "--run-config-search-max-model-batch-size=1"),
    *("--profile-models=add_sub", "-c=1,2"),
)
TRIALS = 6


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("models")
    examples.write(directory, ["add_sub"])
    return directory


def command(models: Path, *words: str) -> Sequence[str]:
    return ("analyze", "profile", "-m", str(models), *QUICK, *words)


def finish(models: Path, directory: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    return tpx(*command(models, *words), cwd=directory)


def measured(directory: Path) -> list[tuple[str, int]]:
    records = read_last_run(directory / "results" / "run.jsonl")
    return [(r.measurement.variant, r.measurement.load.value) for r in records if isinstance(r, Measured)]


def lines(path: Path) -> int:
    return path.read_bytes().count(b'"record":"measurement"') if path.exists() else 0


def test_a_run_killed_twice_measures_everything_once(models: Path, tmp_path: Path) -> None:
    chance = random.Random(3)
    journal = tmp_path / "results" / "run.jsonl"
    words: tuple[str, ...] = ()
    for _ in range(2):
        process = start(command(models, *words), tmp_path)
        before = lines(journal)
        while lines(journal) < before + 2:
            assert process.poll() is None, "the run ended before it was killed"
            time.sleep(0.01)
        time.sleep(chance.uniform(0, 0.3))
        process.kill()
        process.communicate()
        words = ("--resume",)
    done = finish(models, tmp_path, "--resume")
    assert done.returncode == 0, done.stderr
    found = measured(tmp_path)
    assert len(found) == len(set(found)) == TRIALS
    again = finish(models, tmp_path, "--resume")
    assert "there is nothing to resume" in again.stderr
    assert len(measured(tmp_path)) == TRIALS
    other = finish(models, tmp_path, "--resume", "--batch-sizes=2")
    assert other.returncode == 1
    assert "these differ: --batch-sizes" in other.stderr


def test_a_third_interrupt_stops_at_once_and_keeps_what_was_measured(models: Path, tmp_path: Path) -> None:
    process = start(command(models, "--measurement-interval=60000"), tmp_path)
    journal = tmp_path / "results" / "run.jsonl"
    while not journal.exists() or b'"record":"configuration"' not in journal.read_bytes():
        assert process.poll() is None
        time.sleep(0.02)
    assert process.stderr is not None
    for notice in ("two more Ctrl-C stop at once", "one more Ctrl-C stops at once"):
        process.send_signal(signal.SIGINT)
        while notice not in process.stderr.readline():
            assert process.poll() is None
        time.sleep(SAME_NS / 1e9)  # an interrupt sooner than that is the same one
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=100)  # the measurement would take three minutes
    assert process.returncode == 130, err
    assert "The run was interrupted" in out


@pytest.mark.skipif(sys.platform != "linux", reason="sizes of files are limited per process on Linux")
def test_a_full_disk_ends_the_run_with_what_was_measured_and_resume_goes_on(
    models: Path, tmp_path: Path
) -> None:
    def little_room() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))

    done = subprocess.run(
        [sys.executable, "-m", "tpx", *command(models, "--triton-output-path=/dev/null")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
        preexec_fn=little_room,
    )
    assert done.returncode == 1
    assert "run.jsonl: File too large. Free space or choose another --export-path" in done.stderr
    assert "continue with --resume" in done.stderr
    assert "Models (Inference)" in done.stdout
    before = measured(tmp_path)
    assert 0 < len(before) < TRIALS
    done = finish(models, tmp_path, "--triton-output-path=/dev/null", "--resume")
    assert done.returncode == 0, done.stderr
    found = measured(tmp_path)
    assert found[: len(before)] == before
    assert len(found) == len(set(found)) == TRIALS


def test_a_port_in_use_is_told_before_anything_is_measured(models: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        done = finish(models, tmp_path, "--triton-server-flags", f"{{http-port: {port}}}")
    assert done.returncode == 1
    assert f"http-port {port}: it is in use. Stop the server that has it" in done.stderr


def test_one_server_is_started_for_all_variants_of_a_model(models: Path, tmp_path: Path) -> None:
    done = finish(models, tmp_path, "--triton-output-path=server.log")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "server.log").read_text().count("Started HTTPService") == 1
    run = Run.from_records(read_last_run(tmp_path / "results" / "run.jsonl"))
    prepared = run.models[0].preparations
    assert [(p.variant, p.how) for p in prepared] == [
        ("add_sub_config_default", "found"),
        ("add_sub_config_0", "loaded"),
        ("add_sub_config_1", "loaded"),
    ]
    assert all(isinstance(p, VariantPrepared) for p in prepared)


def test_the_engine_in_this_process_needs_no_server(models: Path, tmp_path: Path) -> None:
    done = finish(models, tmp_path, "--triton-launch-mode=c_api", "--collect-cpu-metrics")
    assert done.returncode == 0, done.stderr
    assert len(measured(tmp_path)) == TRIALS
    run = Run.from_records(read_last_run(tmp_path / "results" / "run.jsonl"))
    assert all(m.memory is not None for v in run.models[0].measured for m in v.measurements)
