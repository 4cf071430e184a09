"""Interface between the server and its backends, without anything about how instances are scheduled.

A `Backend` opens a version of a model. The resulting `OpenModel` creates one executor per instance,
which computes.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

import msgspec

from tpx.errors import Code, ConfigError, LoadError, TpxError
from tpx.protocol.messages import ModelConfig
from tpx.serving.batch import Arrays as Arrays
from tpx.serving.batch import GpuRange as GpuRange
from tpx.serving.batch import GpuTensor as GpuTensor
from tpx.serving.host import Host

GLOBAL = -1
"""Device number of a resource that all devices share."""


class ModelFiles(msgspec.Struct, frozen=True, kw_only=True):
    """Location of one version of a model, and the server's settings for it."""

    model_name: str
    version: int
    directory: Path
    """Directory of the version; its parent is the model's directory."""
    settings: Mapping[str, str] = msgspec.field(default_factory=dict)
    """--backend-config settings for this backend."""
    host: Host | None = None
    """Services of the server for models that call other models, load them, or report metrics."""


class Needs(msgspec.Struct, frozen=True, kw_only=True):
    """Rate limiter resources that an instance holds while it computes, and its priority."""

    resources: Mapping[tuple[str, int], int] = msgspec.field(default_factory=dict)
    """Amounts by name and device."""
    priority: int = 1
    """Weight in the rate limiter: an instance with twice the number gets half the turns."""


class InstanceSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Name, kind (KIND_CPU, KIND_GPU or KIND_MODEL) and device of one instance."""

    name: str
    kind: str
    device_id: int = 0
    needs: Needs = msgspec.field(default_factory=Needs)
    profiles: tuple[str, ...] = ()
    """TensorRT optimization profiles that it uses, by number."""


def inside(directory: Path, name: str, field: str) -> Path:
    """Return the path below `directory` of the file `name`, given at the path `field` of the configuration.

    Raises ConfigError if the name leads out of `directory`. Symbolic links may do so: the owner of the
    repository creates them.
    """
    if not name or "\0" in name or Path(name).is_absolute() or ".." in Path(name).parts:
        what = field.rpartition(".")[2]
        raise ConfigError(
            f"{what} '{name}' is outside '{directory}': it must name a file below it", field=field
        )
    return directory / name


def no_file(path: Path, model_name: str) -> LoadError:
    """Return the error for a missing model file; its message suggests a file with the same suffix."""
    fault = f"unable to find '{path}' for model '{model_name}'"
    similar = sorted(path.parent.glob(f"*{path.suffix}")) if path.suffix else []
    if similar:
        fault += f" (there is '{similar[0].name}': rename it, or say default_model_filename)"
    return LoadError(fault, code=Code.NOT_FOUND)


@runtime_checkable
class Executor(Protocol):
    """One instance of a model; used by one thread at a time."""

    def execute(self, inputs: Arrays) -> Arrays:
        """Compute a batch; BYTES are object arrays of `bytes`, BF16 is uint16. Raises ExecutionError."""

    def close(self) -> None: ...


@runtime_checkable
class TakesGpuMemory(Protocol):
    """An executor whose inputs may also be GpuTensors."""

    takes_gpu_memory: bool


class Binding(Protocol):
    """Memory bound to an executor's inputs and outputs, reused by runs with the same shapes."""

    inputs: Mapping[str, memoryview]
    outputs: Arrays

    def run(self) -> None:
        """Compute `outputs` from `inputs`. Raises ExecutionError."""


@runtime_checkable
class Binds(Protocol):
    """An executor that can run on memory bound in advance."""

    def bind(self, inputs: Arrays, outputs: Arrays) -> Binding | None:
        """Return memory for runs with the shapes of these arrays, which were just computed.

        Returns None if such a run would not compute the same outputs.
        """


