"""One Ray cluster for all tests of this folder: starting it takes longer than most of them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.network import Network, network
from tpx.examples import write


@pytest.fixture(scope="package")
def net() -> Iterator[Network]:
    with network() as made:
        yield made


@pytest.fixture(scope="package")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write(folder, ["identity"])
    return folder
