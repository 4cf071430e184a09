"""The files of deploy/, and what they say."""

from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"


def documents(text: str) -> list[Any]:
    """The documents of YAML text that hold something."""
    return [found for found in yaml.safe_load_all(text) if found]


def load(name: str) -> Any:
    """The one document of a file below deploy/."""
    [found] = documents((DEPLOY / name).read_text("utf-8"))
    return found
