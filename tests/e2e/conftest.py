"""One `tpx serve` for all foreign clients of a session: what one of them breaks, the next one notices."""

from collections.abc import Iterator

import pytest

from tests.e2e.child import Child, serve
from tests.e2e.foreign import write_models


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Child]:
    """A server that must have had nothing to complain of when the last client is gone."""
    repository = write_models(tmp_path_factory.mktemp("foreign"))
    with serve("--model-repository", repository) as child:
        yield child.ready()
        assert child.stop() == 0
        assert child.err == []


@pytest.fixture(scope="session")
def http_address(server: Child) -> str:
    """Host and port of HTTP."""
    return f"127.0.0.1:{server.port('HTTPService')}"


@pytest.fixture(scope="session")
def grpc_address(server: Child) -> str:
    """Host and port of gRPC."""
    return f"127.0.0.1:{server.port('GRPCInferenceService')}"
