"""One Ray cluster for all tests of a run: starting it takes longer than most of them."""

from collections.abc import Iterator

import pytest

from tests.cluster.commands import end_reader
from tests.cluster.network import Network, network


@pytest.fixture(scope="package")
def net() -> Iterator[Network]:
    with network() as made:
        try:
            yield made
        finally:
            end_reader()
