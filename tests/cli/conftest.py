"""What the commands leave behind in a process is put back."""

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _logs_as_before() -> Iterator[None]:
    """`tpx serve` configures the logs of its process."""
    root, asyncio_log = logging.getLogger(), logging.getLogger("asyncio")
    handlers, levels = list(root.handlers), (root.level, asyncio_log.level)
    yield
    for handler in root.handlers:
        if handler not in handlers:
            handler.close()
    root.handlers[:] = handlers
    root.setLevel(levels[0])
    asyncio_log.setLevel(levels[1])
