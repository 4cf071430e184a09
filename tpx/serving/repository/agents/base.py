"""The contract of repository agents (Triton: core/include/.../tritonrepoagent.h)."""

import shutil
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Protocol

from tpx.errors import LoadError
from tpx.protocol.messages import ModelConfig
from tpx.serving.repository.overrides import private_directory


class AgentAction(Enum):
    """Events in the life of a model: LOAD, LOAD_COMPLETE, UNLOAD, UNLOAD_COMPLETE; or LOAD, LOAD_FAIL."""

    LOAD = "LOAD"
    """It is about to be loaded: the agent may refuse it, and give it other files."""
    LOAD_COMPLETE = "LOAD_COMPLETE"
    """It serves."""
    LOAD_FAIL = "LOAD_FAIL"
    """It was not loaded, because of this agent or of anything else."""
    UNLOAD = "UNLOAD"
    """It takes no new requests."""
    UNLOAD_COMPLETE = "UNLOAD_COMPLETE"
    """It is gone."""


class RepositoryAgent(Protocol):
    """One agent of one load of a model; made without arguments, and used by one thread at a time."""

    def act(self, action: AgentAction, model: "AgentModel") -> None:
        """Something happens to the model. What LOAD raises fails the load, the rest is only logged."""


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
        """The ModelConfig as it was written, before any agent; a copy of one's own."""
        self.parameters = dict(parameters)
        """Of this agent, from the configuration."""
        self._location = location
        self._parent = parent
        self._acquired: Path | None = None
        self._movable = True

    @property
    def location(self) -> Path:
        """The directory of the model, with its version directories, as the agents before left it. Not to be
        written to: it may be the repository itself."""
        return self._location

    def acquire(self) -> Path:
        """A new, empty, private directory; the same at each call. It is removed when the model is gone."""
        if self._acquired is None:
            self._acquired = private_directory("tpx-agent-", self._parent)
        return self._acquired

    def use(self, directory: Path) -> None:
        """Load the model from this directory instead. Raises LoadError unless it is being loaded."""
        if not self._movable:
            raise LoadError("the location of a model can only be changed while it is being loaded")
        if not directory.is_dir():
            raise LoadError(f"'{directory}', which the model should be loaded from, is not a directory")
        self._location = directory.absolute()

    def release(self) -> None:
        """Remove the acquired directory before the model is gone; there need not be one."""
        if self._acquired is not None:
            shutil.rmtree(self._acquired, ignore_errors=True)
            self._acquired = None

    def settle(self) -> None:
        """The server has taken the location: it does not change any more."""
        self._movable = False
