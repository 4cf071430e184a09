"""The Python API against real servers: what a notebook or a script does."""

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc

import tpx
from tpx import examples
from tpx.errors import LoadError, TpxError, UsageError

pytestmark = pytest.mark.e2e

QUICK: dict[str, Any] = {"measurement_interval": 60, "stability_percentage": 100}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    examples.write(folder, ["identity", "add_sub"])
    return folder


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[tpx.RunningServer]:
    with tpx.serve(repository, process=True) as running:
        yield running


@pytest.fixture(scope="module")
def run(server: tpx.RunningServer) -> tpx.PerfRun:
    return tpx.measure(server, "add_sub", concurrency=[1, 2], **QUICK)


def test_importing_the_package_imports_nothing_else() -> None:
    code = (
        "import sys, tpx; print([name for name in sys.modules if name.startswith(('tpx.', 'numpy', 'rich'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_public_names_are_those_that_are_listed() -> None:
    assert set(tpx.__all__) <= set(dir(tpx))
    for name in tpx.__all__:
        assert getattr(tpx, name).__doc__
    with pytest.raises(AttributeError, match=r"module 'tpx' has no attribute 'sevre'"):
        _ = tpx.sevre  # type: ignore[attr-defined]


@pytest.mark.parametrize("process", [True, False])
def test_a_server_answers_the_client_that_it_makes(repository: Path, *, process: bool) -> None:
    with tpx.serve(repository, process=process) as running:
        given = tritonclient.grpc.InferInput("INPUT0", [1, 16], "FP32")
        given.set_data_from_numpy(np.ones((1, 16), np.float32))
        with running.client() as client:
            assert client.infer("identity", [given]).as_numpy("OUTPUT0").sum() == 16
        with running.client("http") as client:
            assert client.is_server_ready()
        assert f"HTTPService {running.http}" in repr(running)
    with pytest.raises(OSError), running.client("http") as client:  # noqa: PT011 (refused, in any words)
        client.is_server_live()


def test_options_of_the_server_are_those_of_the_command_line(repository: Path) -> None:
    with (
        tpx.serve(repository, allow_metrics=False, model_control_mode="none") as running,
        pytest.raises(UsageError, match="this server has no Metrics Service"),
    ):
        _ = running.metrics
    with pytest.raises(UsageError, match=r"tpx\.serve: unknown key 'http_prot'"):
        tpx.serve(repository, http_prot=1)
    with pytest.raises(UsageError, match=r"tpx\.serve: unknown key 'http_prot'"):
        tpx.serve(repository, process=True, http_prot=1)


@pytest.mark.parametrize("process", [True, False])
def test_a_server_that_cannot_start_says_why(tmp_path: Path, *, process: bool) -> None:
    with pytest.raises((LoadError, TpxError), match="absent"):
        tpx.serve(tmp_path / "absent", process=process)


def test_levels_are_measured_and_told_in_a_sentence(run: tpx.PerfRun) -> None:
    assert [level.level.value for level in run.levels] == [1, 2]
    assert run.best is not None
    assert "infer/s" in run.verdict
    document = json.loads(run.to_json())
    assert [level["value"] for level in document["levels"]] == [1, 2]


def test_rows_have_the_figures_of_the_levels(run: tpx.PerfRun) -> None:
    frame = run.to_pandas()
    assert frame["load"].tolist() == [1, 2]
    assert frame["throughput_infer_per_s"].tolist() == [r.throughput_infer_per_s for r in run.levels]
    assert (frame["latency_p50_us"] <= frame["latency_p99_us"]).all()


def test_a_report_is_a_page_and_a_cell_of_a_notebook(run: tpx.PerfRun, tmp_path: Path) -> None:
    page = run.to_html(tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text() == page
    assert page.startswith("<!DOCTYPE html>")
    assert run._repr_html_().startswith("<iframe srcdoc=")
    assert repr(run) == f"<PerfRun: {run.verdict}>"


def test_a_running_event_loop_measures_and_a_notebook_has_one(server: tpx.RunningServer) -> None:
    async def scene() -> list[tpx.PerfRun]:
        there = await tpx.measure_async(server, "identity", concurrency=1, protocol="grpc", **QUICK)
        inside = tpx.measure(server.http, "identity", request_rate=50, **QUICK)
        return [there, inside]

    there, inside = asyncio.run(scene())
    assert there.levels[0].requests
    assert inside.levels[0].level.mode == "request_rate"


def test_what_cannot_be_measured_is_an_error(server: tpx.RunningServer) -> None:
    with pytest.raises(TpxError, match="unknown model"):
        tpx.measure(server, "nothing")
    with pytest.raises(UsageError, match=r"unknown key 'concurency' \(did you mean 'concurrency'\?\)"):
        tpx.measure(server, "identity", concurency=1)


def test_runs_are_compared_at_the_loads_that_all_have(run: tpx.PerfRun, tmp_path: Path) -> None:
    found = tpx.compare(run, run)
    assert (found.verdict, found.more_s > 0) == ("undecided", True)  # one run on each side
    kept = tmp_path / "baseline.json"
    kept.write_text(run.to_json())
    assert tpx.compare(kept, run).verdict == "undecided"
    several = tpx.compare([run, kept, run], [run], min_effect=1000)
    assert (several.verdict, several.more_s) == ("same", 0)
    with pytest.raises(UsageError, match="there is no run before"):
        tpx.compare([], run)
    with pytest.raises(UsageError, match=r"cannot read .*nothing\.json"):
        tpx.compare(tmp_path / "nothing.json", run)
    kept.write_text("{")
    with pytest.raises(UsageError, match="is not JSON"):
        tpx.compare(kept, run)
    assert set(found.to_pandas()["load"]) == {"concurrency 1", "concurrency 2"}
    lines = repr(found).splitlines()
    (head,) = (line.split() for line in lines if line.split()[:2] == ["Load", "Figure"])
    assert head[2:4] == ["before", "after"]
    assert sum(line.startswith("concurrency 1 ") for line in lines) >= 2
    assert "After against before" in found._repr_html_()


@pytest.mark.timeout(180)
def test_a_search_recommends_a_configuration(repository: Path, tmp_path: Path) -> None:
    found = tpx.analyze(
        "identity",
        repository=repository,
        directory=tmp_path,
        run_config_search_max_instance_count=1,
        run_config_search_max_concurrency=2,
        run_config_search_max_model_batch_size=1,
        measurement_interval=60,
        final_rounds=0,
    )
    assert found.verdicts[0].best is not None
    assert "infer/s" in found.verdict
    assert len(found.to_pandas()) >= 2
    assert "Model analysis: identity" in found.to_html()
    assert json.loads(found.to_json())
    assert list(found.configurations.glob("*/config.pbtxt"))
    assert found.configurations == tmp_path / "configurations"


@pytest.mark.timeout(180)
def test_the_example_of_the_documentation_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "api.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    examples.write(tmp_path / "models", ["mnist"])
    quick = "concurrency=[1], measurement_interval=60, stability_percentage=100"
    exec(code.replace("concurrency=[1, 2, 4]", quick), {})
    assert (tmp_path / "report.html").stat().st_size > 10_000
    assert capsys.readouterr().out.splitlines()[-1] in ("worse", "better", "same", "undecided")
