"""The layout of a model repository on disk (Triton: docs/user_guide/model_repository.md).

<repository>/<model>/config.pbtxt
<repository>/<model>/configs/<name>.pbtxt   instead, with --model-config-name
<repository>/<model>/<version>/model.onnx
"""

import logging
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol

import msgspec
from msgspec.structs import replace

from tpx.errors import LoadError, UsageError
from tpx.protocol import messages, model_config
from tpx.protocol.messages import ModelConfig
from tpx.serving.backends.contract import inside
from tpx.serving.backends.table import RECOGNISED_FILES
from tpx.serving.model_id import ModelId

log = logging.getLogger(__name__)

_NOT_VERSIONS = frozenset({"configs", "warmup", "initial_state"})
_MOST_NAMED = 10
"""Maximum number of missing versions that the log names."""


class NoVersion(LoadError):
    """Raised when a model has no version that its version policy selects."""


class Origin(Protocol):
    """Remote location of a model that is not on a local disk and must be fetched before it is loaded."""

    @property
    def url(self) -> str: ...

    @property
    def private_parent(self) -> Path | None:
        """Parent of the directory to fetch into; None for the default temporary directory."""

    def has(self, path: str) -> bool:
        """Return True if the model has this file."""

    def size_bytes(self, version: int) -> int:
        """Return the total file size of a version, in bytes."""

    def stamp(self, part: str) -> str:
        """Return a digest of a file, of a version's files or, for `""`, of the files beside the versions."""

    def fetch(self, directory: Path) -> None:
        """Fetch all files outside versions; files of versions are created empty. Raises LoadError."""

    def fetch_version(self, directory: Path, version: int) -> None:
        """Fetch the files of one version as well. Raises LoadError."""


class Repository(Protocol):
    """A model repository; `str` is its path or URL as configured. Calls block, and raise UsageError."""

    @property
    def key(self) -> str:
        """Identity of the location: equal for different spellings of it."""

    def scan(self) -> list["ModelSource"]:
        """Return every model."""

    def find(self, name: str) -> "ModelSource | None":
        """Return the source that `scan` would return for this name, reading no other."""

    def names(self) -> dict[str, str]:
        """Return the names of all models, each with its location for messages."""

    def misplaced(self) -> list[str]:
        """Return warnings about model files outside the expected layout."""


class ModelSource(msgspec.Struct, frozen=True, kw_only=True):
    """A model as found on disk: a directory of versions, or a single file that counts as version 1."""

    name: str
    namespace: str = ""
    directory: Path
    versions: Mapping[int, Path] = msgspec.field(default_factory=dict)
    file: Path | None = None
    fault: str = ""
    """Reason why the model cannot be loaded, if the directory alone shows it."""
    duplicate: bool = False
    """True if the fault is that several repositories have this model."""
    config_name: str = ""
    """Name of the file in `configs` to use instead of config.pbtxt, if it exists."""
    override: ModelConfig | None = None
    """Configuration from a load request, used instead of the one on disk."""
    origin: Origin | None = None
    """Remote location to fetch from. Until then `directory` does not exist."""
    private: bool = False
    """True if `directory` is a temporary one, made for one load."""
    renamed: bool = False
    """True if `name` is not that of the directory, so that the configuration may have any name."""

    @property
    def model_id(self) -> ModelId:
        return ModelId(self.name, self.namespace)

    @property
    def location(self) -> str:
        """Location for messages."""
        return self.origin.url if self.origin is not None else str(self.file or self.directory)

    def read_config(self) -> ModelConfig:
        """Return the ModelConfig as written, or an almost empty one. Raises ConfigError."""
        config = messages.ModelConfig(name=self.name)
        if self.override is not None:
            config.CopyFrom(self.override)
        elif self.file is not None:
            config.backend, config.platform = RECOGNISED_FILES.get(f"model{self.file.suffix}", ("", ""))
            config.default_model_filename = self.file.name
        elif self.config_path.is_file():
            config = model_config.read(self.config_path)
            if self.renamed:
                config.name = self.name
        return config

    @property
    def config_path(self) -> Path:
        """Path of the configuration file, whether or not it exists."""
        chosen = self.directory / "configs" / f"{self.config_name}.pbtxt"
        return chosen if self.config_name and chosen.is_file() else self.directory / "config.pbtxt"

    @property
    def has_config(self) -> bool:
        return self.override is not None or self.file is not None or self.config_path.is_file()


