"""A cluster that cannot start: why is said, and nothing is left."""

from pathlib import Path

import pytest

from tests.cluster.commands import tpx
from tests.cluster.network import ON_THREE_NODES, Network, filled
from tpx.examples import write

pytest.importorskip("ray", reason="pip install 'tpx[cluster]', or run make test-cluster")

pytestmark = ON_THREE_NODES


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write(folder, ["identity"])
    return folder


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--balancer=10.77.9.99",), "balancer on 10.77.9.99: Ray has no node with this address (has: "),
        (("--replicas=9", "--cpus=2"), "9 replicas of CPU 2 do not fit: "),
        (("--ray-address=127.0.0.1:1",), "Ray at 127.0.0.1:1: "),
        (("--http-port=6391", "--http-address=0.0.0.0"), "--http-port 6391: Address already in use"),
        (("--serve=--nonsense",), "--nonsense"),
    ],
)
def test_what_cannot_start_says_why_and_leaves_nothing(
    net: Network, models: Path, words: tuple[str, ...], message: str
) -> None:
    ports = ("--http-port=19000", "--grpc-port=19001", "--stats-port=19002")
    assert message in tpx("up", f"--model-repository={models}", *ports, *words, exits=1).stderr
    assert "no cluster" in tpx("status", exits=1).stderr


@pytest.mark.parametrize("which", ["folder", "disk"])
def test_a_disk_that_is_full_is_told_in_time_and_nothing_is_left(
    net: Network, models: Path, which: str
) -> None:
    folder: Path = getattr(net, which)
    with filled(folder):
        words = (f"--model-repository={models}", f"--log-dir={net.disk}")
        done = tpx("up", *words, exits=1, timeout_s=90)
    assert f"{folder}" in done.stderr
    assert "the disk is full" in done.stderr
    assert "no cluster" in tpx("status", exits=1).stderr
