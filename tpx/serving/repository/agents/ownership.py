"""Repository agents by name, and the ownership of a load: the temporary files it made and the agents to
notify.

Agents are built in, found in --repoagent-directory, or registered by packages. An ownership lives until
the last version of its load is closed. Shares are counted on the event loop; agents run in threads.
"""

import importlib.util
import logging
import sys
import threading
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, cast

from tpx.errors import ConfigError, LoadError, TpxError
from tpx.protocol.messages import ModelConfig
from tpx.serving.extensions import BuiltIn, ExtensionKind, foreign, made, make, offer_of, unknown
from tpx.serving.repository.agents.base import AgentAction, AgentModel, RepositoryAgent
from tpx.serving.repository.discovery import remove_directory

if TYPE_CHECKING:
    from tpx.serving.repository.loading import WantedModel

AGENTS = ExtensionKind(
    noun="repository agent",
    group="tpx.repository_agents",
    known={
        "checksum": BuiltIn("tpx.serving.repository.agents.checksum:ChecksumAgent"),
        "decrypt": BuiltIn(
            "tpx.serving.repository.agents.decrypt:DecryptAgent", "cryptography", "pip install 'tpx[decrypt]'"
        ),
    },
    needs=("act",),
)
"""Built-in agents. A package adds one with an entry point in this group: `mine = "my_package:MyAgent"`."""

CLASS = "RepositoryAgent"
"""Name of the agent class in <directory>/<name>/agent.py."""


def agent(name: str, directory: Path, field: str = "") -> RepositoryAgent:
    """Create the agent that `field` names. Raises LoadError, or ConfigError if there is no such agent."""
    file = _find_agent_file(name, directory, "agent.py")
    if file is not None:
        # import it anew for every load, so that a fix needs no restart
        origin = f"repository agent '{name}' is '{file}'"
        module_name = f"tpx_repository_agent_{name}"
        spec = importlib.util.spec_from_file_location(module_name, file)
        if spec is None or spec.loader is None:
            raise LoadError(f"{origin}, which is not a Python module")
        module = importlib.util.module_from_spec(spec)
        sys.modules[module_name] = module  # dataclasses and pickle look for it there
        with foreign(f"{origin}, which cannot be imported: "):
            spec.loader.exec_module(module)
        if not hasattr(module, CLASS):
            raise LoadError(f"{origin}, which has no class {CLASS}")
        return cast("RepositoryAgent", made(origin, getattr(module, CLASS), AGENTS.needs))
    found = make(AGENTS, name)
    if found is not None:
        return cast("RepositoryAgent", found)
    fault = f"unable to find repository agent '{name}' of model_repository_agents.agents"
    if _find_agent_file(name, directory, f"libtritonrepoagent_{name}.so") is not None:
        fault += (
            f": '{directory / name}' has a library of Triton's, tpx supports only agents in Python, agent.py"
        )
    names = sorted(path.parent.name for path in directory.glob("*/agent.py"))
    raise ConfigError(unknown(AGENTS, name, fault, names), field=field)


def locate_code(name: str, directory: Path) -> str:
    """Return the file or module of an agent, or "". Raises LoadError if two packages provide it."""
    file = _find_agent_file(name, directory, "agent.py")
    if file is not None:
        return str(file)
    found = AGENTS.known.get(name) or offer_of(AGENTS, name)
    return found.target.partition(":")[0] if found is not None else ""


def _find_agent_file(name: str, directory: Path, file: str) -> Path | None:
    if name in AGENTS.known or not name or "\0" in name or Path(name).name != name:
        return None
    path = directory / name / file
    return path if path.is_file() else None


log = logging.getLogger(__name__)

_NEXT = {
    None: (AgentAction.LOAD,),
    AgentAction.LOAD: (AgentAction.LOAD_COMPLETE, AgentAction.LOAD_FAIL),
    AgentAction.LOAD_COMPLETE: (AgentAction.UNLOAD,),
    AgentAction.UNLOAD: (AgentAction.UNLOAD_COMPLETE,),
}
_IN_ORDER = (AgentAction.LOAD, AgentAction.UNLOAD)


