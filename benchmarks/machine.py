"""What the figures were taken on, in one line."""

import os
import platform
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from time import monotonic, sleep

from tpx import __version__

QUIET = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One machine at one time."""

    cores: int
    cpu: str
    kernel: str
    python: str
    onnxruntime: str
    tpx: str
    load_before: float
    """Load average of one minute before anything was started."""
    started: str
    """ISO 8601, in UTC."""

    def __str__(self) -> str:
        return (
            f"{self.started}, {self.cores} cores of {self.cpu}, load average before {self.load_before:.2f}, "
            f"Linux {self.kernel}, Python {self.python}, ONNX Runtime {self.onnxruntime}, tpx {self.tpx}"
        )


def this_machine() -> Machine:
    """The machine as it is now."""
    return Machine(
        cores=os.cpu_count() or 1,
        cpu=_cpu_model(),
        kernel=platform.release(),
        python=platform.python_version(),
        onnxruntime=version("onnxruntime"),
        tpx=__version__,
        load_before=os.getloadavg()[0],
        started=datetime.now(UTC).isoformat(timespec="minutes"),
    )


def wait_for_quiet(timeout_s: float) -> None:
    """Wait until the machine's load average falls below QUIET, at most so long."""
    end = monotonic() + timeout_s
    while os.getloadavg()[0] >= QUIET and monotonic() < end:
        print(f"  load average {os.getloadavg()[0]:.2f}: waiting ...", file=sys.stderr, flush=True)
        sleep(15)


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
