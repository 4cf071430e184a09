"""`tpx analyze` on three nodes of Ray: the verdict of one machine, sooner, also when a node dies."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.commands import ended, on_head, told, wait_until
from tests.cluster.models import sleeping
from tests.cluster.network import HEAD, ON_THREE_NODES, PORT, Network, address_of
from tpx.analyzer.results.journal import Measured, VariantPrepared, holds_run, read_last_run
from tpx.analyzer.results.measurement import Measurement

pytest.importorskip("ray", reason="pip install 'tpx[cluster]', or run make test-cluster")

pytestmark = ON_THREE_NODES

SEARCH = (
    *("--profile-models=sleeping", "--run-config-search-mode=brute", "--duration-seconds=0.1"),
    *("--run-config-search-max-instance-count=2", "--run-config-search-max-model-batch-size=1"),
    *("--run-config-search-max-concurrency=2", "--measurement-interval=300", "--final-rounds=5"),
)
"""Of a model that sleeps: two instances are twice as fast as one, whatever else the machine does; a busy one
takes more rounds to show it.
"""


@pytest.fixture(scope="module")
def asleep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("asleep")
    sleeping(folder)
    return folder


@pytest.fixture
def short_of_a_node(net: Network) -> Iterator[Network]:
    """Node 3 is as it was when the test is over."""
    yield net
    net.kill_node(3)
    net.start_node(3)


def profile(models: Path, place: Path, *words: str) -> Any:
    paths = (f"--export-path={place}", f"--output-model-repository-path={place / 'variants'}")
    return on_head("analyze", "profile", f"--model-repository={models}", *SEARCH, *paths, *words)


def journal(place: Path) -> list[Any]:
    path = place / "results" / "run.jsonl"
    return list(read_last_run(path)) if holds_run(path) else []


def measured(place: Path) -> list[Measurement]:
    return [record.measurement for record in journal(place) if isinstance(record, Measured)]


def searched(place: Path) -> list[tuple[str, int]]:
    return [(each.variant, each.load.value) for each in measured(place) if not each.round]


def best(place: Path) -> str:
    found = json.loads((place / "report.json").read_text())
    name: str = found["models"][0]["recommended"]
    return name


@pytest.mark.timeout(1200)  # two runs that load twenty variants: 300 s each on cores with ten times the work
def test_three_nodes_come_to_the_verdict_of_one_machine(net: Network, asleep: Path, tmp_path: Path) -> None:
    for mode in ("ray", "local"):
        words = (f"--launch-mode={mode}", f"--json={tmp_path / mode / 'report.json'}")
        done = ended(profile(asleep, tmp_path / mode, *words), timeout_s=500)
        assert done.returncode == 0, told(done)
    assert searched(tmp_path / "ray") == searched(tmp_path / "local")
    assert best(tmp_path / "ray") == best(tmp_path / "local") == "sleeping_config_1"
    records = journal(tmp_path / "ray")
    nodes = {record.node for record in records if isinstance(record, VariantPrepared)}
    assert nodes == {address_of(node) for node in (1, 2, 3)}
    final = next(
        i for i, record in enumerate(records) if isinstance(record, Measured) and record.measurement.round
    )
    assert len({record.node for record in records[final - 1 :] if isinstance(record, VariantPrepared)}) == 1


def test_the_trial_of_a_node_that_dies_is_measured_on_another(
    short_of_a_node: Network, asleep: Path, tmp_path: Path
) -> None:
    run = profile(asleep, tmp_path, "--launch-mode=ray")
    wait_until("something is measured", lambda: measured(tmp_path))
    short_of_a_node.kill_node(3)
    done = ended(run)
    assert done.returncode == 0, told(done)
    assert f"{address_of(3)} is gone, its trial is measured again" in done.stderr
    configurations = {f"sleeping_config_{name}" for name in ("default", "0", "1")}
    assert {variant for variant, _ in searched(tmp_path)} == configurations
    assert {each.variant for each in measured(tmp_path) if each.round} >= {"sleeping_config_1"}


def test_a_node_of_another_type_is_left_out(short_of_a_node: Network, asleep: Path) -> None:
    short_of_a_node.kill_node(3)
    short_of_a_node.start_node(3, "taskset", "-c", "0")
    words = (f"--model-repository={asleep}", "--profile-models=sleeping", "--launch-mode=ray")
    done = ended(on_head("analyze", "doctor", *words))
    assert done.returncode == 0, told(done)
    assert f"2 side by side: {address_of(1)}, {address_of(2)}" in done.stdout
    assert f"{address_of(3)} left out, not the machine of the others: Cores 1 usable" in done.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--ray-address=127.0.0.1:1",), "Ray at 127.0.0.1:1: "),
        (("--ray-trial=gpu",), "no gpu of Ray is free"),
    ],
)
def test_what_cannot_be_measured_on_is_told(
    net: Network, asleep: Path, tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    address = () if "--ray-address" in words[0] else (f"--ray-address={HEAD}:{PORT}",)
    done = ended(profile(asleep, tmp_path, "--launch-mode=ray", *address, *words))
    assert done.returncode == 1, told(done)
    assert message in done.stderr
    assert not journal(tmp_path)
