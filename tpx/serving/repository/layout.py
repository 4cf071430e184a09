"""The layout of a model repository on disk (Triton: docs/user_guide/model_repository.md).

<repository>/<model>/config.pbtxt
<repository>/<model>/<version>/model.onnx
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tpx.errors import LoadError, UsageError
from tpx.protocol import messages, model_config
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
    """The models of repositories and single files, by name. Raises UsageError for a path that is neither."""
    found: dict[str, list[ModelSource]] = {}
    for path in paths:
        for source in [_single_file(path)] if path.is_file() else _repository(path):
            found.setdefault(source.name, []).append(source)
    out = []
    for name, sources in sorted(found.items()):
        if len(sources) > 1:
            log.error("failed to poll model '%s': not unique across all model repositories", name)
        else:
            out.append(sources[0])
    return out


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
    out = []
    for entry in entries:
        if entry.name.startswith(".") or not entry.is_dir():
            continue
        try:
            out.append(ModelSource(name=entry.name, directory=entry, versions=_versions(entry)))
        except OSError as exc:
            log.error("Poll failed for model directory '%s': %s", entry.name, exc.strerror)
    return out


def _versions(directory: Path) -> dict[int, Path]:
    """Version directories by number; names that are no version are skipped, with a word in the log."""
    out = {}
    for entry in directory.iterdir():
        name = entry.name
        if not entry.is_dir() or name in _NOT_VERSIONS or name.startswith("."):
            continue
        if not (name.isascii() and name.isdigit()) or int(name) > _MAX_VERSION:
            log.warning("ignore version directory '%s' which fails to convert to integral number", entry)
        elif name != "0" and name.startswith("0"):
            log.warning(
                "ignore version directory '%s' which contains leading zeros in its directory name", entry
            )
        else:
            out[int(name)] = entry
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
        path = (directory / output.label_filename).resolve()
        if not path.is_relative_to(directory.resolve()):
            raise LoadError(
                f"label file '{output.label_filename}' of model '{config.name}' is outside its directory"
            )
        try:
            out[output.name] = tuple(path.read_text(encoding="utf-8").splitlines())
        except (OSError, UnicodeDecodeError) as exc:
            raise LoadError(f"cannot read label file '{path}' of model '{config.name}': {exc}") from exc
    return out
