"""`tpx analyze profile` against real servers: children of `tpx serve`, and what goes wrong with them."""

import asyncio
import csv
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil
import pytest

from tpx import examples
from tpx.analyzer.models import ModelToProfile
from tpx.analyzer.options import ProfileConfig
from tpx.analyzer.profile import Event, Profile
from tpx.analyzer.reports.html import render
from tpx.analyzer.reports.verdict import judge
from tpx.analyzer.results.journal import Journal, read_last_run
from tpx.analyzer.results.run import Run
from tpx.analyzer.runners.local import LocalRunner, serve_command
from tpx.analyzer.trial import Bench
from tpx.analyzer.variants import OutputRepository
from tpx.perf.run import event_loop
from tpx.protocol import model_config

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

Wrap = Callable[[Path], Sequence[str]]

QUICK = ("--measurement-interval", "100", "--max-trials", "3", "--duration-seconds", "0")
"""Windows this short measure nothing well; what they are for is to see everything happen."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("models")
    examples.write(directory, ["add_sub"])
    return directory


def command(models: Path, *words: str) -> list[str]:
    profile = (
        sys.executable,
        "-m",
        "tpx",
        "analyze",
        "profile",
        "-m",
        str(models),
        "--profile-models",
        "add_sub",
    )
    return [*profile, *QUICK, *words]


def profile(models: Path, directory: Path, serve: Wrap) -> Run:
    """A run with the given command as the server; a variant is three trials."""
    config = ProfileConfig(
        profile_models=(ModelToProfile(name="add_sub"),),
        export_path=directory,
        concurrency=(1, 2, 3),
        run_config_search_max_instance_count=2,
        run_config_search_max_model_batch_size=1,
        measurement_interval=100,
        max_trials=3,
        duration_seconds=0,
    )

    async def steps() -> None:
        runner = LocalRunner(models, config.load_settings, ready_timeout_s=20, command=serve)
        bench = Bench(runner, OutputRepository(directory / "output", models), monitoring_interval_s=1)
        with Journal(directory / "run.jsonl") as journal:
            await Profile(config, bench, journal, _ignore).run(("tpx",))

    with asyncio.Runner(loop_factory=event_loop) as loop:
        loop.run(steps())
    return Run.from_records(read_last_run(directory / "run.jsonl"))


def _ignore(event: Event) -> None:
    """Nobody watches."""


def is_variant_zero(repository: Path) -> bool:
    """Whether `repository` is the one that add_sub_config_0 is served from."""
    return any(entry.resolve().name == "add_sub_config_0" for entry in repository.iterdir())


def servers_of(process: psutil.Process) -> list[psutil.Process]:
    return [child for child in process.children(recursive=True) if "serve" in child.cmdline()]


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = 20) -> None:
    deadline_ns = time.monotonic_ns() + int(timeout_s * 1e9)
    while not condition():
        assert time.monotonic_ns() < deadline_ns, f"still waiting until {what}"
        time.sleep(0.02)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_whole_run_leaves_tables_report_and_configurations_and_no_server(
    models: Path, tmp_path: Path, protocol: str
) -> None:
    words = ("-c", "1,2", "--run-config-search-max-instance-count", "2", "--client-protocol", protocol)
    more = ("--run-config-search-max-model-batch-size", "1", "--collect-cpu-metrics")
    done = subprocess.run(
        command(models, *words, *more), cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "In 6 measurements across 3 configurations, " in done.stdout
    assert "[3/3] add_sub_config_1 at concurrency 2: " in done.stderr

    with (tmp_path / "results" / "metrics-model-inference.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["Model"]]
    assert {(row["Model Config Path"], row["Concurrency"]) for row in rows} == {
        (f"add_sub_config_{name}", load) for name in ("default", "0", "1") for load in ("1", "2")
    }
    assert all(float(row["Throughput (infer/sec)"]) > 10 for row in rows)
    assert all(float(row["RAM Usage (MB)"]) > 10 for row in rows)
    assert (tmp_path / "report.html").read_text().startswith("<!DOCTYPE html>")

    variant = tmp_path / "output_model_repository" / "add_sub_config_1"
    config = model_config.read(variant / "config.pbtxt")
    assert config.instance_group[0].count == 2
    assert (variant / "1" / "model.onnx").is_file()
    run = Run.from_records(read_last_run(tmp_path / "results" / "run.jsonl"))
    assert run.server_only is not None
    assert all(
        m.latency.p99_ns and m.breakdown.compute_infer_ns
        for v in run.models[0].variants
        for m in v.measurements
    )


def test_ctrl_c_finishes_the_measurement_and_writes_everything(models: Path, tmp_path: Path) -> None:
    process = subprocess.Popen(
        command(models, "-c", "1,2,3,4,5,6,7,8"),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        first = process.stderr.readline()
        assert "add_sub_config_default at concurrency 1" in first
        servers = servers_of(psutil.Process(process.pid))
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 6, err
    assert "interrupted: finishing this measurement" in err
    assert "The run was interrupted" in out
    assert (tmp_path / "report.html").is_file()
    assert len(servers) == 1
    assert not servers[0].is_running()


def test_a_configuration_that_does_not_load_fails_and_the_run_goes_on(models: Path, tmp_path: Path) -> None:
    def refuses_one_instance(repository: Path) -> Sequence[str]:
        if is_variant_zero(repository):
            return (sys.executable, "-c", "import sys; print('no memory for 1 instance'); sys.exit(1)")
        return serve_command(repository)

    run = profile(models, tmp_path, refuses_one_instance)
    (model,) = run.models
    (failure,) = model.failures
    assert failure.variant == "add_sub_config_0"
    assert failure.reason == "the server ended with status 1 before it was ready: no memory for 1 instance"
    assert [len(v.measurements) for v in model.variants] == [3, 0, 3]
    assert "no memory for 1 instance" in render(run, tmp_path)


def test_a_server_that_dies_under_load_is_a_failed_trial_and_the_run_goes_on(
    models: Path, tmp_path: Path
) -> None:
    mortal_server = textwrap.dedent(
        """
        import os, signal, subprocess, sys, threading
        child = subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE, text=True)
        def end(*_):
            child.kill()
            sys.exit(0)
        signal.signal(signal.SIGTERM, end)
        def die():
            child.kill()
            os.kill(os.getpid(), signal.SIGKILL)
        for line in child.stdout:
            print(line, end="", flush=True)
            if "is ready" in line:
                threading.Timer(0.3, die).start()
        """
    )

    def mortal(repository: Path) -> Sequence[str]:
        if is_variant_zero(repository):
            return (sys.executable, "-c", mortal_server, *serve_command(repository))
        return serve_command(repository)

    run = profile(models, tmp_path, mortal)
    (model,) = run.models
    (failure,) = model.failures
    assert failure.variant == "add_sub_config_0"
    assert failure.reason.startswith("the server was killed by signal 9 while it was measured")
    assert any("is ready" in line for line in failure.log_tail)
    assert [v.variant.name for v in model.measured][-1] == "add_sub_config_1"
    assert judge(model, run.started.goals).best is not None


def test_a_model_that_cannot_be_served_is_status_one_with_the_servers_reason(tmp_path: Path) -> None:
    directory = tmp_path / "models" / "add_sub" / "1"
    directory.mkdir(parents=True)
    (directory / "model.onnx").write_bytes(b"not a model")
    done = subprocess.run(
        command(tmp_path / "models"), cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert "`add_sub` cannot be profiled" in done.stdout
    assert "add_sub" in done.stderr
    assert "Nothing measured" in (tmp_path / "report.html").read_text()


def test_a_killed_analyzer_leaves_no_server_and_a_readable_journal(models: Path, tmp_path: Path) -> None:
    process = subprocess.Popen(
        command(models, "-c", "1,2,3,4"),
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path)},  # nobody clears up after a killed process
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    process.stderr.readline()
    servers = servers_of(psutil.Process(process.pid))
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=10)
    assert servers
    wait_until(lambda: not any(s.is_running() for s in servers), "the server has ended")
    run = Run.from_records(read_last_run(tmp_path / "results" / "run.jsonl"))
    assert run.outcome == "unfinished"
    assert run.models[0].measurement_count >= 1
