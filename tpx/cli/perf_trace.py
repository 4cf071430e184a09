"""`tpx perf -v -v`: what the load generator logs of its steps, as lines on stderr while it runs."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

EVERY_STEP = 2
"""So many -v."""


class _Lines(logging.Handler):
    """Writes to whatever stderr is at that time: a dashboard on a terminal takes its place."""

    def emit(self, record: logging.LogRecord) -> None:
        print(f"* {self.format(record)}", file=sys.stderr, flush=True)


@contextmanager
def every_step(verbose: int) -> Iterator[None]:
    """While this lasts, steps are told where the user asked for them."""
    if verbose < EVERY_STEP:
        yield
        return
    log, lines = logging.getLogger("tpx.perf"), _Lines()
    level = log.level
    log.setLevel(logging.DEBUG)
    log.addHandler(lines)
    try:
        yield
    finally:
        log.removeHandler(lines)
        log.setLevel(level)
