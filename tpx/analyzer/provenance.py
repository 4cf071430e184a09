"""The origin of a run's figures: versions, machine, command, and the contents of a model's directory."""

import hashlib
import importlib.metadata
import os
import platform
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path

import tpx
from tpx.analyzer.monitors.machine import MachineType
from tpx.analyzer.results.journal import Provenance

_PACKAGES = ("numpy", "onnxruntime", "onnxruntime-gpu", "torch", "tensorrt", "protobuf", "uvloop")

WHOLE_BYTES = 16 << 20
"""Larger files are fingerprinted by their size and their first and last mebibyte."""
END_BYTES = 1 << 20

OWN_FILES = "config.pbtxt.backup-"
"""Prefix of the backups that `tpx analyze apply` makes, which fingerprints ignore."""


def provenance(command: Iterable[str], machine: MachineType) -> Provenance:
    """Return the installed versions and the machine that measures; package versions are read without
    imports.
    """
    host = machine.facts
    if hasattr(os, "getloadavg"):
        host["Load average at the start"] = f"{os.getloadavg()[0]:.2f} (1 min)"
    return Provenance(
        command=tuple(command),
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        versions={"tpx": tpx.__version__, "Python": platform.python_version(), **_package_versions()},
        host=host,
    )


def _package_versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def fingerprint(directory: Path, instead: Mapping[str, str | None] | None = None) -> str:
    """Return the SHA-256 of the names, sizes and contents of all files below; empty if there is no
    directory.

    `instead` maps file names to text that replaces their content; None hides the file.
    """
    if not directory.is_dir():
        return ""
    digest = hashlib.sha256()
    for path in sorted(directory.rglob("*")):
        if not path.is_file() or path.name.startswith(OWN_FILES):
            continue
        name = str(path.relative_to(directory))
        if instead is not None and name in instead:
            text = instead[name]
            if text is not None:
                digest.update(f"{name}\0{len(text.encode())}\0".encode() + text.encode())
            continue
        size = path.stat().st_size
        digest.update(f"{name}\0{size}\0".encode())
        with path.open("rb") as file:
            if size <= WHOLE_BYTES:
                while block := file.read(END_BYTES):
                    digest.update(block)
            else:
                digest.update(file.read(END_BYTES))
                file.seek(-END_BYTES, 2)
                digest.update(file.read(END_BYTES))
    return digest.hexdigest()
