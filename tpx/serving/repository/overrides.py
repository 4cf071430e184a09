"""Overrides in load requests: a configuration, and optionally the files of a model."""

import logging
import os
import posixpath
import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tpx.errors import ConfigError, InvalidRequest, LoadError
from tpx.protocol import model_config
from tpx.protocol.messages import ModelConfig

log = logging.getLogger(__name__)

_FILE = "file:"
MAX_NAME_BYTES = 255
_MAX_DEPTH = 12  # with names of maximum length still within the system's path limit

LoadParameter = bool | int | str | bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """A ModelConfig that replaces the one on disk, and files by their path in the model directory.

    If there are files, the model consists of these alone.
    """

    config: ModelConfig
    files: Mapping[str, bytes]


def override_of(parameters: Mapping[str, LoadParameter], model: str) -> Override | None:
    """Return the override in the parameters of a load request, or None if there is none.

    Raises InvalidRequest, and logs it.
    """
    try:
        return _override_of(parameters, model)
    except InvalidRequest as exc:
        log.error("failed to load '%s': %s", model, exc.message)
        raise


def _override_of(parameters: Mapping[str, LoadParameter], model: str) -> Override | None:
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
            _add(files, key, value)
    if text is None:
        if files:
            raise _unusable(model, "Load parameter 'config' must be specified for model file override")
        return None
    return Override(config=_config(text, model), files=files)


def _config(text: str, model: str) -> ModelConfig:
    if len(text) > model_config.MAX_CONFIG_BYTES:
        raise _unusable(model, f"Invalid config override: longer than {model_config.MAX_CONFIG_BYTES} bytes")
    try:
        return model_config.from_json(text, lenient=True)
    except ConfigError as exc:
        raise _unusable(model, f"Invalid config override: {exc.message}") from exc


def _unusable(model: str, fault: str) -> InvalidRequest:
    """Return an error that starts with Triton's message, which clients match; Triton's omits the fault."""
    return InvalidRequest(f"failed to load '{model}', failed to poll from model repository: {fault}")


def _add(files: dict[str, bytes], key: str, content: bytes) -> None:
    path = _inner_path(key)
    if path in files:
        raise InvalidRequest(f"file parameter '{key}' names a file that another one names, too")
    files[path] = content


def _inner_path(key: str) -> str:
    """Return the normalized path of a file within the model directory. Raises InvalidRequest."""
    name = key.removeprefix(_FILE)
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
    if max(parts) > MAX_NAME_BYTES or len(parts) > _MAX_DEPTH:
        raise InvalidRequest(
            f"Invalid file parameter '{key[:100]}...': a path has at most {_MAX_DEPTH} parts of "
            f"{MAX_NAME_BYTES} bytes"
        )
    return path


def private_directory(prefix: str, parent: Path | None) -> Path:
    """Create a directory for the files of one load, below `parent` or the default temporary directory.
    `relative_paths` must recognize `prefix`. Raises LoadError.
    """
    try:
        return Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    except OSError as exc:
        raise LoadError(f"cannot make a directory for the files of the model: {exc.strerror}") from exc


def relative_paths(text: str) -> str:
    """Rewrite paths in private directories as paths relative to the model directory, as the client sent
    them.
    """
    parent = rf"(?:{re.escape(tempfile.gettempdir())}|[^\s'\":]*)"
    private = rf"{parent}/tpx-(?:model|agent)-[a-z0-9_]{{8}}(/?)"
    return re.sub(private, lambda found: "" if found[1] else ".", text)


class OverrideFiles:
    """A private directory with the files of one load."""

    def __init__(self, files: Mapping[str, bytes], parent: Path | None = None) -> None:
        """Write the files below a new directory in `parent` or the default temporary directory.

        Raises InvalidRequest for impossible names, and LoadError if writing fails.
        """
        self.directory = private_directory("tpx-model-", parent)
        try:
            for path, content in files.items():
                self._write(path, content)
        except BaseException:
            self.remove()
            raise

    def _write(self, path: str, content: bytes) -> None:
        place = self.directory / path
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
            with os.fdopen(os.open(place, flags, 0o600), "wb") as file:
                file.write(content)
        except (FileExistsError, NotADirectoryError, IsADirectoryError) as exc:
            raise InvalidRequest(
                f"Invalid file parameter '{_FILE}{path}': it would be a file and a directory"
            ) from exc
        except OSError as exc:
            raise LoadError(f"cannot write file parameter '{_FILE}{path}': {exc.strerror}") from exc

    def remove(self) -> None:
        """Delete the directory."""
        shutil.rmtree(self.directory, ignore_errors=True)
