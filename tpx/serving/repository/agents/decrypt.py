"""The `decrypt` repository agent, which decrypts files that end in .fernet into a private directory.

agents [{ name: "decrypt" parameters { key: "key_file" value: "/run/secrets/models.key" } }]

Keys and files have the format of `cryptography.fernet`. `1/model.onnx.fernet` becomes `1/model.onnx`
and replaces a plain file of that name. All other files of the model are symlinks.
"""

import os
from collections.abc import Callable
from pathlib import Path

from cryptography.fernet import Fernet, InvalidToken, MultiFernet

from tpx.errors import ConfigError, LoadError
from tpx.options import nearest
from tpx.serving.repository.agents.base import AgentAction, AgentModel

_ENDING = ".fernet"
_PARAMETERS = ("key_environment", "key_file")
_MAX_KEY_FILE_BYTES = 65_536


class DecryptAgent:
    """Agent that builds a private copy of the model directory with the encrypted files decrypted."""

    def act(self, action: AgentAction, model: AgentModel) -> None:
        if action is not AgentAction.LOAD:
            return
        key = _read_keys(model)
        target = model.acquire()
        if not _copy_decrypted(model.location, target, key.decrypt, frozenset()):
            raise LoadError(f"there is no file that ends in '{_ENDING}' in '{model.location}'")
        model.use(target)


def _read_keys(model: AgentModel) -> MultiFernet:
    """Return all configured keys, newest first, so that files encrypted with any of them can be read."""
    for name in model.parameters:
        if name not in _PARAMETERS:
            raise ConfigError(
                f"unknown parameter '{name}' (has: {', '.join(_PARAMETERS)}){nearest(name, _PARAMETERS)}"
            )
    if len(model.parameters) != 1:
        raise ConfigError(f"it needs one parameter, {' or '.join(_PARAMETERS)}")
    [(name, value)] = model.parameters.items()
    where = f"{name} '{value}'"
    text = os.environ.get(value) if name == "key_environment" else _read_key_file(Path(value))
    if text is None:
        raise LoadError(f"the environment variable '{value}', which should hold the key, is not set")
    keys = text.split()
    if not keys:
        raise LoadError(f"{where} contains no key")
    try:
        return MultiFernet([Fernet(key) for key in keys])
    except ValueError as exc:
        raise LoadError(f"{where} contains no Fernet key: 32 bytes in URL-safe base64, one per line") from exc


def _read_key_file(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_MAX_KEY_FILE_BYTES).decode("ascii")
    except OSError as exc:
        raise LoadError(f"cannot read the key file '{path}': {exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise LoadError(f"key_file '{path}' contains no Fernet key: it is not text") from exc


def _copy_decrypted(
    source: Path, target: Path, decrypt: Callable[[bytes], bytes], above: frozenset[tuple[int, int]]
) -> int:
    """Fill `target` and return the number of files decrypted. Symlinks that form a cycle are skipped."""
    at = source.stat()
    if (at.st_dev, at.st_ino) in above:
        return 0
    above |= {(at.st_dev, at.st_ino)}
    count = 0
    for entry in sorted(source.iterdir()):
        if (source / f"{entry.name}{_ENDING}").is_file():
            continue
        if entry.is_dir():
            (target / entry.name).mkdir(0o700)
            count += _copy_decrypted(entry, target / entry.name, decrypt, above)
        elif entry.name.endswith(_ENDING):
            _decrypt_file(entry, target / entry.name.removesuffix(_ENDING), decrypt)
            count += 1
        else:
            (target / entry.name).symlink_to(entry.absolute())
    return count


def _decrypt_file(source: Path, target: Path, decrypt: Callable[[bytes], bytes]) -> None:
    try:
        plain = decrypt(source.read_bytes())
        with os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(plain)
    except InvalidToken as exc:
        raise LoadError(f"'{source}' was not encrypted with this key, or is damaged") from exc
    except FileExistsError as exc:
        raise LoadError(
            f"'{source.parent}' has '{target.name}' also in plain text: remove one of the two"
        ) from exc
    except OSError as exc:
        raise LoadError(f"cannot decrypt '{source}': {exc.strerror}") from exc
