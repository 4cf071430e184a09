"""Inspect which parts of tpx can be used here. Nothing heavy is imported in this process."""

import platform
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from pathlib import Path

import psutil

from tpx import __version__
from tpx.errors import LoadError
from tpx.processors import processor_name, schedulable_processors
from tpx.serving.backends.table import BACKENDS, KNOWN, python_based
from tpx.serving.extensions import is_installed, names, offer_of
from tpx.serving.inspection.isolated import FEATURES, Children, ProcessDied

_AT_A_TIME = 2
"""Importing takes a core and hundreds of megabytes each."""


class Usability(Enum):
    """Usability of a part of tpx on this machine."""

    USABLE = "usable"
    MISSING = "missing"
    """Its package is not installed."""
    UNUSABLE = "unusable"
    """Installed, but this machine lacks something it needs."""
    BROKEN = "broken"
    """Installed, but it fails, crashes, or hangs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectedPart:
    """A backend or a feature, and whether it is usable."""

    name: str
    state: Usability
    what: str = ""
    """The purpose of a feature; empty for a backend."""
    origin: str = ""
    """The package that provides a backend, if it is not tpx."""
    version: str = ""
    providers: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    why: str = ""
    """The reason why it cannot be used."""
    remedy: str = ""
    """The command that would enable it, or show more about the failure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The machine that tpx runs on."""

    tpx: str
    python: str
    executable: str
    system: str
    processor: str
    cores: int
    """Cores that this process may use."""
    memory_bytes: int
    memory_available_bytes: int
    gpus: tuple[str, ...] = ()
    gpu_note: str = ""
    """Why no GPU is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """The result of an inspection."""

    machine: Machine
    backends: tuple[InspectedPart, ...]
    features: tuple[InspectedPart, ...]

    def finding(self, name: str) -> InspectedPart | None:
        """Return the result for a backend or a feature."""
        return next((each for each in (*self.backends, *self.features) if each.name == name), None)


def inspect(
    *,
    timeout_s: float,
    backend_directory: Path | None = None,
    observe: Callable[[str], None] = lambda _: None,
) -> Inspection:
    """Inspect every backend and feature, each with this deadline.

    `observe` is called with the name of each before its inspection, from several threads.
    """
    based = [
        InspectedPart(name=name, state=Usability.USABLE, origin=str(path))
        for name, path in python_based(backend_directory).items()
    ]
    with ThreadPoolExecutor(_AT_A_TIME, thread_name_prefix="inspect") as pool:
        children = Children(timeout_s)
        try:
            backends = pool.map(partial(_inspect_backend, children, observe), names(BACKENDS))
            features = pool.map(partial(_inspect_feature, children, observe), FEATURES)
            found, having = (*backends, *based), tuple(features)
        finally:  # after an interrupt the pool waits for running processes
            children.stop()
    gpu = next(each for each in having if each.name == "gpu")
    if not gpu.devices and not _DRIVER.exists():
        found, having = (tuple(map(without_gpu, parts)) for parts in (found, having))
    return Inspection(machine=machine(gpu), backends=found, features=having)


_FOR_GPUS = frozenset({"tensorrt", "gpu"})
"""Parts that do nothing without a GPU."""
_HAVE_CPU_BUILDS = frozenset({"pytorch"})
"""Parts whose default package is for GPUs, gigabytes of it; uv knows the index of those for CPUs."""


def without_gpu(part: InspectedPart) -> InspectedPart:
    """Return the result for a machine without a GPU: nothing suggests a package for GPUs."""
    if part.state is not Usability.MISSING:
        return part
    if part.name in _FOR_GPUS:
        return replace(part, why=f"{part.why}, and there is no GPU", remedy="")
    if part.name in _HAVE_CPU_BUILDS:
        return replace(part, remedy=part.remedy.replace("pip", "uv pip", 1) + " --torch-backend cpu")
    return part


def _inspect_backend(children: Children, observe: Callable[[str], None], name: str) -> InspectedPart:
    observe(name)
    part, known = InspectedPart(name=name, state=Usability.USABLE), KNOWN.get(name)
    if known is not None:
        return _inspect_package(children, "backend", part, known.package, known.install)
    try:
        offer = offer_of(BACKENDS, name)
    except LoadError as exc:
        return replace(part, state=Usability.BROKEN, why=exc.message)
    if offer is None:  # it was uninstalled in the meantime
        return replace(part, state=Usability.MISSING)
    part = replace(part, origin=f"{offer.package} {offer.version}".strip(), version=offer.version)
    install = f"pip install {offer.package}" if offer.package != "?" else ""
    return _inspect_part(children, "backend", part, offer.target.partition(":")[0], install)


def _inspect_feature(children: Children, observe: Callable[[str], None], name: str) -> InspectedPart:
    observe(name)
    feature = FEATURES[name]
    part = InspectedPart(name=name, state=Usability.USABLE, what=feature.what)
    return _inspect_package(children, "feature", part, feature.package, feature.install)


def _inspect_package(
    children: Children, kind: str, part: InspectedPart, package: str, install: str
) -> InspectedPart:
    if package and not is_installed(package):
        why = f"the package {package} is not installed"
        return replace(part, state=Usability.MISSING, why=why, remedy=install)
    return _inspect_part(children, kind, part, package, install)


def _inspect_part(
    children: Children, kind: str, part: InspectedPart, module: str, install: str
) -> InspectedPart:
    """Inspect what is installed; importing `module` by hand shows why a process dies."""
    try:
        description = children.describe(kind, part.name)
    except ProcessDied as exc:
        remedy = f"python -X faulthandler -c 'import {module}'" if module else ""
        return replace(part, state=Usability.BROKEN, version="", why=exc.message, remedy=remedy)
    except LoadError as exc:
        remedy = install.replace("pip install", "pip install --force-reinstall", 1)
        return replace(part, state=Usability.BROKEN, version="", why=exc.message, remedy=remedy)
    return replace(
        part,
        state=Usability.UNUSABLE if description.lacks else Usability.USABLE,
        version=description.version or part.version,
        providers=description.providers,
        devices=description.devices,
        why=description.lacks,
        remedy=description.remedy if description.lacks else "",
    )


_DRIVER = Path("/proc/driver/nvidia/version")


def machine(gpu: InspectedPart) -> Machine:
    """Describe this machine; `gpu` is the result for that feature."""
    memory, why = psutil.virtual_memory(), gpu.why
    if gpu.state is Usability.MISSING:
        remedy = f"there is an NVIDIA driver; to see its GPUs: {gpu.remedy}"
        why = remedy if _DRIVER.exists() else "no NVIDIA driver"
    return Machine(
        tpx=__version__,
        python=platform.python_version(),
        executable=sys.executable,
        system=platform.platform(),
        processor=processor_name(),
        cores=schedulable_processors(),
        memory_bytes=memory.total,
        memory_available_bytes=memory.available,
        gpus=gpu.devices,
        gpu_note="" if gpu.devices else why,
    )
