"""Where a run's figures come from: versions, machine, command."""

import importlib.metadata
import os
import platform
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

import psutil

import tpx
from tpx.analyzer.monitors.gpu import gpu_names
from tpx.analyzer.results.journal import Provenance

_PACKAGES = ("numpy", "onnxruntime", "onnxruntime-gpu", "torch", "tensorrt", "protobuf", "uvloop")


def provenance(command: Iterable[str]) -> Provenance:
    """The present machine and installation; nothing heavy is imported for a version."""
    return Provenance(
        command=tuple(command),
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        versions={"tpx": tpx.__version__, "Python": platform.python_version(), **_package_versions()},
        host=_host(),
    )


def _package_versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _host() -> dict[str, str]:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else psutil.cpu_count() or 1
    host = {
        "Host": platform.node(),
        "System": f"{platform.system()} {platform.release()} ({platform.machine()})",
        "Processor": _processor(),
        "Cores": f"{usable} usable of {psutil.cpu_count() or usable}",
        "Memory": f"{psutil.virtual_memory().total / 2**30:.1f} GiB",
        "GPU": ", ".join(gpu_names()) or "none",
    }
    if hasattr(os, "getloadavg"):
        host["Load average at the start"] = f"{os.getloadavg()[0]:.2f} (1 min)"
    return host


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())
