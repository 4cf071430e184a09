"""Exit codes of all commands: one table in which a number has one meaning."""

from collections.abc import Mapping
from enum import IntEnum


class Exit(IntEnum):
    """Exit codes. 0, 2, 3, and 99 are perf_analyzer's; 0 and 1 are Model Analyzer's and Triton's."""

    OK = 0
    FAILED = 1
    UNSTABLE = 2
    NO_VALID_REQUEST = 3
    OBJECTIVE_MISSED = 4
    REGRESSION = 5
    OVER_ERROR_BUDGET = 6
    INCONCLUSIVE = 7
    PERF_FAILED = 99
    INTERRUPTED = 130


MEANINGS: Mapping[Exit, str] = {
    Exit.OK: "success",
    Exit.FAILED: "wrong options, no measurement, or another failure; the message says which",
    Exit.UNSTABLE: "the only level was unstable (with --require-stable: any level)",
    Exit.NO_VALID_REQUEST: "a window had no valid request",
    Exit.OBJECTIVE_MISSED: "an objective (--slo, --scenario) or a constraint (--require satisfied) is missed",
    Exit.REGRESSION: "compare or --ab found a regression",
    Exit.OVER_ERROR_BUDGET: "more errors than --max-errors",
    Exit.INCONCLUSIVE: "with --require conclusive: the verdict is inconclusive",
    Exit.PERF_FAILED: "as 1; perf_analyzer's code, used by tpx perf",
    Exit.INTERRUPTED: "interrupted by Ctrl-C or SIGTERM; reports are written; --allow-partial accepts them",
}

DONE = (Exit.OK, Exit.FAILED)
PERF = tuple(code for code in Exit if code not in (Exit.FAILED, Exit.INCONCLUSIVE))
PERF_COMPARE = (Exit.OK, Exit.REGRESSION, Exit.PERF_FAILED)
COMPARE = (*DONE, Exit.REGRESSION)
ANALYZE = (*DONE, Exit.OBJECTIVE_MISSED, Exit.INCONCLUSIVE, Exit.INTERRUPTED)
