"""The repository agents by name: ours, those in --repoagent-directory, and those that packages add."""

import importlib.util
import sys
from pathlib import Path
from typing import cast

from tpx.errors import ConfigError, LoadError
from tpx.serving.extensions import Kind, Known, foreign, made, make, offer_of, unknown
from tpx.serving.repository.agents.base import RepositoryAgent

AGENTS = Kind(
    noun="repository agent",
    group="tpx.repository_agents",
    known={
        "checksum": Known("tpx.serving.repository.agents.checksum:ChecksumAgent"),
        "decrypt": Known(
            "tpx.serving.repository.agents.decrypt:DecryptAgent", "cryptography", "pip install 'tpx[decrypt]'"
        ),
    },
    needs=("act",),
)
"""A package adds one by an entry point of this group: `mine = "my_package:MyAgent"`."""

CLASS = "RepositoryAgent"
"""What <directory>/<name>/agent.py calls its agent."""


def agent(name: str, directory: Path) -> RepositoryAgent:
    """A new agent of this name. Raises LoadError, and ConfigError where there is none."""
    file = _file(name, directory)
    if file is not None:
        return _from_file(name, file)
    found = make(AGENTS, name)
    if found is not None:
        return cast("RepositoryAgent", found)
    fault = f"unable to find repository agent '{name}' of model_repository_agents.agents"
    if _library(name, directory):
        fault += (
            f": '{directory / name}' has a library of Triton's, tpx takes only agents in Python, agent.py"
        )
    there = sorted(path.parent.name for path in directory.glob("*/agent.py"))
    raise ConfigError(unknown(AGENTS, name, fault, there))


def whereabouts(name: str, directory: Path) -> str:
    """Where the code of an agent is, or an empty string. Raises LoadError where two packages have one."""
    file = _file(name, directory)
    if file is not None:
        return str(file)
    found = AGENTS.known.get(name) or offer_of(AGENTS, name)
    return found.target.partition(":")[0] if found is not None else ""


def _below(name: str, directory: Path, file: str) -> Path | None:
    if name in AGENTS.known or not name or "\0" in name or Path(name).name != name:
        return None
    path = directory / name / file
    return path if path.is_file() else None


def _file(name: str, directory: Path) -> Path | None:
    return _below(name, directory, "agent.py")


def _library(name: str, directory: Path) -> bool:
    return _below(name, directory, f"libtritonrepoagent_{name}.so") is not None


def _from_file(name: str, file: Path) -> RepositoryAgent:
    """Read anew for every load, so that a correction needs no restart."""
    origin = f"repository agent '{name}' is '{file}'"
    module_name = f"tpx_repository_agent_{name}"
    spec = importlib.util.spec_from_file_location(module_name, file)
    if spec is None or spec.loader is None:
        raise LoadError(f"{origin}, which is no Python module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # dataclasses and pickle look for it there
    with foreign(f"{origin}, which cannot be imported: "):
        spec.loader.exec_module(module)
    if not hasattr(module, CLASS):
        raise LoadError(f"{origin}, which has no class {CLASS}")
    return cast("RepositoryAgent", made(origin, getattr(module, CLASS), AGENTS.needs))
