"""One `tpx serve` that every attack of a session meets: what one of them breaks, the next one notices."""

from collections.abc import Iterator

import pytest

from tests.e2e.child import FRONTENDS
from tests.hostile import wire
from tests.hostile.siege import BROKEN_MODELS, EXPLICIT, GOOD, Siege, besieged, segments, write_repository
from tests.serving.backends.llamacpp.models import write_tiny

MIB = 1 << 20


@pytest.fixture(scope="session")
def siege(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Siege]:
    """A server that must end well, after all of it, with the descriptors and threads that it began with."""
    repository = write_repository(tmp_path_factory.mktemp("hostile"))
    write_tiny(repository, "tiny", threads=1)
    with besieged(repository, *BROKEN_MODELS, *EXPLICIT) as server:
        _warm(server)
        before = server.footprint()
        with segments(server):
            yield server
        # only one of several frontends was warmed, and no engine: some threads start with their first task
        most_threads = before.threads + 4 * (1 + FRONTENDS)
        # each frontend keeps some, and up to 64 MiB of free blocks in the memory that it shares
        most_bytes = before.resident_bytes + 64 * MIB * (1 + 2 * FRONTENDS)
        after = server.settles(
            lambda now: (
                now.descriptors <= before.descriptors
                and now.threads <= most_threads
                and now.resident_bytes <= most_bytes  # freed memory is returned after a while
            ),
            timeout_s=40,  # the session's last test has 60 s for all of it
        )
        assert after.descriptors <= before.descriptors, server.descriptors()
        assert after.threads <= most_threads
        assert after.resident_bytes <= most_bytes


def _warm(server: Siege) -> None:
    """One request of each kind, so that what is made only once is there."""
    server.alive()
    for encoding in ("gzip", "deflate"):
        wire.post(server.http, "/v2/models/double/infer", GOOD, f"Accept-Encoding: {encoding}\r\n")
    for count in (50_000, 800_000):  # each of these and its answer have a thread
        x = {"name": "x", "datatype": "FP32", "shape": [1, count], "data": [1.5] * count}
        assert wire.post(server.http, "/v2/models/double/infer", {"inputs": [x]}).status == 200
