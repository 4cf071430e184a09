"""Inspect which parts of tpx can be used here. Nothing heavy is imported in this process."""

import platform
import sys
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

import psutil

from tpx import __version__
from tpx.errors import LoadError
from tpx.processors import processor_name, schedulable_processors
from tpx.serving.backends.contract import Description
from tpx.serving.backends.table import BACKENDS, KNOWN, python_based
from tpx.serving.extensions import is_installed, names, offer_of
from tpx.serving.inspection.isolated import FEATURES, InspectionFailure, PartInspections, PartName


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Subject:
    """A part to inspect, and what is already known about it."""

    part: PartName
    finding: InspectedPart
    module: str = ""
    """Module that it imports; importing it by hand shows why a process dies."""
    install: str = ""


def inspect(*, timeout_s: float, backend_directory: Path | None = None) -> Inspection:
    """Inspect every backend and feature, each with this deadline."""
    based = [
        InspectedPart(name=name, state=Usability.USABLE, origin=str(path))
        for name, path in python_based(backend_directory).items()
    ]
    subjects = [_make_backend_subject(name) for name in names(BACKENDS)]
    first = len(subjects)
    for name, feature in FEATURES.items():
        part = PartName(kind="feature", name=name)
        subjects.append(_make_subject(part, feature.package, feature.install, feature.what))
    usable = [each.part for each in subjects if each.finding.state is Usability.USABLE]
    results = PartInspections(timeout_s).at(usable)
    found = [
        _complete_finding(each, results[each.part]) if each.part in results else each.finding
        for each in subjects
    ]
    gpu = next(each for each in found[first:] if each.name == "gpu")
    return Inspection(machine=machine(gpu), backends=(*found[:first], *based), features=tuple(found[first:]))


def _make_backend_subject(name: str) -> _Subject:
    part = PartName(kind="backend", name=name)
    known = KNOWN.get(name)
    if known is not None:
        return _make_subject(part, known.package, known.install)
    try:
        offer = offer_of(BACKENDS, name)
    except LoadError as exc:
        return _Subject(part=part, finding=InspectedPart(name=name, state=Usability.BROKEN, why=exc.message))
    if offer is None:  # it was uninstalled in the meantime
        return _Subject(part=part, finding=InspectedPart(name=name, state=Usability.MISSING))
    return _Subject(
        part=part,
        finding=InspectedPart(
            name=name, state=Usability.USABLE, origin=f"{offer.package} {offer.version}".strip()
        ),
        module=offer.target.partition(":")[0],
        install=f"pip install {offer.package}" if offer.package != "?" else "",
    )


def _make_subject(part: PartName, package: str, install: str, what: str = "") -> _Subject:
    finding = InspectedPart(name=part.name, state=Usability.USABLE, what=what)
    if package and not is_installed(package):
        why = f"the package {package} is not installed"
        finding = replace(finding, state=Usability.MISSING, why=why, remedy=install)
    return _Subject(part=part, finding=finding, module=package, install=install)


def _complete_finding(subject: _Subject, description: Description | InspectionFailure) -> InspectedPart:
    finding = subject.finding
    if isinstance(description, InspectionFailure):
        remedy = subject.install.replace("pip install", "pip install --force-reinstall", 1)
        if description.ended:
            remedy = f"python -X faulthandler -c 'import {subject.module}'" if subject.module else ""
        return replace(finding, state=Usability.BROKEN, why=description.why, remedy=remedy)
    return replace(
        finding,
        state=Usability.UNUSABLE if description.lacks else Usability.USABLE,
        version=description.version or finding.origin.rpartition(" ")[2],
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
