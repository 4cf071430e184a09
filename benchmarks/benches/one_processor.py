"""What small requests cost `tpx perf` and perf_analyzer where no processor sleeps.

With a processor to itself each end of a connection sleeps until the other wakes it, request by request. In a
virtual machine that takes more than either program's own work, and whoever writes pays for it, even a client
in C that measures nothing. Here the server, the tool and this bench share one processor, which is never idle
while there is load: what is left is the work.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.benches import load_generators
from benchmarks.models import GAP
from benchmarks.results import Cell
from benchmarks.setting import Setting
from tpx.errors import MeasurementError

NAME = "one_processor"
TITLE = "The same on one processor together with the server"
SHOWN = load_generators.SHOWN


def cases() -> Iterator[load_generators.Case]:
    """The small requests of `load_generators`."""
    return (case for case in load_generators.cases() if case.served.model is not GAP)


def run(setting: Setting) -> list[Cell]:
    """Every case, both servers up meanwhile."""
    if not hasattr(os, "sched_setaffinity"):
        setting.leave_out(NAME, MeasurementError("only Linux ties a process to a processor"))
        return []
    with _one_processor():
        return load_generators.side_by_side(NAME, setting, load_generators.MODELS, cases())


@contextmanager
def _one_processor() -> Iterator[None]:
    """This thread, and every process that it starts meanwhile, on one and the same processor."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)
