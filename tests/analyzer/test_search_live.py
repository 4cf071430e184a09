"""A budgeted search of a real model on a real server: more axes, the accuracy gate, the final rounds."""

from pathlib import Path

import pytest

from tests.e2e.child import tpx
from tpx import examples
from tpx.analyzer.results.journal import read_last_run
from tpx.analyzer.results.run import Run

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(180)]


def test_a_budget_with_threads_and_graph_levels_ends_in_a_verdict_with_rounds(tmp_path: Path) -> None:
    models = tmp_path / "models"
    models.mkdir()
    examples.write(models, ["mnist"])
    words = ("--max-measurements", "14", "--final-rounds", "2", "--search-threads", "--cores", "2")
    more = ("--graph-levels", "1", "--run-config-search-max-instance-count", "2", "-e", str(tmp_path))
    bounds = ("--run-config-search-max-model-batch-size", "4", "--run-config-search-max-concurrency", "8")
    short = ("--measurement-interval", "40", "--max-trials", "3", "--duration-seconds", "0")
    where = ("--profile-models", "mnist", "--output-model-repository-path", str(tmp_path / "output"))
    done = tpx("analyze", "profile", "-m", str(models), *where, *words, *more, *bounds, *short)
    assert done.returncode == 0, done.stderr
    (model,) = Run.from_records(read_last_run(tmp_path / "results" / "run.jsonl")).models
    total = sum(len(v.measurements) + len(v.failures) + len(v.repetitions) for v in model.variants)
    assert total <= 14
    assert not model.failures
    assert len([v for v in model.variants if len(v.repetitions) == 2]) >= 2
    deltas = [v.variant.delta for v in model.variants if not v.variant.is_default]
    assert all("parameters" in delta for delta in deltas)
    assert any("optimization" in delta for delta in deltas)
    first = model.variants[0].measurements[0]
    assert first.host is not None
    assert first.result.estimates is not None
    assert first.result.estimates.throughput.low <= first.throughput
