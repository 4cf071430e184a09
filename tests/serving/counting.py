"""Work counted in instructions of the interpreter, where a clock would only guess."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import TraceFunction


def steps_of(work: Callable[[], object]) -> int:
    """How many bytecode instructions run; those of functions written in C do not count."""
    count = 0

    def trace(frame: FrameType, event: str, _: object) -> "TraceFunction":
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count
