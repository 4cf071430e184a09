"""What tpx runs on."""

import os
import platform
import sys
from pathlib import Path

import psutil

from tpx import __version__
from tpx.serving.inspection.base import Finding, Machine, State

_DRIVER = Path("/proc/driver/nvidia/version")


def machine(gpu: Finding) -> Machine:
    """This one; `gpu` is what was found of the feature."""
    memory = psutil.virtual_memory()
    return Machine(
        tpx=__version__,
        python=platform.python_version(),
        executable=sys.executable,
        system=platform.platform(),
        processor=_processor(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory_bytes=memory.total,
        memory_available_bytes=memory.available,
        gpus=gpu.devices,
        gpu_note="" if gpu.devices else _why_none(gpu),
    )


def _why_none(gpu: Finding) -> str:
    if gpu.state is State.MISSING:
        if _DRIVER.exists():
            return f"there is an NVIDIA driver; to see its GPUs: {gpu.remedy}"
        return "no NVIDIA driver"
    return gpu.why


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")]
    return names[0] if names else platform.processor()
