"""The scripts of `examples/`, run as a user runs them."""

import re
from pathlib import Path

import pytest

from tests.examples.scripts import ran
from tpx import examples

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    examples.write(str(folder), ["mnist"])
    return folder


def test_a_business_rule_calls_the_model_and_refuses_what_is_unsure(tmp_path: Path) -> None:
    out = ran("python_model.py", "models", cwd=tmp_path)
    assert out.splitlines() == ["a stroke: 1", "a white page: ask a person"]


def test_a_gate_writes_a_baseline_compares_with_it_and_fails_on_a_missed_objective(
    repository: Path, tmp_path: Path
) -> None:
    quick = ("--concurrency", 1, "--interval-ms", 200, "--windows", 1)
    words = (repository, "mnist", *quick, "--min-effect", 1000, "--undecided", "pass")
    assert "wrote 3 runs to baseline" in ran("ci_gate.py", *words, "--slo", "errors<=100%", cwd=tmp_path)
    once = (*words, "--runs", 1)
    compared = ran("ci_gate.py", *once, "--slo", "errors<=100%", cwd=tmp_path)
    assert re.search("against 3 runs in baseline: (same|undecided)", compared)
    assert (tmp_path / "report.html").stat().st_size > 10_000
    ran("ci_gate.py", *once, "--slo", "p99<1us", cwd=tmp_path, status=4)


def test_the_best_configuration_is_found_and_shown(repository: Path, tmp_path: Path) -> None:
    words = ("--budget", "1s", "--interval-ms", 100, "--final-rounds", 0, "--max-p99-ms", 10_000)
    out = ran("find_best_configuration.py", repository, "mnist", *words, cwd=tmp_path)
    assert "# config.pbtxt of mnist_config_" in out
    assert (tmp_path / "analysis.html").stat().st_size > 10_000
