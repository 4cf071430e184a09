"""Identity of a model: its name and, if repositories may have models of the same name, its namespace."""

from typing import NamedTuple

from tpx.errors import InvalidRequest


class ModelId(NamedTuple):
    """Identity of a model; a tuple, because every step of an ensemble looks one up.

    `namespace` is the repository as configured; empty if names are unique.
    """

    name: str
    namespace: str = ""

    def __str__(self) -> str:
        """Return it as Triton writes it."""
        return f"{self.namespace}::{self.name}" if self.namespace else self.name


def check_name(name: str) -> None:
    """Raise InvalidRequest for an empty name or one that could be used as a path."""
    if not name.strip():
        raise InvalidRequest("Model name cannot be empty. Please enter a valid name to deploy.")
    if name.strip() == ".." or "/" in name:
        raise InvalidRequest(
            f"invalid model name '{name}', model name must not contain path traversal characters"
        )
