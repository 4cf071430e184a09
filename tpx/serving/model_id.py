"""Which model is meant: its name and, where repositories may have models of the same name, its namespace."""

from typing import NamedTuple


class ModelId(NamedTuple):
    """One model among all; a tuple, since every step of an ensemble looks one up.

    `namespace` is the repository, as configured; empty where models are known by their names
    alone.
    """

    name: str
    namespace: str = ""

    def __str__(self) -> str:
        """As Triton writes it."""
        return f"{self.namespace}::{self.name}" if self.namespace else self.name
