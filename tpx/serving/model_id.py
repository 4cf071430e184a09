"""Identity of a model: its name and, if repositories may have models of the same name, its namespace."""

from typing import NamedTuple


class ModelId(NamedTuple):
    """Identity of a model; a tuple, because every step of an ensemble looks one up.

    `namespace` is the repository as configured; empty if names are unique.
    """

    name: str
    namespace: str = ""

    def __str__(self) -> str:
        """Return it as Triton writes it."""
        return f"{self.namespace}::{self.name}" if self.namespace else self.name
