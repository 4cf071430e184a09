"""A version of a model that serves, with its own instances or composed of other models."""

from typing import Protocol

from tpx.protocol.messages import ModelConfig
from tpx.protocol.v2 import DecodedRequest
from tpx.serving.model_id import ModelId
from tpx.serving.request import RequestHead, Servant
from tpx.serving.signature import Signature
from tpx.serving.statistics import ModelStatistics


class Served(Servant, Protocol):
    """A model as the repository, the data plane, and the frontends see it."""

    model_id: ModelId
    config: ModelConfig
    """The complete configuration."""
    signature: Signature
    statistics: ModelStatistics
    composed_of: frozenset[ModelId]
    """Models that its requests depend on, directly or indirectly."""
    reads_inputs: bool
    """True if its instances fill the buffers of `unread` inputs."""
    levels: int
    """Nesting depth of ensembles; 0 for a model that computes itself."""

    in_processes: bool
    """True if it computes in processes, which may die or have a readiness hook."""

    @property
    def healthy(self) -> bool:
        """True if it can respond; False if its processes have died."""

    @property
    def has_readiness_hook(self) -> bool:
        """True if `check_ready` asks the model."""

    async def check_ready(self) -> bool:
        """Ask the model whether it is ready."""

    @property
    def pending(self) -> int:
        """Number of requests waiting for an instance."""

    @property
    def in_flight(self) -> int:
        """Number of unanswered requests."""

    @property
    def sequences(self) -> int:
        """Number of sequences that have begun and not ended."""

    @property
    def abandoned(self) -> bool:
        """True if all requests in flight were cancelled, so that the model can be closed anyway."""

    @property
    def busy(self) -> bool:
        """True if a request is in flight or a sequence has not ended."""

    def bind(self, request: DecodedRequest) -> RequestHead:
        """Validate a request's head. Raises InvalidRequest."""

    def close(self) -> None:
        """Release its resources; nothing may be in flight. May be called from any thread."""
