"""The layout of a model repository on disk (Triton: docs/user_guide/model_repository.md).

<repository>/<model>/config.pbtxt
<repository>/<model>/configs/<name>.pbtxt   instead, with --model-config-name
<repository>/<model>/<version>/model.onnx
"""

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from tpx.errors import LoadError, UsageError
from tpx.protocol import messages, model_config
from tpx.protocol.messages import ModelConfig
from tpx.serving.backends.contract import inside
from tpx.serving.backends.table import RECOGNISED_FILES
from tpx.serving.model_id import ModelId

log = logging.getLogger(__name__)

_NOT_VERSIONS = frozenset({"configs", "warmup", "initial_state"})
_MAX_VERSION = 2**63 - 1
_TOLD = 10
"""Missing versions that the log names, of those that a configuration wants."""


class NoVersion(LoadError):
    """A model has no version that its version policy wants."""


class Origin(Protocol):
    """A model that lies on no disk of this machine: it is fetched to be loaded."""

    @property
    def url(self) -> str: ...

    @property
    def private_parent(self) -> Path | None:
        """Where the directory that it is fetched into is made; None for where temporary files go."""

    def has(self, path: str) -> bool:
        """Tell whether it has this file."""

    def size_bytes(self, version: int) -> int:
        """Return the bytes of the files of a version."""

    def stamp(self, part: str) -> str:
        """Changes with a file, with those of a version or, for `""`, with those beside the versions."""

    def fetch(self, directory: Path) -> None:
        """All but the files of versions, whose names are there. Raises LoadError."""

    def fetch_version(self, directory: Path, version: int) -> None:
        """Also the files of one version. Raises LoadError."""


class Elsewhere(Protocol):
    """A repository on no disk of this machine; as a string what the server was told of it.

    Its calls raise UsageError where it cannot be read.
    """

    def scan(self) -> list["ModelSource"]: ...

    def find(self, name: str) -> "ModelSource | None": ...

    def names(self) -> list[str]: ...


Place = Path | Elsewhere


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource:
    """One model as it lies on disk: a directory of versions, or a single file that is version 1."""

    name: str
    namespace: str = ""
    directory: Path
    versions: Mapping[int, Path] = field(default_factory=dict)
    file: Path | None = None
    fault: str = ""
    """Why it cannot be loaded, if the directory alone tells."""
    duplicate: bool = False
    """The fault is that several repositories have it."""
    config_name: str = ""
    """Of the file in `configs` that stands for config.pbtxt, if it is there."""
    override: Any = None
    """A ModelConfig that stands for what is written."""
    origin: Origin | None = None
    """Where it is fetched from; `directory` is none before that."""

    @property
    def model_id(self) -> ModelId:
        return ModelId(self.name, self.namespace)

    @property
    def place(self) -> str:
        """Where it is, in words."""
        return self.origin.url if self.origin is not None else str(self.file or self.directory)

    def fetched(self, directory: Path) -> "ModelSource":
        """The same in a directory of this machine: its configuration, and what else is beside the versions.

        Raises LoadError.
        """
        if self.origin is not None and not self.fault:
            self.origin.fetch(directory)
        versions = {version: directory / str(version) for version in self.versions}
        return replace(self, directory=directory, versions=versions)

    def read_config(self) -> ModelConfig:
        """The ModelConfig as written, or an empty one. Raises ConfigError."""
        config = messages.ModelConfig(name=self.name)
        if self.override is not None:
            config.CopyFrom(self.override)
            return config
        if self.file is None and self.config_path.is_file():
            return model_config.read(self.config_path)
        if self.file is not None:
            kind = RECOGNISED_FILES.get(f"model{self.file.suffix}", ("", ""))
            config.backend, config.platform = kind
            config.default_model_filename = self.file.name
        return config

    @property
    def config_path(self) -> Path:
        """Where the configuration is, or would be."""
        chosen = self.directory / "configs" / f"{self.config_name}.pbtxt"
        return chosen if self.config_name and chosen.is_file() else self.directory / "config.pbtxt"

    @property
    def has_config(self) -> bool:
        return self.override is not None or self.file is not None or self.config_path.is_file()


