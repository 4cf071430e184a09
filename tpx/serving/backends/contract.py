"""The contract of backends, and all that they need of the server: nothing here knows how instances are run.

A model is opened by a `Backend`, and computed by the executors that the `OpenModel` makes, one per instance.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

from tpx.errors import Code, ConfigError, LoadError, TpxError
from tpx.protocol.messages import ModelConfig
from tpx.serving.batch import Arrays as Arrays
from tpx.serving.batch import Batch, EarlyResponse
from tpx.serving.host import Host
from tpx.serving.request import InferRequest
from tpx.serving.stacking.base import Stacking

GLOBAL = -1
"""The device of a resource that all devices share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFiles:
    """Where one version of a model lies."""

    model_name: str
    version: int
    directory: Path
    """Of the version; its parent is the model's directory."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """--backend-config of this backend."""
    host: Host | None = None
    """What the server does for models that ask for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """Resources that an instance takes of the rate limiter while it computes."""

    resources: Mapping[tuple[str, int], int] = field(default_factory=dict)
    """Amounts by name and device."""
    priority: int = 1
    """Twice the number is half the turns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceSpec:
    """One instance: its name, its kind (KIND_CPU, KIND_GPU, KIND_MODEL) and its device."""

    name: str
    kind: str
    device_id: int = 0
    needs: Needs = field(default_factory=Needs)
    profiles: tuple[str, ...] = ()
    """The optimization profiles of TensorRT that it uses, by their numbers."""


def inside(directory: Path, name: str, field: str) -> Path:
    """The path of the file `name`, which a configuration's `field` gives, below `directory`.

    Raises ConfigError for a name that leads out of it. Symbolic links may: they are the owner's own.
    """
    if not name or "\0" in name or Path(name).is_absolute() or ".." in Path(name).parts:
        raise ConfigError(f"{field} '{name}' is outside '{directory}': it must name a file below it")
    return directory / name


def no_file(path: Path, model_name: str) -> LoadError:
    """The error about a model's file that is not there, with those that may be meant."""
    fault = f"unable to find '{path}' for model '{model_name}'"
    alike = sorted(path.parent.glob(f"*{path.suffix}")) if path.suffix else []
    if alike:
        fault += f" (there is '{alike[0].name}': rename it, or say default_model_filename)"
    return LoadError(fault, code=Code.NOT_FOUND)


class Executor(Protocol):
    """One instance of a model. Used by one thread at a time."""

    def execute(self, inputs: Arrays) -> Arrays:
        """Compute; BYTES are object arrays of bytes, BF16 their bits in uint16. Raises ExecutionError."""

    def close(self) -> None: ...


class Binding(Protocol):
    """Memory of an executor's inputs and outputs, for runs with the same shapes."""

    inputs: Mapping[str, memoryview]
    outputs: Arrays

    def run(self) -> None:
        """Compute the outputs from the inputs. Raises ExecutionError."""


@runtime_checkable
class Binds(Protocol):
    """An executor that can run on memory which it keeps."""

    def bind(self, inputs: Arrays, outputs: Arrays) -> Binding | None:
        """Return memory for runs with the shapes of these arrays, which were computed just now; None where
        such a run would not compute the same."""


class ResponseSender(Protocol):
    """Takes the responses of one request of a decoupled model, each as soon as it is made.

    Every method returns False once the request was cancelled: the model should then stop.
    """

    def send(self, outputs: Arrays) -> bool:
        """Send a response; waits while the client is slow to read those before. Raises ExecutionError."""

    def send_error(self, error: TpxError) -> bool:
        """Send an error instead of a response; others may follow."""

    def wait(self, seconds: float) -> bool:
        """Let time pass, less of it when the request is cancelled."""


@runtime_checkable
class DecoupledExecutor(Protocol):
    """One instance of a decoupled model. Used by one thread at a time."""

    def respond(self, inputs: Arrays, responses: ResponseSender) -> None:
        """Compute one request; the last response was sent when this returns. Raises ExecutionError."""

    def close(self) -> None: ...


