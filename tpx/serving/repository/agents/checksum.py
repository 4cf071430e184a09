"""The `checksum` repository agent, which lets a model load only if its files match the configured sums.

agents [{ name: "checksum" parameters { key: "SHA256:1/model.onnx" value: "9f86d081..." } }]
"""

import hashlib
import hmac

from tpx.errors import Code, ConfigError, LoadError
from tpx.options import nearest
from tpx.serving.backends.contract import inside
from tpx.serving.repository.agents.base import AgentAction, AgentModel

_ALGORITHMS = {"MD5": 32, "SHA1": 40, "SHA256": 64, "SHA512": 128}
"""Hexadecimal digits of a sum. MD5, the only one in Triton, detects damage but stops no attacker."""


class ChecksumAgent:
    """Agent that compares the files of a model with the sums in its configuration."""

    def act(self, action: AgentAction, model: AgentModel) -> None:
        if action is not AgentAction.LOAD:
            return
        if not model.parameters:
            raise ConfigError("it has no parameters and would check nothing: give it one as 'SHA256:<path>'")
        for key, value in sorted(model.parameters.items()):
            _verify_checksum(model, key, value.strip().lower())


def _verify_checksum(model: AgentModel, key: str, expected: str) -> None:
    algorithm, colon, name = key.partition(":")
    digits = _ALGORITHMS.get(algorithm.upper())
    if not colon or digits is None:
        raise ConfigError(
            f"parameter '{key}' must be <algorithm>:<path> with one of {', '.join(_ALGORITHMS)}"
            f"{nearest(algorithm.upper(), _ALGORITHMS)}"
        )
    if len(expected) != digits or set(expected) - set("0123456789abcdef"):
        raise ConfigError(f"the value of parameter '{key}' must be {digits} hexadecimal digits")
    path = inside(model.location, name, "parameter")
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, lambda: hashlib.new(algorithm, usedforsecurity=False))
    except OSError as exc:
        raise LoadError(f"cannot read '{name}' to compute its checksum: {exc.strerror}") from exc
    if not hmac.compare_digest(found.hexdigest(), expected):
        raise LoadError(
            f"Mismatched {algorithm.upper()} hash for file {name}, expect: {expected}, got: "
            f"{found.hexdigest()}",
            code=Code.INVALID_ARGUMENT,
        )
