"""A model repository in an object store: lists its models, and fetches files when a model loads.

Object names are untrusted: none may lead outside the model directory.
"""

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from tpx.errors import LoadError, UsageError
from tpx.serving.repository.layout import ModelSource, pick_versions, version_of
from tpx.serving.repository.stores.addresses import StoreAddress, settings_of

T = TypeVar("T")

_PART_BYTES = 16 << 20
"""Bytes per request, so that each part has its own timeout and is retried alone."""
_CLIENT = {"timeout": "60s", "connect_timeout": "5s"}
_RETRY: Mapping[str, Any] = {"max_retries": 3}
_MAX_NAME_BYTES = 255
_MAX_PATH_BYTES = 1024
_MOUNT = {
    "s3": "TRITON_AWS_MOUNT_DIRECTORY",
    "gs": "TRITON_GCS_MOUNT_DIRECTORY",
    "as": "TRITON_AZURE_MOUNT_DIRECTORY",
}


class StoredObject(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a model: its path in the model directory, and a tag that changes with its content."""

    path: str
    size_bytes: int
    tag: str
    key: str
    """Path in the repository."""


_EMPTY = StoredObject(path="", size_bytes=0, tag="", key="")


class _InvalidName(UsageError):
    """An object has a name that no path can have."""


class StoreRepository:
    """Repository (implements the protocol) in an object store. Calls block, from several threads."""

    def __init__(self, address: StoreAddress, environment: Mapping[str, str], home: Path) -> None:
        """Raises UsageError. No request is sent yet."""
        self.address = address
        mount = environment.get(_MOUNT[address.scheme], "")
        self.mount = Path(mount) if mount else None
        """Parent of the directories to fetch models into; None for the default temporary directory."""
        if self.mount is not None and not self.mount.is_dir():
            raise UsageError(f"{_MOUNT[address.scheme]} '{mount}' is not a directory")
        self._bucket = _open_bucket(address, settings_of(address, environment, home))

    def __str__(self) -> str:
        return str(self.address)

    def scan(self) -> list[ModelSource]:
        """Return all models. Raises UsageError."""
        try:
            objects = self._run_query(lambda: self._list_objects(""))
        except _InvalidName:
            # one invalid object name fails the whole listing: list each model, so that only one has a fault
            sources = [self.find(name) for name in self.names()]
            return [source for source in sources if source is not None]
        by_model: dict[str, list[StoredObject]] = {}
        for found in objects:
            name, slash, path = found.key.partition("/")
            if slash and not name.startswith("."):
                by_model.setdefault(name, []).append(replace(found, path=path))
        return [self._make_source(name, files) for name, files in sorted(by_model.items())]

    def find(self, name: str) -> ModelSource | None:
        """Return the source that `scan` would return for this name. Raises UsageError."""
        fault = ""
        try:
            objects = self._run_query(lambda: self._list_objects(name))
        except _InvalidName as exc:
            objects, fault = [], exc.message
        files = [replace(found, path=found.key.removeprefix(f"{name}/")) for found in objects]
        if not files and not fault:
            return None
        return self._make_source(name, files, fault)

    @property
    def key(self) -> str:
        return str(self.address)

    def misplaced(self) -> list[str]:
        return []

    def names(self) -> dict[str, str]:
        """Return the names of the models, with their URLs. Raises UsageError."""
        import obstore

        listed = self._run_query(lambda: obstore.list_with_delimiter(self._bucket, self.address.path or None))
        below = [self._strip_prefix(prefix) for prefix in listed["common_prefixes"]]
        return {name: f"{self.address}/{name}" for name in sorted(below) if name and not name.startswith(".")}

    def _list_objects(self, name: str) -> list[StoredObject]:
        import obstore

        prefix = "/".join(part for part in (self.address.path, name) if part)
        found = [item for batch in obstore.list(self._bucket, prefix or None) for item in batch]
        return [
            StoredObject(
                path="",
                key=self._strip_prefix(item["path"]),
                size_bytes=item["size"],
                tag=item["e_tag"] or item["last_modified"].isoformat(),
            )
            for item in found
        ]

    def _strip_prefix(self, path: str) -> str:
        return path.removeprefix(f"{self.address.path}/") if self.address.path else path

    def _make_source(self, name: str, files: Sequence[StoredObject], fault: str = "") -> ModelSource:
        fault = fault or _find_fault(name, files)
        origin = StoredModel(self, name, files)
        versions = {} if fault else origin.versions()
        directory = Path(name)  # placeholder until the model is fetched
        return ModelSource(
            name=name,
            directory=directory,
            versions={version: directory / str(version) for version in versions},
            fault=fault,
            origin=origin,
        )

    def download(self, found: StoredObject, target: Path) -> None:
        """Write an object to a file. Raises LoadError, also if the object has changed since it was listed."""
        import obstore

        key = "/".join(part for part in (self.address.path, found.key) if part)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_NOFOLLOW", 0)
        target.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(target, flags, 0o600), "wb") as file:
            for start in range(0, found.size_bytes, _PART_BYTES):
                end = min(start + _PART_BYTES, found.size_bytes)
                options: Any = {"range": (start, end)}
                if found.tag.endswith('"'):
                    options["if_match"] = found.tag
                part = self._run_fetch(lambda: obstore.get(self._bucket, key, options=options).bytes(), found)  # noqa: B023
                if len(part) != end - start:
                    raise LoadError(f"'{self.address}/{found.key}' changed during the download")
                file.write(part)

    def _run_fetch(self, work: Callable[[], T], found: StoredObject) -> T:
        from obstore.exceptions import BaseError, PreconditionError

        try:
            return work()
        except PreconditionError as exc:
            raise LoadError(f"'{self.address}/{found.key}' changed during the download") from exc
        except (BaseError, OSError) as exc:
            raise LoadError(
                f"cannot download '{self.address}/{found.key}': {_extract_first_line(exc)}"
            ) from exc

    def _run_query(self, work: Callable[[], T]) -> T:
        from obstore.exceptions import BaseError, InvalidPathError

        try:
            return work()
        except (BaseError, OSError) as exc:
            kind = _InvalidName if isinstance(exc, InvalidPathError) else UsageError
            raise kind(f"cannot read model repository '{self.address}': {_extract_first_line(exc)}") from exc


class StoredModel:
    """Origin (implements the protocol) of a model in an object store."""

    def __init__(self, repository: StoreRepository, name: str, files: Sequence[StoredObject]) -> None:
        self._repository = repository
        self.url = f"{repository.address}/{name}"
        self.private_parent = repository.mount
        self._files = sorted(files, key=lambda found: found.path)
        directories = {str(parent) for found in files for parent in PurePosixPath(found.path).parents}
        # directory markers: objects that are parents of others, and empty objects named like a version
        self._directories = {
            found.path
            for found in files
            if found.path in directories or (not found.size_bytes and version_of(found.path)[0] is not None)
        }

    def versions(self) -> list[int]:
        """Return the versions. Invalid names are skipped and logged."""
        tops = {found.path.partition("/")[0] for found in self._files if "/" in found.path}
        tops |= {path for path in self._directories if "/" not in path}
        return pick_versions(sorted(tops), self.url)

    def stamp(self, part: str) -> str:
        """Return a digest of a file, of a version's files or, for `""`, of the files beside the versions."""
        if part:
            chosen: Iterable[StoredObject] = [
                found for found in self._files if found.path == part or found.path.startswith(f"{part}/")
            ]
        else:
            tops = [found.path.partition("/")[0] for found in self._files]
            chosen = [
                found
                for top, found in zip(tops, self._files, strict=True)
                if top not in ("configs", "config.pbtxt")
                and version_of(top)[0] is None
                and not top.startswith(".")
            ]
        import hashlib  # late: few servers have models in object stores

        digest = hashlib.blake2b(digest_size=16)
        for found in chosen:
            digest.update(os.fsencode(f"{found.path}\0{found.size_bytes}\0{found.tag}\0"))
        return digest.hexdigest()

    def has(self, path: str) -> bool:
        """Return True if the model has this file."""
        return any(found.path == path for found in self._files)

    def fetch(self, directory: Path) -> None:
        """Fetch all files outside versions; files of versions are created empty. Raises LoadError."""
        for version in self.versions():
            self._write_object(directory / str(version), None)
        for found in self._files:
            if version_of(found.path.partition("/")[0])[0] is None:
                self._write_object(directory / found.path, found)
            else:
                self._write_object(
                    directory / found.path, None if found.path in self._directories else _EMPTY
                )

    def fetch_version(self, directory: Path, version: int) -> None:
        """Fetch the files of one version into the model directory. Raises LoadError."""
        for found in self._files:
            if found.path.startswith(f"{version}/"):
                self._write_object(directory / found.path, found)

    def _write_object(self, target: Path, found: StoredObject | None) -> None:
        """Write an object, or create a directory. Raises LoadError."""
        try:
            if found is None or found.path in self._directories:
                target.mkdir(parents=True, exist_ok=True)
            else:
                self._repository.download(found, target)
        except OSError as exc:
            raise LoadError(f"cannot write a file of '{self.url}': {exc}") from exc

    def size_bytes(self, version: int) -> int:
        """Return the total file size of a version, in bytes."""
        return sum(found.size_bytes for found in self._files if found.path.startswith(f"{version}/"))


def _open_bucket(address: StoreAddress, settings: Mapping[str, object]) -> Any:
    try:
        from obstore.exceptions import BaseError
        from obstore.store import AzureStore, GCSStore, S3Store
    except ImportError as exc:
        raise UsageError(
            f"model repository '{address}' needs the package obstore: pip install 'tpx[cloud]'"
        ) from exc
    kinds: dict[str, Any] = {"s3": S3Store, "gs": GCSStore, "as": AzureStore}
    client = {**_CLIENT, "allow_http": address.endpoint.startswith("http://")}
    try:
        return kinds[address.scheme](address.bucket, client_options=client, retry_config=_RETRY, **settings)
    except (BaseError, ValueError, TypeError, OSError) as exc:
        raise UsageError(f"cannot open model repository '{address}': {_extract_first_line(exc)}") from exc


def _find_fault(name: str, files: Iterable[StoredObject]) -> str:
    """Return why a model cannot be stored in a directory, or ""."""
    for path in (name, *(found.path for found in files)):
        parts = path.split("/")
        if any(part in ("", ".", "..") or "\0" in part for part in parts) or "\\" in path:
            return f"the object '{path!r}' of model '{name}' has a name that no file can have"
        long = [part for part in parts if len(os.fsencode(part)) > _MAX_NAME_BYTES]
        if long or len(os.fsencode(path)) > _MAX_PATH_BYTES:
            return f"the object '{path[:100]}...' of model '{name}' has a name that is too long for a file"
    return ""


def _extract_first_line(error: BaseException) -> str:
    """Return the error message, without the internal state and XML that follow it."""
    line = str(error).partition("\n")[0]
    return re.sub(r"<\?xml.*", "", line).strip().rstrip(":")
