"""Who may call what: the categories of the API."""

from typing import Literal

Category = Literal[
    "health",
    "metadata",
    "inference",
    "shared-memory",
    "model-config",
    "model-repository",
    "statistics",
    "trace",
    "logging",
]
"""What of the API can be restricted as a whole, in Triton's words."""
