"""Discovery of models in repositories, object stores and load requests, which may bring a configuration
and the files of a model. Also detects changes since the last read, and misplaced files.
"""

import asyncio
import logging
import os
import posixpath
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
from msgspec.structs import replace

from tpx.errors import ConfigError, InvalidRequest, LoadError, UsageError
from tpx.protocol import model_config
from tpx.protocol.messages import ModelConfig
from tpx.protocol.v2 import LoadParameter
from tpx.serving.model_id import ModelId
from tpx.serving.repository.layout import ModelArchive, ModelSource, Repository, versions_in
from tpx.serving.repository.options import ModelSpec

log = logging.getLogger(__name__)

_CONFIGS = "configs"
_NOT_A_MODELS_OWN = "__pycache__"
_FILE = "file:"
_MAX_NAME_BYTES = 255
_MAX_DEPTH = 12  # with names of maximum length still within the system's path limit


class Override(msgspec.Struct, frozen=True, kw_only=True):
    """A ModelConfig that replaces the one on disk, and files by their path in the model directory.

    If there are files, the model consists of these alone.
    """

    config: ModelConfig
    files: Mapping[str, bytes]


def override_of(parameters: Mapping[str, LoadParameter], model: str) -> Override | None:
    """Return the override in a load request's parameters, if any. Raises InvalidRequest, and logs it."""
    try:
        return _parse_override(parameters, model)
    except InvalidRequest as exc:
        log.error("failed to load '%s': %s", model, exc.message)
        raise


def _parse_override(parameters: Mapping[str, LoadParameter], model: str) -> Override | None:
    files: dict[str, bytes] = {}
    text: str | None = None
    for key, value in parameters.items():
        if key == "config":
            if not isinstance(value, str):
                raise InvalidRequest("invalid value type for load parameter 'config', expected string_param.")
            text = value
        elif not key.startswith(_FILE):
            raise InvalidRequest(f"unrecognized load parameter '{key}'.")
        elif not isinstance(value, bytes):
            raise InvalidRequest(f"invalid value type for load parameter '{key}', expected bytes_param.")
        else:
            files[_normalize_inner_path(key, files)] = value
    # the message starts with Triton's, which clients match; Triton's omits the fault
    refusal = f"failed to load '{model}', failed to poll from model repository: "
    if text is None:
        if files:
            raise InvalidRequest(
                f"{refusal}Load parameter 'config' must be specified for model file override"
            )
        return None
    invalid = f"{refusal}Invalid config override: "
    if len(text) > model_config.MAX_CONFIG_BYTES:
        raise InvalidRequest(f"{invalid}longer than {model_config.MAX_CONFIG_BYTES} bytes")
    try:
        return Override(config=model_config.from_json(text, lenient=True), files=files)
    except ConfigError as exc:
        raise InvalidRequest(f"{invalid}{exc.message}") from exc


def _normalize_inner_path(key: str, others: Collection[str]) -> str:
    """Return the normalized path of a file within the model directory. Raises InvalidRequest."""
    name = key.removeprefix(_FILE).lstrip("/")  # as in Triton, where clients write file:/1/model.py, too
    path = posixpath.normpath(name)
    outside = path in (".", "..") or path.startswith(("/", "../"))
    if not name or "\0" in name or outside or name.endswith("/"):
        raise InvalidRequest(
            f"Invalid file parameter '{key}' with normalized path '{path}' must stay within model directory."
        )
    try:
        parts = [len(os.fsencode(part)) for part in path.split("/")]
    except UnicodeEncodeError as exc:
        raise InvalidRequest(f"Invalid file parameter {key!a}: the name is not UTF-8 text") from exc
    if max(parts) > _MAX_NAME_BYTES or len(parts) > _MAX_DEPTH:
        raise InvalidRequest(
            f"Invalid file parameter '{key[:100]}...': a path has at most {_MAX_DEPTH} parts of "
            f"{_MAX_NAME_BYTES} bytes"
        )
    if path in others:
        raise InvalidRequest(f"file parameter '{key}' names a file that another one names, too")
    return path


def private_directory(prefix: str, parent: Path | None) -> Path:
    """Create a directory for the files of one load, below `parent` or the default temporary directory.
    `relative_paths` must recognize `prefix`. Raises LoadError.
    """
    import tempfile  # late, as shutil, which it imports: few models have private files

    try:
        return Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    except OSError as exc:
        raise LoadError(f"cannot create a directory for the model's files: {exc.strerror}") from exc