class Ownership:
    """Temporary files and repository agents of one load."""

    def __init__(self, files: Path | None = None) -> None:
        """`files` is a directory that belongs to the load."""
        self._files = files
        self._shares = 1
        self.wanted: WantedModel | None = None
        """The model as the agents left it."""
        self._notified: list[tuple[str, RepositoryAgent, AgentModel]] = []
        """Agents that were notified of LOAD, by name, each with its view of the model."""
        self._last: AgentAction | None = None
        self._acting = threading.Lock()

    @property
    def agents(self) -> bool:
        """True if agents own the model."""
        return bool(self._notified)

    @property
    def empty(self) -> bool:
        """True if there are no files to remove and no agents to notify."""
        return self._files is None and not self._notified

    def load(
        self, config: ModelConfig, location: Path, agent_directory: Path, private_parent: Path | None = None
    ) -> Path:
        """Let the agents of a configuration prepare a model; return the directory to load it from.

        Raises LoadError from an agent that rejects the model, and ConfigError for an unknown agent.
        """
        agents = config.model_repository_agents.agents
        fields = [f"model_repository_agents.agents[{index}]" for index in range(len(agents))]
        found = [agent(each.name, agent_directory, field) for each, field in zip(agents, fields, strict=True)]
        with self._acting:
            self._last = AgentAction.LOAD
            for each, one, field in zip(agents, found, fields, strict=True):
                model = AgentModel(config.name, deepcopy(config), each.parameters, location, private_parent)
                self._notified.append((each.name, one, model))
                where = f"repository agent '{each.name}' of model '{model.name}'"
                try:
                    with foreign():
                        one.act(AgentAction.LOAD, model)
                except ConfigError as exc:
                    raise ConfigError(f"{where}: {exc.message}", field=field) from exc
                except TpxError as exc:
                    if not isinstance(exc.__cause__, TpxError | OSError | None):
                        # the traceback helps the agent's author
                        log.error("%s fails at LOAD", where, exc_info=exc.__cause__)
                    raise LoadError(f"{where}: {exc.message}", code=exc.code) from exc
                model.settle()
                location = model.location
        return location

    def complete(self) -> None:
        """Notify the agents that the model serves. Blocks."""
        self._notify(AgentAction.LOAD_COMPLETE)

    def unload(self) -> None:
        """Notify the agents, once for all versions, that the model accepts no new requests. Blocks."""
        self._notify(AgentAction.UNLOAD)

    def end(self) -> None:
        """Notify the agents that the model is closed or failed to load, then remove all files. Blocks."""
        if self._last is AgentAction.LOAD:
            self._notify(AgentAction.LOAD_FAIL)
        self._notify(AgentAction.UNLOAD)
        self._notify(AgentAction.UNLOAD_COMPLETE)
        self.abandon()

    def abandon(self) -> None:
        """Remove all files even if they are in use: the process is exiting."""
        for _, _, model in self._notified:
            model.release()
        if self._files is not None:
            remove_directory(self._files)

    def share(self) -> None:
        """Add a share for a version that needs the files."""
        self._shares += 1

    def release(self) -> bool:
        """Drop one share. Return True if it was the last one: the caller must then call `end`."""
        self._shares -= 1
        return self._shares == 0

    def _notify(self, action: AgentAction) -> None:
        """Notify all agents, unless this action may not follow the previous one."""
        with self._acting:
            if not self._notified or action not in _NEXT.get(self._last, ()):
                return
            self._last = action
            for name, one, model in self._notified[:: 1 if action in _IN_ORDER else -1]:
                try:
                    with foreign():
                        one.act(action, model)
                except TpxError as exc:
                    fault = f"fails at {action.value} of model '{model.name}': {exc.message}"
                    log.error("repository agent '%s' %s", name, fault)
