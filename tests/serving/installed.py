"""Packages as pip installs them: a module and its metadata, in a directory that Python imports from."""

from collections.abc import Mapping
from pathlib import Path


def install(
    site: Path,
    package: str,
    source: str,
    entry_points: Mapping[str, Mapping[str, str]],
    *,
    version: str = "1.0",
) -> None:
    """Install a package of one module; `entry_points` are targets by group and name."""
    (site / f"{package.replace('-', '_')}.py").write_text(source, encoding="utf-8")
    metadata = site / f"{package.replace('-', '_')}-{version}.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    lines = []
    for group, targets in entry_points.items():
        lines += [f"[{group}]", *(f"{name} = {target}" for name, target in targets.items())]
    (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n")
    (metadata / "RECORD").write_text("")
