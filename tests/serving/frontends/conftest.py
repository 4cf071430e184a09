"""One server for all tests of the frontends: they only ask, and none may end it."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.serving.live import Live, serving, write_models


@pytest.fixture(scope="session")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A running server over `write_models`."""
    repository = tmp_path_factory.mktemp("models")
    write_models(repository)
    with serving(repository) as running:
        yield running


@pytest.fixture
def channel(live: Live) -> Any:
    """A channel to the server."""
    with live.channel() as open_channel:
        yield open_channel