def remove_directory(directory: Path) -> None:
    """Remove a private directory, or what is left of it."""
    import shutil

    shutil.rmtree(directory, ignore_errors=True)


def relative_paths(text: str) -> str:
    """Rewrite paths in private directories as relative to the model directory, as the client sent them."""
    import tempfile

    # without the lookbehind, a long word would be tried from each of its characters
    parent = rf"(?:{re.escape(tempfile.gettempdir())}|(?<![^\s'\":])[^\s'\":]*)"
    private = rf"{parent}/tpx-(?:model|agent)-[a-z0-9_]{{8}}(/?)"
    return re.sub(private, lambda found: "" if found[1] else ".", text)


def private_files(files: Mapping[str, bytes], parent: Path | None = None) -> Path:
    """Write the files of one load below a new directory in `parent` or the default temporary directory.

    Raises InvalidRequest for impossible names, and LoadError if writing fails.
    """
    directory, path = private_directory("tpx-model-", parent), ""
    try:
        for path, content in files.items():
            target = directory / path
            target.parent.mkdir(parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
            with os.fdopen(os.open(target, flags, 0o600), "wb") as file:
                file.write(content)
    except OSError as exc:
        remove_directory(directory)
        if isinstance(exc, FileExistsError | NotADirectoryError | IsADirectoryError):
            raise InvalidRequest(
                f"Invalid file parameter '{_FILE}{path}': it would be a file and a directory"
            ) from exc
        raise LoadError(f"cannot write file parameter '{_FILE}{path}': {exc.strerror}") from exc
    return directory


class Stamps(msgspec.Struct, frozen=True, kw_only=True):
    """Digests over name, size, inode and modification time of a model's files: equal until a file changes."""

    config: str
    shared: str
    """Digest of the files beside the version directories, such as labels and warm-up data."""
    versions: Mapping[int, str]


def stamps_of(source: ModelSource) -> Stamps:
    """Return the stamps of a model; a missing file has a stamp too."""
    if source.origin is not None:
        origin, chosen = source.origin, f"configs/{source.config_name}.pbtxt"
        return Stamps(
            config=origin.stamp(chosen if source.config_name and origin.has(chosen) else "config.pbtxt"),
            shared=origin.stamp(""),
            versions={version: origin.stamp(str(version)) for version in source.versions},
        )
    if source.file is not None:
        return Stamps(config="", shared="", versions={1: _digest_files([source.file])})
    # directories that only look like versions count as shared files
    apart = {str(version) for version in source.versions} | {_CONFIGS, "config.pbtxt"}
    entries = sorted(source.directory.iterdir()) if source.directory.is_dir() else []
    return Stamps(
        config=_digest_files([source.config_path]),
        shared=_digest_files(
            [entry for entry in entries if entry.name not in apart and _is_model_file(entry.name)]
        ),
        versions={version: _digest_files([path]) for version, path in source.versions.items()},
    )


def size_of(source: ModelSource, version: int) -> int:
    """Return the total file size of a version, in bytes."""
    if source.origin is not None:
        return source.origin.size_bytes(version)
    total = 0
    for file in _iter_files(source.file or source.versions[version]):
        with suppress(OSError):  # gone while we looked, or a dangling link
            total += os.stat(file).st_size  # noqa: PTH116
    return total


def _is_model_file(name: str) -> bool:
    """Return True for files of the model, False for those that loading creates: these are not changes."""
    return not name.startswith(".") and name != _NOT_A_MODELS_OWN


def _digest_files(paths: list[Path]) -> str:
    facts = []
    for path in paths:
        for file in _iter_files(path):
            try:
                found = os.stat(file)  # noqa: PTH116 (a string: thousands of files need no thousand Paths)
            except OSError:
                continue  # gone while we looked, or a dangling link
            facts.append((file, found.st_mtime_ns, found.st_size, found.st_ino))
    return f"{hash(tuple(facts)):x}"


def _iter_files(path: Path) -> Iterator[str]:
    """Yield a file, or all files below a directory in a fixed order. Symlink cycles are skipped."""
    if not path.is_dir():
        yield str(path)
        return
    visited = set()
    for directory, subdirectories, files in os.walk(path, followlinks=True):
        at = os.stat(directory)  # noqa: PTH116
        if (at.st_dev, at.st_ino) in visited:
            subdirectories.clear()
            continue
        visited.add((at.st_dev, at.st_ino))
        subdirectories[:] = sorted(name for name in subdirectories if _is_model_file(name))
        yield from (f"{directory}/{name}" for name in sorted(files) if _is_model_file(name))


@dataclass(slots=True, kw_only=True)
class Repositories:
    """The model repositories of a server. Reading them blocks and raises UsageError if one cannot be read."""

    repositories: Sequence[Repository]
    config_name: str = ""
    namespaces: bool = False
    """True if models are identified by name and repository."""

    def scan(self, faults: list[str] | None = None) -> dict[ModelId, ModelSource]:
        """Return all models by name.

        A repository given twice counts once. Without namespaces, a name found in two repositories
        yields a source with a fault instead of a model. The errors of repositories that cannot be read
        are added to `faults`, if it is given, and not raised.
        """
        found: dict[ModelId, list[ModelSource]] = {}
        for repository in self._list_distinct():
            try:
                sources = repository.scan()
            except UsageError as exc:
                if faults is None:
                    raise
                faults.append(exc.message)
                continue
            for source in sources:
                each = self._attach_namespace(source, self._choose_namespace(repository))
                found.setdefault(each.model_id, []).append(each)
        return {model: _check_unique(model, sources) for model, sources in sorted(found.items())}

    def find(self, model: ModelId) -> ModelSource | None:
        """Return the source of this model, reading no other.

        Its name may begin with a dot: only `scan` takes that for a hidden directory.
        """
        name = model.name
        if not name or "/" in name or "\0" in name or name in (".", ".."):
            return None
        repositories = [
            repository for repository in self._list_distinct() if model.namespace in ("", str(repository))
        ]
        sources = [source for repository in repositories if (source := repository.find(name)) is not None]
        return (
            _check_unique(model, [self._attach_namespace(each, model.namespace) for each in sources])
            if sources
            else None
        )

    def names(self) -> dict[ModelId, str]:
        """Return the models that `scan` would find; the value is the fault of a duplicate, or ""."""
        found: dict[ModelId, list[str]] = {}
        for repository in self._list_distinct():
            for name, where in repository.names().items():
                found.setdefault(ModelId(name, self._choose_namespace(repository)), []).append(where)
        return {model: _explain_duplicates(locations) for model, locations in sorted(found.items())}

    def register(self, path: Path, name: str) -> ModelArchive:
        """Add the model in a directory under this name, with the models that it is composed of.

        Raises UsageError, InvalidRequest for names that other models have.
        """
        archive = ModelArchive(path, name)
        for repository in () if self.namespaces else self._list_distinct():
            taken = repository.names()
            for each in sorted(archive.names().keys() & taken.keys()):
                raise InvalidRequest(f"there is a model '{each}' already, '{taken[each]}'")
        self.repositories = (*self.repositories, archive)
        return archive

    def unregister(self, archive: ModelArchive) -> None:
        """Remove what `register` has added."""
        self.repositories = [repository for repository in self.repositories if repository is not archive]

    def misplaced(self) -> list[str]:
        """Return warnings about model files outside the expected layout."""
        return [warning for repository in self.repositories for warning in repository.misplaced()]

    def _list_distinct(self) -> Iterable[Repository]:
        """Return each repository once, even if it is given with different spellings."""
        return {repository.key: repository for repository in reversed(self.repositories)}.values()

    def _choose_namespace(self, repository: Repository) -> str:
        return str(repository) if self.namespaces else ""

    def _attach_namespace(self, source: ModelSource, namespace: str) -> ModelSource:
        return replace(source, namespace=namespace, config_name=self.config_name)

    def snapshot(self) -> tuple[dict[ModelId, Stamps | None], dict[ModelId, str]]:
        """Return what polling compares: the stamps of all models, None for one that exists but cannot be
        read; and the models found in several repositories, with their locations.
        """
        found = self.scan()
        return (
            {model: None if source.fault else stamps_of(source) for model, source in found.items()},
            {model: source.fault for model, source in found.items() if source.duplicate},
        )

    async def find_named(self, names: Iterable[str]) -> list[ModelId]:
        """Return the models with these names as `find_all` does, without blocking the loop."""
        if not self.namespaces:
            return [ModelId(name) for name in names]
        return await asyncio.to_thread(lambda: [model for name in names for model in self.find_all(name)])

    def find_all(self, name: str) -> list[ModelId]:
        """Return the models with this name in all namespaces; unreadable repositories are skipped."""
        found = []
        for repository in self._list_distinct():
            model = ModelId(name, str(repository))
            try:
                if self.find(model) is not None:
                    found.append(model)
            except UsageError as exc:
                log.error("failed to look for model '%s': %s", model, exc)
        return found

    def discover(self, model: ModelId, override: Override | None = None) -> ModelSource | None:
        """Return a model in the repositories or in a request, if any. Raises InvalidRequest, LoadError."""
        name = model.name
        if override is None or not override.files:
            source = self.find(model)
            if source is None:
                return None
            return fetch(replace(source, override=override.config) if override else source)
        # a name that no model in a repository could have
        if name.startswith(".") or not name.isprintable() or len(os.fsencode(name)) > _MAX_NAME_BYTES:
            raise InvalidRequest(
                f"invalid model name {name[:100]!r}, a model that comes with its files needs a name of at "
                f"most {_MAX_NAME_BYTES} bytes, all of it printable, that does not begin with a dot"
            )
        directory = private_files(override.files)
        return ModelSource(
            name=name,
            namespace=model.namespace,
            directory=directory,
            private=True,
            versions=versions_in(directory),
            override=override.config,
        )


def _check_unique(model: ModelId, sources: Sequence[ModelSource]) -> ModelSource:
    fault = _explain_duplicates([source.location for source in sources])
    if not fault:
        return sources[0]
    log.error("failed to poll model '%s': not unique across all model repositories: %s", model.name, fault)
    return ModelSource(name=model.name, directory=sources[0].directory, fault=fault, duplicate=True)


def _explain_duplicates(locations: Sequence[str]) -> str:
    if len(locations) == 1:
        return ""
    return "model appears in two or more repositories: " + ", ".join(
        f"'{location}'" for location in locations
    )


def fetch(source: ModelSource) -> ModelSource:
    """Copy a model from an object store to a temporary directory; local models stay in place.

    Versions are fetched when they are loaded. Raises LoadError.
    """
    if source.origin is None or source.fault:
        return source
    directory = private_files({}, source.origin.private_parent)
    try:
        source.origin.fetch(directory)
    except BaseException:
        remove_directory(directory)
        raise
    versions = {version: directory / str(version) for version in source.versions}
    return replace(source, directory=directory, private=True, versions=versions)


def plan_poll(
    found: Mapping[ModelId, Stamps | None], known: Mapping[ModelId, Stamps | None]
) -> tuple[list[ModelId], list[ModelId]]:
    """Return the new or changed models to load, and the models to unload.

    A model without stamps in `found` exists but cannot be read: it is left as it is. One without stamps
    in `known` failed its last load: it is retried.
    """
    load = [model for model, stamps in found.items() if stamps is not None and known.get(model) != stamps]
    return sorted(load), sorted(known.keys() - found.keys())


def plan_start(options: ModelSpec, found: Iterable[ModelId]) -> list[ModelId]:
    """Return the models to load at startup: all found, or those of --load-model. Raises UsageError."""
    startup = options.load_model
    if not options.on_request:
        if startup:
            raise UsageError(
                "Use of '--load-model' requires setting '--model-control-mode=explicit' as well."
            )
        return sorted(found)
    if "*" not in startup:
        by_name: dict[str, list[ModelId]] = {}
        for model in sorted(found):
            by_name.setdefault(model.name, []).append(model)
        return [m for name in dict.fromkeys(startup) for m in by_name.get(name, [ModelId(name)])]
    if len(startup) > 1:
        raise UsageError("Wildcard model name '*' must be the ONLY startup model if specified at all.")
    return sorted(found)


def misplaced_configs(sources: Iterable[ModelSource]) -> list[str]:
    """Return a warning for each file that looks like the missing configuration of a model: one beside the
    versions with a similar name, or one with this exact name inside a version.
    """
    warnings = []
    for source in sources:
        if source.origin is not None or source.fault or source.has_config:
            continue
        import difflib  # late: most models have their configuration

        wanted = source.config_path.name
        beside = sorted(entry.name for entry in source.directory.glob("*") if entry.is_file())
        found = [
            source.directory / name for name in difflib.get_close_matches(wanted, beside, n=1, cutoff=0.75)
        ]
        inside = [directory / wanted for directory in source.versions.values()]
        found += [path for path in inside if path.is_file()]
        if found:
            warnings.append(f"'{found[0]}' is not read: a configuration's place is '{source.config_path}'")
    return warnings
