"""A version of a model that serves, whatever it is made of: instances of its own, or other models."""

from typing import Protocol

from tpx.protocol.messages import ModelConfig
from tpx.protocol.v2 import DecodedRequest
from tpx.serving.model_id import ModelId
from tpx.serving.request import RequestHead, Servant
from tpx.serving.signature import Signature
from tpx.serving.statistics import ModelStatistics


class Served(Servant, Protocol):
    """A model as the repository, the data plane and the frontends see it."""

    model_id: ModelId
    config: ModelConfig
    """The complete ModelConfig."""
    signature: Signature
    statistics: ModelStatistics
    composed_of: frozenset[ModelId]
    """The models that its requests need, and those that these need."""
    reads_inputs: bool
    """Its instances fill the buffers of inputs that are `unread`."""
    levels: int
    """How deep ensembles are nested in it; 0 for a model that computes itself."""

    @property
    def healthy(self) -> bool:
        """Tell whether it can answer: processes that it is made of may have died."""

    @property
    def has_readiness_hook(self) -> bool:
        """Tell whether `says_ready` asks the model itself."""

    async def says_ready(self) -> bool:
        """Ask the model whether it can answer."""

    @property
    def pending(self) -> int:
        """Requests that wait for an instance."""

    @property
    def in_flight(self) -> int:
        """Requests taken and not yet answered."""

    @property
    def sequences(self) -> int:
        """Sequences that have begun and not ended."""

    @property
    def abandoned(self) -> bool:
        """Tell whether all requests in flight were cancelled, so that it can be ended all the same."""

    @property
    def busy(self) -> bool:
        """Tell whether requests are in flight, or sequences have begun and not ended."""

    def bind(self, request: DecodedRequest) -> RequestHead:
        """Validate a request's head. Raises InvalidRequest."""

    def close(self) -> None:
        """Give back what it holds; nothing may be in flight. May be called from any thread."""