def scan(paths: Sequence[Place], *, config_name: str = "", namespaces: bool = False) -> list[ModelSource]:
    """The models of repositories and single files, by name. Raises UsageError for a path that is neither.

    A path given twice counts once; a name that two of them have belongs to neither, and has a fault, unless
    they are `namespaces`.
    """
    found: dict[ModelId, list[ModelSource]] = {}
    for path in _places(paths):
        for source in _sources(path, config_name):
            each = replace(source, namespace=str(path)) if namespaces else source
            found.setdefault(each.model_id, []).append(each)
    return [_unique(model, sources) for model, sources in sorted(found.items())]


def _sources(path: Place, config_name: str) -> list[ModelSource]:
    if not isinstance(path, Path):
        return [replace(source, config_name=config_name) for source in path.scan()]
    return [_single_file(path)] if path.is_file() else _repository(path, config_name)


def find(paths: Sequence[Place], model: ModelId, *, config_name: str = "") -> ModelSource | None:
    """Return what `scan` would find of this model, reading nothing else."""
    name = model.name
    if not name or "/" in name or "\0" in name or name.startswith("."):
        return None
    sources = []
    for path in _places(paths):
        if model.namespace and model.namespace != str(path):
            continue
        if not isinstance(path, Path):
            there = path.find(name)
            sources += [replace(there, config_name=config_name)] if there is not None else []
        elif path.is_file():
            sources += [_single_file(path)] if path.stem == name else []
        elif os.path.isdir(path / name):  # noqa: PTH112 (False too where no such name can be)
            sources.append(_source(path / name, config_name))
    if not sources:
        return None
    return _unique(model, [replace(source, namespace=model.namespace) for source in sources])


def find_all(paths: Sequence[Place], name: str) -> list[ModelId]:
    """The models of a name in all namespaces; a repository that cannot be read is left out."""
    found = []
    for path in _places(paths):
        model = ModelId(name, str(path))
        try:
            if find([path], model) is not None:
                found.append(model)
        except UsageError as exc:
            log.error("failed to look for model '%s': %s", model, exc)
    return found


def names(paths: Sequence[Place], *, namespaces: bool = False) -> dict[ModelId, str]:
    """The models that `scan` would find, each with the fault of not being unique, or ""."""
    found: dict[ModelId, list[ModelSource]] = {}
    for path in _places(paths):
        for name, directory in _named(path):
            source = ModelSource(name=name, namespace=str(path) if namespaces else "", directory=directory)
            found.setdefault(source.model_id, []).append(source)
    return {model: _fault_of(sources) if len(sources) > 1 else "" for model, sources in sorted(found.items())}


def _named(path: Place) -> list[tuple[str, Path]]:
    """The names of models in a place, and what to call where they are."""
    if not isinstance(path, Path):
        return [(name, Path(name)) for name in path.names()]
    if path.is_file():
        return [(path.stem, path)]
    return [(_name_of(entry), entry) for entry in _model_directories(path)]


def _places(paths: Sequence[Place]) -> list[Place]:
    """Each place once, however it is spelt."""
    known = {os.path.realpath(path) if isinstance(path, Path) else path: path for path in reversed(paths)}
    return list(known.values())


def _unique(model: ModelId, sources: Sequence[ModelSource]) -> ModelSource:
    if len(sources) == 1:
        return sources[0]
    name, fault = model.name, _fault_of(sources)
    log.error("failed to poll model '%s': not unique across all model repositories: %s", name, fault)
    return ModelSource(name=name, directory=sources[0].directory, fault=fault, duplicate=True)


def _fault_of(sources: Sequence[ModelSource]) -> str:
    places = ", ".join(f"'{source.place}'" for source in sources)
    return f"model appears in two or more repositories: {places}"


def _single_file(path: Path) -> ModelSource:
    if f"model{path.suffix}" not in RECOGNISED_FILES:
        kinds = ", ".join(name.removeprefix("model") for name in RECOGNISED_FILES)
        raise UsageError(f"'{path}' is no model file that tpx knows ({kinds}) and no model repository")
    directory = path.resolve().parent
    return ModelSource(name=path.stem, directory=directory, versions={1: directory}, file=path.resolve())


def _repository(path: Path, config_name: str) -> list[ModelSource]:
    directories = _model_directories(path)
    if (path / "config.pbtxt").is_file():
        raise UsageError(f"'{path}' is a model, and not a repository of models: name the directory it is in")
    if version_of(path.resolve().name)[0] is not None and (file := _model_file(path)) is not None:
        raise UsageError(
            f"'{path}' is a version of a model, and not a repository of models: name the directory that its "
            f"model is in, or '{file}' to serve it by itself"
        )
    return [_source(directory, config_name) for directory in directories]


