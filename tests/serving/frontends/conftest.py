"""One server for all tests of the frontends: they only ask, and none may end it."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.serving.live import Live, serving, write_models
from tests.serving.transports import ENCODINGS, TRANSPORTS, Transport, connected


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


@pytest.fixture(params=TRANSPORTS)
def transport(request: pytest.FixtureRequest, live: Live) -> Iterator[Transport]:
    """Each transport in turn, with tensors as bytes."""
    with connected(live, request.param) as client:
        yield client


@pytest.fixture(params=ENCODINGS)
def encoding(request: pytest.FixtureRequest, live: Live) -> Iterator[Transport]:
    """Each way to send tensors in turn."""
    with connected(live, request.param) as client:
        yield client
