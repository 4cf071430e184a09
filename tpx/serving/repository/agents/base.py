"""The contract of repository agents (Triton: core/include/.../tritonrepoagent.h)."""

from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Protocol

from tpx.errors import LoadError
from tpx.protocol.messages import ModelConfig
from tpx.serving.repository.discovery import private_directory, remove_directory


class AgentAction(Enum):
    """Events in the life of a model: LOAD, LOAD_COMPLETE, UNLOAD, UNLOAD_COMPLETE; or LOAD, LOAD_FAIL."""

    LOAD = "LOAD"
    """The model is about to be loaded: the agent may reject it or substitute other files."""
    LOAD_COMPLETE = "LOAD_COMPLETE"
    """The model serves."""
    LOAD_FAIL = "LOAD_FAIL"
    """The load failed, because of this agent or for any other reason."""
    UNLOAD = "UNLOAD"
    """The model accepts no new requests."""
    UNLOAD_COMPLETE = "UNLOAD_COMPLETE"
    """The model is closed."""


class RepositoryAgent(Protocol):
    """An agent for one load of one model; constructed without arguments, used by one thread at a time."""

    def act(self, action: AgentAction, model: "AgentModel") -> None:
        """Handle an event. An exception during LOAD fails the load; for other events it is only logged."""


class AgentModel:
    """A model as one of its agents sees it."""

    def __init__(
        self,
        name: str,
        config: ModelConfig,
        parameters: Mapping[str, str],
        location: Path,
        parent: Path | None,
    ) -> None:
        self.name = name
        self.config = config
        """Private copy of the ModelConfig as written, before any agent changed it."""
        self.parameters = dict(parameters)
        """Parameters of this agent, from the configuration."""
        self._location = location
        self._parent = parent
        self._acquired: Path | None = None
        self._movable = True

    @property
    def location(self) -> Path:
        """Model directory, as previous agents left it. Read-only: it may be the repository itself."""
        return self._location

    def acquire(self) -> Path:
        """Return a private directory, the same for each call. It is removed when the model is closed."""
        if self._acquired is None:
            self._acquired = private_directory("tpx-agent-", self._parent)
        return self._acquired

    def use(self, directory: Path) -> None:
        """Load the model from this directory instead. Raises LoadError unless the model is being loaded."""
        if not self._movable:
            raise LoadError("the location of a model can only be changed while it is being loaded")
        if not directory.is_dir():
            raise LoadError(f"'{directory}', which the model should be loaded from, is not a directory")
        self._location = directory.absolute()

    def release(self) -> None:
        """Remove the acquired directory, if there is one, before the model is closed."""
        if self._acquired is not None:
            remove_directory(self._acquired)
            self._acquired = None

    def settle(self) -> None:
        """Freeze the location: the server has read it."""
        self._movable = False
