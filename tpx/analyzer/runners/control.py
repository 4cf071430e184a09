"""The seam to a server's model control: what it has, and loading a model under a configuration of ours."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from tpx.errors import Code, MeasurementError, ResponseError

REQUEST_TIMEOUT_S = 10.0

State = Literal["READY", "UNAVAILABLE", "LOADING", "UNLOADING", ""]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelState:
    """A model of the server's index; an empty state is one that was never loaded."""

    name: str
    state: str
    reason: str = ""


class ModelControl(Protocol):
    """Raises WireError where nothing answers, MeasurementError with the server's words where it refuses."""

    async def live(self) -> bool:
        """Whether the server answers; never raises."""

    async def index(self) -> tuple[ModelState, ...]: ...

    async def load(self, model: str, config: Mapping[str, Any] | None, timeout_s: float) -> None:
        """Load a model, under this configuration if there is one; it serves when this returns."""

    async def unload(self, model: str) -> None:
        """Begin to unload; what the server still does for the model ends later."""

    async def config(self, model: str) -> dict[str, Any]:
        """JSON of the configuration that the model is served with."""
        ...


def refused(model: str, verb: str, words: str) -> MeasurementError:
    """What a server's refusal is told as; `verb` is load or unload."""
    reason = words.removeprefix(f"failed to {verb} '{model}', ")
    if "polling is enabled" in words:
        return MeasurementError(
            f"the server does not {verb} models by request ({reason}): start it with "
            "--model-control-mode=explicit, or measure what it serves with --reload-model-disable"
        )
    return MeasurementError(f"the server could not {verb} model '{model}': {reason}")


def is_gone(error: ResponseError) -> bool:
    """Whether a gRPC answer says that nobody is there, rather than what the server thinks."""
    return error.code is Code.UNAVAILABLE and "connection" in error.message.lower()