class LocalRepository:
    """Repository (implements the protocol) in a directory of models or a single model file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __str__(self) -> str:
        return str(self._path)

    @property
    def key(self) -> str:
        return os.path.realpath(self._path)

    def scan(self) -> list[ModelSource]:
        path = self._path
        if path.is_file():
            return [_find_single_file(path)]
        directories = _list_model_directories(path)
        no_repository = "and not a repository of models: name the directory"
        if (path / "config.pbtxt").is_file():
            raise UsageError(f"'{path}' is a model, {no_repository} it is in")
        if version_of(path.resolve().name)[0] is not None and (file := _find_model_file(path)) is not None:
            raise UsageError(
                f"'{path}' is a version of a model, {no_repository} that its model is in, or '{file}' to "
                "serve it by itself"
            )
        return [_read_source(directory) for directory in directories]

    def find(self, name: str) -> ModelSource | None:
        path = self._path
        if path.is_file():
            return _find_single_file(path) if path.stem == name else None
        # os.path.isdir is also False for overlong names, for which Path.is_dir raises
        return _read_source(path / name) if os.path.isdir(path / name) else None  # noqa: PTH112

    def names(self) -> dict[str, str]:
        if self._path.is_file():
            return {self._path.stem: str(self._path)}
        return {_decode_name(entry): str(entry) for entry in _list_model_directories(self._path)}

    def misplaced(self) -> list[str]:
        path = self._path
        if not path.is_dir():
            return []
        entries = [entry for entry in sorted(path.iterdir()) if not entry.name.startswith(".")]
        models = RECOGNISED_FILES.keys() - {"model.py"}  # a Python file may be anything
        files = [entry for entry in entries if entry.is_file() and f"model{entry.suffix}" in models]
        if not files and not any(entry.is_dir() for entry in entries):
            place = f"{path}/NAME/1/model.onnx"
            return [f"'{path}' holds no models: the file of one has a place such as '{place}'"]
        return [
            f"'{file}' is not served: its place is '{path / file.stem / '1' / f'model{file.suffix}'}', or "
            f"'tpx serve {file}' serves it by itself"
            for file in files
        ]


class ModelArchive:
    """Repository (implements the protocol) of one model under a name of its own, and of the models that it
    is composed of: a directory of the model, or of models of which one is the only ensemble.
    """

    def __init__(self, path: Path, name: str) -> None:
        """Look for the model. Raises UsageError."""
        self._path = path
        self._name = name
        directories = _list_model_directories(path)
        versions = [each for each in directories if version_of(each.name)[0] is not None]
        if versions or (path / "config.pbtxt").is_file():
            self._model, self._parts = path, dict[str, Path]()
            return
        chosen = directories if len(directories) == 1 else list(filter(_is_ensemble, directories))
        if len(chosen) != 1:
            found = ", ".join(each.name for each in directories) or "no directory"
            raise UsageError(
                f"'{path}' has to be a model, or to hold one model, or one ensemble and the models of its "
                f"steps; it holds {found}"
            )
        [self._model] = chosen
        self._parts = {_decode_name(each): each for each in directories if each not in chosen}

    def __str__(self) -> str:
        return str(self._path)

    @property
    def key(self) -> str:
        return f"{os.path.realpath(self._path)}:{self._name}"

    def scan(self) -> list[ModelSource]:
        return [
            replace(_read_source(self._model), name=self._name, renamed=True),
            *map(_read_source, self._parts.values()),
        ]

    def find(self, name: str) -> ModelSource | None:
        return next((source for source in self.scan() if source.name == name), None)

    def names(self) -> dict[str, str]:
        return {self._name: str(self._model)} | {name: str(path) for name, path in self._parts.items()}

    def misplaced(self) -> list[str]:
        return []


def _is_ensemble(directory: Path) -> bool:
    """Return whether a model is an ensemble; False if its configuration cannot be read. Raises UsageError."""
    try:
        config = model_config.read(directory / "config.pbtxt")
    except LoadError:  # reported when it is loaded
        return False
    return config.platform == "ensemble" or config.HasField("ensemble_scheduling")


def _find_single_file(path: Path) -> ModelSource:
    if f"model{path.suffix}" not in RECOGNISED_FILES:
        kinds = ", ".join(name.removeprefix("model") for name in RECOGNISED_FILES)
        raise UsageError(f"'{path}' is neither a model file that tpx knows ({kinds}) nor a model repository")
    directory = path.resolve().parent
    return ModelSource(name=path.stem, directory=directory, versions={1: directory}, file=path.resolve())


def _find_model_file(directory: Path) -> Path | None:
    """Return the file or directory in it that a backend recognizes as a model, except Python files."""
    names = (name for name in RECOGNISED_FILES if not name.endswith(".py"))
    return next((directory / name for name in names if (directory / name).exists()), None)


def _list_model_directories(path: Path) -> list[Path]:
    try:
        return [each for each in sorted(path.iterdir()) if not each.name.startswith(".") and each.is_dir()]
    except OSError as exc:
        raise UsageError(f"cannot read model repository '{path}': {exc.strerror}") from exc


def _decode_name(directory: Path) -> str:
    return os.fsencode(directory.name).decode(errors="replace")


def _read_source(directory: Path) -> ModelSource:
    name, fault, versions = _decode_name(directory), "", dict[int, Path]()
    try:
        if name != directory.name:
            fault = f"the name of the directory {os.fsencode(directory)!r} is not UTF-8"
        else:
            versions = versions_in(directory)
    except OSError as exc:
        log.error("Poll failed for model directory '%s': %s", name, exc.strerror)
        fault = f"cannot read '{directory}': {exc.strerror}"
    return ModelSource(name=name, directory=directory, versions=versions, fault=fault)


def versions_in(directory: Path) -> dict[int, Path]:
    """Return the version directories by number. Invalid names are skipped and logged."""
    names = [entry.name for entry in directory.iterdir() if entry.is_dir()]
    return {version: directory / str(version) for version in pick_versions(names, str(directory))}


def pick_versions(names: Iterable[str], location: str) -> list[int]:
    """Return the versions that directories in `location` are named after; invalid names are logged."""
    out = []
    for name in names:
        version, why = version_of(name)
        if version is not None:
            out.append(version)
        elif why:
            log.warning("ignore version directory '%s' which %s: '%s/%s'", name, why, location, name)
    return out


def version_of(name: str) -> tuple[int | None, str]:
    """Return the version of a directory name, or None and the reason ("" if it is not meant as a version)."""
    if name in _NOT_VERSIONS or name.startswith("."):
        return None, ""
    if not (name.isascii() and name.isdigit()) or len(name) > 19 or int(name) >= 2**63:
        return None, "fails to convert to integral number"
    if name != "0" and name.startswith("0"):
        return None, "contains leading zeros in its directory name"
    return int(name), ""


def wanted_versions(config: ModelConfig, source: ModelSource) -> list[int]:
    """Return the versions that `version_policy` selects, oldest first. Raises NoVersion if there are none."""
    present = source.versions
    policy = config.version_policy
    choice = policy.WhichOneof("policy_choice")
    ordered = sorted(present)
    if choice == "specific":
        chosen = set(policy.specific.versions)
        fault = "version %d is specified for model '%s', but the version directory is not present"
        for version in sorted(chosen - present.keys())[:_MOST_NAMED]:
            log.error(fault, version, config.name)
        ordered = [version for version in ordered if version in chosen]
    elif choice != "all":
        newest = policy.latest.num_versions if choice == "latest" else 1
        ordered = ordered[max(0, len(ordered) - newest) :]
    if ordered:
        return ordered
    file = None if source.origin is not None else _find_model_file(source.directory)
    if source.override is not None:  # from a request
        hint = ""
    elif present:
        hint = f" ('{source.location}' has: {', '.join(map(str, sorted(present)))})"
    elif file is not None:
        hint = f" ('{file}' belongs in a version directory: '{source.directory / '1' / file.name}')"
    else:
        hint = f" ('{source.location}' has no directory of a version, such as '{source.location}/1')"
    raise NoVersion(
        f"at least one version must be available under the version policy of model '{config.name}'{hint}"
    )


def read_labels(config: ModelConfig, directory: Path) -> dict[str, tuple[str, ...]]:
    """Return the labels of outputs that have a `label_filename`, one label per line. Raises LoadError."""
    out = {}
    for output in config.output:
        if not output.label_filename:
            continue
        path = inside(
            directory, output.label_filename, model_config.path_of(config, output, "label_filename")
        )
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as exc:
            why = exc.strerror if isinstance(exc, OSError) else exc
            raise LoadError(f"cannot read label file '{path}' of model '{config.name}': {why}") from exc
        # not splitlines: labels may contain characters that only Unicode treats as line breaks
        out[output.name] = tuple(line.removesuffix("\r") for line in text.removesuffix("\n").split("\n"))
    return out