class CompletionSink(Protocol):
    """Takes what comes of batches; every method is called on the event loop."""

    def computed(self, batch: Batch) -> None:
        """A batch was `released` and `answered` at once."""

    def answered(self, batch: Batch) -> None:
        """A batch has ended; it holds the responses of its requests, except for those that were `responded`.

        Not called for decoupled models.
        """

    def released(self, batch: Batch) -> None:
        """The instance can take another batch; this one may be answered later."""

    def responded(self, early: EarlyResponse) -> None:
        """A request has a response before its batch has ended."""

    def again(self, request: InferRequest) -> None:
        """The model wants a request once more; its batch was released."""

    def returned(self, batch: Batch) -> None:
        """The process has ended without having begun a batch: another instance may compute it."""


@runtime_checkable
class RemoteExecutor(Protocol):
    """One instance of a model in another process. Used on the event loop, but for `close`."""

    alive: bool
    """It takes batches now."""
    failure: str
    """Why it will not be alive again; empty while it may be."""
    has_readiness_hook: bool
    """`ready` asks the model."""
    on_change: Callable[[], None]
    """Called when it has become alive, or has failed."""

    def use(self, stacking: Stacking) -> None:
        """How batches are made of requests, before the first one comes."""

    def submit(self, batch: Batch, sink: CompletionSink) -> None:
        """Compute a batch. If the process dies, what it has begun is answered with errors."""

    def wait_until_started(self) -> None:
        """Block until the model is initialized, which others are meanwhile. Raises LoadError."""

    async def ready(self) -> bool:
        """Ask the model whether it can answer."""

    def close(self) -> None:
        """End it; blocks, so not on the event loop."""


class OpenModel(Protocol):
    """A version of a model in memory."""

    inline: bool
    """A short execution may run on the event loop: it cannot hang and keeps no state of its thread."""

    def complete(self, config: ModelConfig, *, default_max_batch_size: int) -> None:
        """Fill what the ModelConfig leaves open from what the model file tells. Raises ConfigError."""

    def check(self, config: ModelConfig) -> None:
        """Raise ConfigError where configuration and model file disagree."""

    def executor(
        self, spec: InstanceSpec, config: ModelConfig
    ) -> Executor | DecoupledExecutor | RemoteExecutor:
        """An instance, ready to compute. Where the configuration says that the model is decoupled, it may be
        a decoupled one, or answer each request once. Raises LoadError."""

    def close(self) -> None: ...


@runtime_checkable
class DividesMachine(Protocol):
    """An open model whose instances depend on how many of them there are."""

    def divides_as(self, config: ModelConfig) -> bool:
        """Tell whether the present ones suit a configuration with other instance groups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """Description of a part that `tpx doctor` inspects."""

    version: str = ""
    providers: tuple[str, ...] = ()
    """What it can compute with."""
    devices: tuple[str, ...] = ()
    """Where."""
    lacks: str = ""
    """Why it cannot be used although it can be imported; what can be used lacks nothing."""
    remedy: str = ""
    """The one command that would help."""


@runtime_checkable
class Describes(Protocol):
    """A backend that can tell more of itself than that it can be imported."""

    def describe(self) -> Description:
        """In a process of its own: it may take seconds, and load what there is."""


@runtime_checkable
class MakesResponses(Protocol):
    """An open model that makes its own responses: it may have no outputs and want a request once more."""

    makes_responses: bool


@runtime_checkable
class TakesSamples(Protocol):
    """An open model that takes a batch as samples of different shapes.

    Inputs are arrays [n, *dims] where all samples have one shape, or else object arrays with one array per
    sample. Outputs may be either; those of a request must have one shape.
    """

    joined_outputs: frozenset[str]
    """Outputs whose samples are laid end to end along their first dimension."""


@runtime_checkable
class OnGpus(Protocol):
    """A backend that computes on GPUs: where it has some KIND_AUTO is KIND_GPU, and no `gpus` are all of
    them."""

    gpus_only: bool
    """It computes nowhere else."""

    def gpus(self) -> Sequence[int]:
        """The devices that it can use."""


@runtime_checkable
class CountsInstances(Protocol):
    """A backend whose instance groups have more than one instance where they name no count."""

    def default_instance_count(self, kind: str) -> int:
        """Return the count for KIND_CPU or KIND_GPU."""


class Backend(Protocol):
    """Opens models of one kind."""

    default_filename: str

    def open(self, files: ModelFiles, config: ModelConfig) -> OpenModel:
        """Load a version; `config` may still be incomplete. Raises LoadError."""