class ResponseSender(Protocol):
    """Sends the responses of one request of a decoupled model as they are produced.

    Every method returns False once the request is cancelled; the model should then stop.
    """

    def send(self, outputs: Arrays) -> bool:
        """Send a response. Blocks while the client is slow to read earlier ones. Raises ExecutionError."""

    def send_error(self, error: TpxError) -> bool:
        """Send an error instead of a response; more responses may follow."""

    def wait(self, seconds: float) -> bool:
        """Sleep for `seconds`; return early if the request is cancelled."""


@runtime_checkable
class DecoupledExecutor(Protocol):
    """One instance of a decoupled model; used by one thread at a time."""

    def respond(self, inputs: Arrays, responses: ResponseSender) -> None:
        """Compute one request; its last response must be sent before this returns. Raises ExecutionError."""

    def close(self) -> None: ...


class RemoteExecutor(Protocol):
    """One instance of a model that queues and computes batches itself, in another process.

    The server drives it as a `serving.instance.RemoteInstance`, whose methods it must have, too.
    """

    def close(self) -> None: ...


class OpenModel(Protocol):
    """One version of a model in memory."""

    inline: bool
    """True if short executions may run on the event loop: they cannot hang and keep no thread-local state."""

    def complete(self, config: ModelConfig, *, default_max_batch_size: int) -> None:
        """Fill the fields that the ModelConfig leaves open from the model file. Raises ConfigError."""

    def check(self, config: ModelConfig) -> None:
        """Raise ConfigError if the configuration and the model file disagree."""

    def executor(
        self, spec: InstanceSpec, config: ModelConfig
    ) -> Executor | DecoupledExecutor | RemoteExecutor:
        """Create an instance that is ready to compute. Raises LoadError.

        For a decoupled model it may be a DecoupledExecutor, or an executor that sends one response per
        request.
        """

    def close(self) -> None: ...


@runtime_checkable
class DividesMachine(Protocol):
    """An open model whose instances share the machine's cores, so that each depends on their number."""

    def divides_as(self, config: ModelConfig) -> bool:
        """Return whether the present instances still suit a configuration with other instance groups."""


class Description(msgspec.Struct, frozen=True, kw_only=True):
    """Status of a component, as shown by `tpx doctor`."""

    version: str = ""
    providers: tuple[str, ...] = ()
    """Engines that it can compute with, such as execution providers."""
    devices: tuple[str, ...] = ()
    """Devices that it can compute on."""
    lacks: str = ""
    """Reason why it cannot be used although its import succeeds; empty if it can."""
    remedy: str = ""
    """Command that fixes it."""


@runtime_checkable
class Describes(Protocol):
    """A backend that can report more than whether its import succeeds."""

    def describe(self) -> Description:
        """Return its status. Called in a separate process: it may take seconds and load native libraries."""


@runtime_checkable
class MakesResponses(Protocol):
    """An open model that builds its own responses: it may omit outputs and reschedule requests."""

    makes_responses: bool


@runtime_checkable
class TakesSamples(Protocol):
    """An open model that accepts batches of samples with different shapes.

    Inputs are arrays [n, *dims] if all samples have the same shape, otherwise object arrays with one
    array per sample. Outputs may be either; those of one request must have the same shape.
    """

    joined_outputs: frozenset[str]
    """Outputs whose samples are concatenated along their first dimension."""


@runtime_checkable
class OnGpus(Protocol):
    """A backend that can compute on GPUs.

    If it finds any, KIND_AUTO means KIND_GPU, and an instance group without `gpus` uses all of them.
    """

    gpus_only: bool
    """True if it cannot compute on the CPU."""

    def gpus(self) -> Sequence[int]:
        """Return the devices that it can use."""


@runtime_checkable
class CountsInstances(Protocol):
    """A backend with its own default for the `count` of an instance group."""

    def default_instance_count(self, kind: str) -> int:
        """Return the default count for KIND_CPU or KIND_GPU."""


class Backend(Protocol):
    """Opens models of one kind."""

    default_filename: str

    def open(self, files: ModelFiles, config: ModelConfig) -> OpenModel:
        """Open a version; `config` may still be incomplete. Raises LoadError."""
