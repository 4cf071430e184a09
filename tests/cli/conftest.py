"""What the commands leave behind in a process is put back."""

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _logs_as_before() -> Iterator[None]:
    """`tpx serve` configures the logs of its process."""
    root = logging.getLogger()
    named = [root, logging.getLogger("asyncio"), logging.getLogger("tpx")]
    handlers, levels = list(root.handlers), [log.level for log in named]
    yield
    for handler in root.handlers:
        if handler not in handlers:
            handler.close()
    root.handlers[:] = handlers
    for log, level in zip(named, levels, strict=True):
        log.setLevel(level)
