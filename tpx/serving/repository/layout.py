"""The layout of a model repository on disk (Triton: docs/user_guide/model_repository.md).

<repository>/<model>/config.pbtxt
<repository>/<model>/<version>/model.onnx
"""

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tpx.errors import LoadError, UsageError
from tpx.protocol import messages, model_config
from tpx.serving.backends.base import inside
from tpx.serving.backends.table import RECOGNISED_FILES

log = logging.getLogger(__name__)

_NOT_VERSIONS = frozenset({"configs", "warmup", "initial_state"})
_MAX_VERSION = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource:
    """One model as it lies on disk: a directory of versions, or a single file that is version 1."""

    name: str
    directory: Path
    versions: Mapping[int, Path]
    file: Path | None = None
    fault: str = ""
    """Why it cannot be loaded, if the directory alone tells."""

    def read_config(self) -> Any:
        """The ModelConfig as written, or an empty one. Raises ConfigError."""
        path = self.directory / "config.pbtxt"
        if self.file is None and path.is_file():
            return model_config.read(path)
        config = messages.ModelConfig(name=self.name)
        if self.file is not None:
            kind = RECOGNISED_FILES.get(f"model{self.file.suffix}", ("", ""))
            config.backend, config.platform = kind
            config.default_model_filename = self.file.name
        return config

    @property
    def has_config(self) -> bool:
        return self.file is not None or (self.directory / "config.pbtxt").is_file()


def scan(paths: Sequence[Path]) -> list[ModelSource]:
    """The models of repositories and single files, by name. Raises UsageError for a path that is neither.

    A path given twice counts once; a name that two of them have belongs to neither, and has a fault.
    """
    found: dict[str, list[ModelSource]] = {}
    for path in {os.path.realpath(path): path for path in reversed(paths)}.values():
        for source in [_single_file(path)] if path.is_file() else _repository(path):
            found.setdefault(source.name, []).append(source)
    return [
        sources[0] if len(sources) == 1 else _not_unique(name, sources)
        for name, sources in sorted(found.items())
    ]


def _not_unique(name: str, sources: Sequence[ModelSource]) -> ModelSource:
    places = ", ".join(f"'{source.file or source.directory}'" for source in sources)
    log.error("failed to poll model '%s': not unique across all model repositories: %s", name, places)
    fault = f"model appears in two or more repositories: {places}"
    return ModelSource(name=name, directory=sources[0].directory, versions={}, fault=fault)


def _single_file(path: Path) -> ModelSource:
    if f"model{path.suffix}" not in RECOGNISED_FILES:
        kinds = ", ".join(name.removeprefix("model") for name in RECOGNISED_FILES)
        raise UsageError(f"'{path}' is no model file that tpx knows ({kinds}) and no model repository")
    directory = path.resolve().parent
    return ModelSource(name=path.stem, directory=directory, versions={1: directory}, file=path.resolve())


def _repository(path: Path) -> list[ModelSource]:
    try:
        entries = sorted(path.iterdir())
    except OSError as exc:
        raise UsageError(f"cannot read model repository '{path}': {exc.strerror}") from exc
    if (path / "config.pbtxt").is_file():
        raise UsageError(f"'{path}' is a model, and not a repository of models: name the directory it is in")
    return [_source(entry) for entry in entries if not entry.name.startswith(".") and entry.is_dir()]


def _source(directory: Path) -> ModelSource:
    name = os.fsencode(directory.name).decode(errors="replace")
    if name != directory.name:
        fault = f"the name of the directory {os.fsencode(directory)!r} is not UTF-8"
        return ModelSource(name=name, directory=directory, versions={}, fault=fault)
    try:
        return ModelSource(name=name, directory=directory, versions=_versions(directory))
    except OSError as exc:
        log.error("Poll failed for model directory '%s': %s", name, exc.strerror)
        fault = f"cannot read '{directory}': {exc.strerror}"
        return ModelSource(name=name, directory=directory, versions={}, fault=fault)


def _versions(directory: Path) -> dict[int, Path]:
    """Version directories by number; names that are no version are skipped, with a word in the log."""
    out = {}
    for entry in directory.iterdir():
        name = entry.name
        if not entry.is_dir() or name in _NOT_VERSIONS or name.startswith("."):
            continue
        if not (name.isascii() and name.isdigit()) or int(name) > _MAX_VERSION:
            why = "fails to convert to integral number"
        elif name != "0" and name.startswith("0"):
            why = "contains leading zeros in its directory name"
        else:
            out[int(name)] = entry
            continue
        log.warning("ignore version directory '%s' which %s: '%s'", name, why, entry)
    return out


def wanted_versions(config: Any, present: Mapping[int, Path]) -> list[int]:
    """The versions that `version_policy` selects, oldest first. Raises LoadError if there is none."""
    policy = config.version_policy
    choice = policy.WhichOneof("policy_choice")
    ordered = sorted(present)
    if choice == "specific":
        for version in policy.specific.versions:
            if version not in present:
                log.error(
                    "version %d is specified for model '%s', but the version directory is not present",
                    version,
                    config.name,
                )
        ordered = [version for version in ordered if version in policy.specific.versions]
    elif choice != "all":
        ordered = ordered[-max(1, policy.latest.num_versions) :]
    if not ordered:
        raise LoadError(
            f"at least one version must be available under the version policy of model '{config.name}'"
        )
    return ordered


def read_labels(config: Any, directory: Path) -> dict[str, tuple[str, ...]]:
    """The labels of outputs that name a `label_filename`, one a line. Raises LoadError."""
    out = {}
    for output in config.output:
        if not output.label_filename:
            continue
        path = inside(directory, output.label_filename, "label_filename")
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as exc:
            raise LoadError(f"cannot read label file '{path}' of model '{config.name}': {exc}") from exc
        # not splitlines: a label may hold what only Unicode calls the end of a line
        out[output.name] = tuple(line.removesuffix("\r") for line in text.removesuffix("\n").split("\n"))
    return out
