"""A version of a model that serves, with its own instances or composed of other models."""

from tpx.errors import NotReady
from tpx.protocol.messages import ModelConfig
from tpx.protocol.v2 import DecodedRequest
from tpx.serving.model_id import ModelId
from tpx.serving.request import RequestHead, RequestTarget
from tpx.serving.signature import Signature
from tpx.serving.statistics import ModelStatistics


class Served(RequestTarget):
    """A model as the repository, the data plane, and the frontends see it."""

    composed_of: frozenset[ModelId] = frozenset()
    """Models that its requests depend on, directly or indirectly."""
    levels = 0
    """Nesting depth of ensembles; 0 for a model that computes itself."""

    def __init__(self, config: ModelConfig, model: ModelId, version: int, signature: Signature) -> None:
        """`config` is the complete configuration."""
        self.config = config
        self.model_id = model
        self.name = model.name
        self.version = version
        self.signature = signature
        self.max_batch_size = signature.max_batch_size
        self.decoupled = config.model_transaction_policy.decoupled
        """True if a request may get any number of responses."""
        self.statistics = ModelStatistics()
        self.retired = False
        """True once the model takes no new requests: unloaded, or replaced by a newer load."""
        self.in_flight = 0
        """Number of requests taken and not yet answered."""
        self.reads_inputs = False
        """True if its instances fill the buffers of `unread` inputs."""
        self.takes_gpu_memory = False
        """True if its instances take `unread` inputs from GPU memory."""
        self.in_processes = False
        """True if it computes in processes, which may die or have a readiness hook."""

    @property
    def healthy(self) -> bool:
        """True if some instance accepts work; False if all processes have died."""
        return True

    @property
    def has_readiness_hook(self) -> bool:
        """True if the model itself must be asked whether it is ready."""
        return False

    async def check_ready(self) -> bool:
        """Ask the model whether it is ready; True if it has no readiness hook."""
        return True

    @property
    def pending(self) -> int:
        """Number of requests waiting for an instance."""
        return 0

    @property
    def sequences(self) -> int:
        """Number of sequences that have begun and not ended."""
        return 0

    @property
    def abandoned(self) -> bool:
        """True if all requests in flight were cancelled and are held by processes, which may never
        return them, so that the model can be closed anyway.
        """
        return False

    @property
    def busy(self) -> bool:
        """True if a request is in flight or a sequence has not ended."""
        return self.in_flight > 0 or self.sequences > 0

    def bind(self, request: DecodedRequest) -> RequestHead:
        """Validate a request's head against this model. Raises InvalidRequest."""
        return self.signature.bind(self, request)

    def not_ready(self) -> NotReady:
        """Return the error of requests to a retired model."""
        return NotReady(
            f"Request for unknown model: '{self.name}' version {self.version} is not at ready state"
        )

    def close(self) -> None:
        """Release its resources; nothing may be in flight. May be called from any thread.

        Cached heads are dropped, so that references from frontends do not keep the weights in memory.
        """
        self.signature.forget_heads()
