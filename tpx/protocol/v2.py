"""An inference request and its answer as both protocols mean them, free of JSON and protobuf."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tpx.errors import InvalidRequest
from tpx.protocol.tensors import Tensor

Parameter = str | int | float | bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedMemoryRange:
    """Where in a registered region of shared memory a tensor's bytes are, or shall go."""

    region: str
    offset: int
    byte_size: int


@dataclass(slots=True, kw_only=True)
class RequestedOutput:
    """One output that the client named. `binary` says how HTTP sends it; gRPC always sends bytes."""

    name: str
    binary: bool = True
    classification: int = 0
    """Send this many top classes instead of the tensor."""
    shared_memory: SharedMemoryRange | None = None
    """Put the tensor there instead of into the answer."""
    parameters: dict[str, Parameter] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class DecodedRequest:
    """A request as far as it can be understood without the model."""

    model_name: str = ""
    model_version: str = ""
    request_id: str = ""
    parameters: dict[str, Parameter] = field(default_factory=dict)
    inputs: list[Tensor] = field(default_factory=list)
    shared_inputs: list[tuple[Tensor, SharedMemoryRange]] = field(default_factory=list)
    """Those of the inputs whose data, empty here, is in shared memory."""
    regions: Sequence[object] = ()
    """The server's own: where their data was, once it is read."""
    outputs: list[RequestedOutput] = field(default_factory=list)
    """Empty: all outputs, sent as `default_binary` says."""
    default_binary: bool = False
    empty_final_response: bool = False
    """Of a decoupled model, the client also wants the final response that is empty."""
    tensor_offset: int = -1
    """Where in the encoded request the inputs' raw bytes begin, if they are all raw, in order, and at its
    end:
    two requests with the same bytes before it differ in nothing but their data. -1 otherwise."""


EXTENSIONS = (
    "classification",
    "sequence",
    "model_repository",
    "model_repository(unload_dependents)",
    "schedule_policy",
    "model_configuration",
    "system_shared_memory",
    "cuda_shared_memory",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "trace",
    "logging",
)
"""Every extension of the protocol, in the order Triton lists them; a server names those it has."""


SHARED_MEMORY_PARAMETERS = ("shared_memory_region", "shared_memory_offset", "shared_memory_byte_size")


def shared_memory_range(
    tensor: str, parameters: Mapping[str, object], mistyped: Callable[[str, str, type], InvalidRequest]
) -> SharedMemoryRange | None:
    """The range that a tensor's parameters name, None if they name no region; whether it is there, the
    regions know.

    `mistyped(tensor, key, type)` makes the error for a parameter that is not of a type. Raises
    InvalidRequest.
    """
    if "shared_memory_region" not in parameters:
        for key in SHARED_MEMORY_PARAMETERS[1:]:
            if key in parameters:
                raise InvalidRequest(
                    f"'{key}' can not be specified without 'shared_memory_region' parameter for tensor "
                    f"'{tensor}'"
                )
        return None
    region = parameters["shared_memory_region"]
    if not isinstance(region, str):
        raise mistyped(tensor, "shared_memory_region", str)
    if "shared_memory_byte_size" not in parameters:
        raise InvalidRequest(
            f"'shared_memory_byte_size' must be specified along with 'shared_memory_region' parameter for "
            f"tensor '{tensor}'"
        )
    sizes = []
    for key in SHARED_MEMORY_PARAMETERS[1:]:
        value = parameters.get(key, 0)
        if not isinstance(value, int) or isinstance(value, bool):
            raise mistyped(tensor, key, int)
        sizes.append(value)
    return SharedMemoryRange(region=region, offset=sizes[0], byte_size=sizes[1])


def check_string_count(tensor: str, count: int, most: int) -> None:
    """Raise InvalidRequest for a BYTES input of more elements than the server takes: each becomes an object
    of the interpreter."""
    if count > most:
        raise InvalidRequest(
            f"input '{tensor}' has {count} strings, more than the {most} that this server takes. "
            "Use --max-string-elements to increase the limit."
        )