def _model_file(directory: Path) -> Path | None:
    """A file or directory in it that a backend takes for a model, unless it is a Python file."""
    names = (name for name in RECOGNISED_FILES if not name.endswith(".py"))
    return next((directory / name for name in names if (directory / name).exists()), None)


def _model_directories(path: Path) -> list[Path]:
    try:
        entries = sorted(path.iterdir())
    except OSError as exc:
        raise UsageError(f"cannot read model repository '{path}': {exc.strerror}") from exc
    return [entry for entry in entries if not entry.name.startswith(".") and entry.is_dir()]


def _name_of(directory: Path) -> str:
    return os.fsencode(directory.name).decode(errors="replace")


def _source(directory: Path, config_name: str) -> ModelSource:
    name = _name_of(directory)
    if name != directory.name:
        fault = f"the name of the directory {os.fsencode(directory)!r} is not UTF-8"
        return ModelSource(name=name, directory=directory, fault=fault)
    try:
        versions = versions_in(directory)
    except OSError as exc:
        log.error("Poll failed for model directory '%s': %s", name, exc.strerror)
        fault = f"cannot read '{directory}': {exc.strerror}"
        return ModelSource(name=name, directory=directory, fault=fault)
    return ModelSource(name=name, directory=directory, versions=versions, config_name=config_name)


def versions_in(directory: Path) -> dict[int, Path]:
    """Version directories by number; names that are no version are skipped, with a word in the log."""
    out = {}
    for entry in directory.iterdir():
        name = entry.name
        version, why = version_of(name) if entry.is_dir() else (None, "")
        if version is not None:
            out[version] = entry
        elif why:
            log.warning("ignore version directory '%s' which %s: '%s'", name, why, entry)
    return out


def version_of(name: str) -> tuple[int | None, str]:
    """The version that a directory is; or None, and why it is none unless it is not meant to be one."""
    if name in _NOT_VERSIONS or name.startswith("."):
        return None, ""
    if not (name.isascii() and name.isdigit()) or len(name) > 19 or int(name) > _MAX_VERSION:
        return None, "fails to convert to integral number"
    if name != "0" and name.startswith("0"):
        return None, "contains leading zeros in its directory name"
    return int(name), ""


def wanted_versions(config: ModelConfig, source: ModelSource) -> list[int]:
    """The versions that `version_policy` selects, oldest first. Raises NoVersion if there is none."""
    present = source.versions
    policy = config.version_policy
    choice = policy.WhichOneof("policy_choice")
    ordered = sorted(present)
    if choice == "specific":
        chosen = set(policy.specific.versions)
        for version in islice(sorted(chosen - present.keys()), _TOLD):
            log.error(
                "version %d is specified for model '%s', but the version directory is not present",
                version,
                config.name,
            )
        ordered = [version for version in ordered if version in chosen]
    elif choice != "all":
        newest = policy.latest.num_versions if choice == "latest" else 1
        ordered = ordered[max(0, len(ordered) - newest) :]
    if not ordered:
        raise NoVersion(
            f"at least one version must be available under the version policy of model '{config.name}'"
            f"{_versions_there(source)}"
        )
    return ordered


def _versions_there(source: ModelSource) -> str:
    """Which versions a model has, or where one would be; nothing of one that a client has brought."""
    if source.override is not None:
        return ""
    if source.versions:
        return f" ('{source.place}' has: {', '.join(map(str, sorted(source.versions)))})"
    file = None if source.origin is not None else _model_file(source.directory)
    if file is not None:
        return f" ('{file}' belongs into the directory of a version: '{source.directory / '1' / file.name}')"
    return f" ('{source.place}' has no directory of a version, such as '{source.place}/1')"


def read_labels(config: ModelConfig, directory: Path) -> dict[str, tuple[str, ...]]:
    """The labels of outputs that name a `label_filename`, one a line. Raises LoadError."""
    out = {}
    for output in config.output:
        if not output.label_filename:
            continue
        path = inside(directory, output.label_filename, "label_filename")
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as exc:
            why = exc.strerror if isinstance(exc, OSError) else exc
            raise LoadError(f"cannot read label file '{path}' of model '{config.name}': {why}") from exc
        # not splitlines: a label may hold what only Unicode calls the end of a line
        out[output.name] = tuple(line.removesuffix("\r") for line in text.removesuffix("\n").split("\n"))
    return out
