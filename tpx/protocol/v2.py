"""Inference request in the form common to HTTP and gRPC, independent of JSON and protobuf."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from tpx.errors import InvalidRequest
from tpx.protocol.tensors import Tensor

Parameter = str | int | float | bool
LoadParameter = bool | int | str | bytes
"""A parameter of a request to load a model; bytes are the content of a file."""


class SharedMemoryRange(msgspec.Struct, frozen=True, kw_only=True):
    """Location of a tensor's bytes in a registered shared memory region."""

    region: str
    offset: int
    byte_size: int


class RequestedOutput(msgspec.Struct, kw_only=True):
    """Output that the client requested by name. `binary` is its encoding in HTTP; gRPC always sends bytes."""

    name: str
    binary: bool = True
    classification: int = 0
    """Number of top classes to send instead of the tensor; 0 sends the tensor."""
    shared_memory: SharedMemoryRange | None = None
    """Destination of the tensor if it is not sent in the response."""
    parameters: dict[str, Parameter] = msgspec.field(default_factory=dict)


class HeldRegion(Protocol):
    """A region of shared memory that requests in flight hold."""

    def hold(self) -> None:
        """Note that a request begins to use it."""

    def release(self) -> None:
        """Note that a request has ended."""


class DecodedRequest(msgspec.Struct, kw_only=True):
    """Request decoded as far as possible without the model."""

    model_name: str = ""
    model_version: str = ""
    request_id: str = ""
    parameters: dict[str, Parameter] = msgspec.field(default_factory=dict)
    inputs: list[Tensor] = msgspec.field(default_factory=list)
    shared_inputs: list[tuple[Tensor, SharedMemoryRange]] = msgspec.field(default_factory=list)
    """Inputs whose data, empty here, is in shared memory."""
    regions: Sequence[HeldRegion] = ()
    """Server objects of the regions that held the data, set once it is read."""
    outputs: list[RequestedOutput] = msgspec.field(default_factory=list)
    """Requested outputs; if empty, all outputs are sent according to `default_binary`."""
    default_binary: bool = False
    empty_final_response: bool = False
    """True if the client of a decoupled model also wants an empty final response."""
    tensor_offset: int = -1
    """Offset of the inputs' raw bytes in the encoded request if they are all raw, in order, and at its
    end, else -1. Requests with equal bytes before it differ only in their data.
    """


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
"""All extensions of the protocol, in Triton's order; a server lists those that it supports."""


SHARED_MEMORY_PARAMETERS = ("shared_memory_region", "shared_memory_offset", "shared_memory_byte_size")


def shared_memory_range(
    tensor: str,
    parameters: Mapping[str, object],
    mistyped: Callable[[str, str, type], InvalidRequest],
    numbers: range,
) -> SharedMemoryRange | None:
    """Return the range named by a tensor's parameters, or None if they name no region.

    `mistyped(tensor, key, type)` creates the error for a parameter of the wrong type, or a number that the
    protocol cannot represent (outside `numbers`); the range is checked later. Raises InvalidRequest.
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
        if not isinstance(value, int) or isinstance(value, bool) or value not in numbers:
            raise mistyped(tensor, key, int)
        sizes.append(value)
    return SharedMemoryRange(region=region, offset=sizes[0], byte_size=sizes[1])


def check_string_count(tensor: str, count: int, most: int) -> None:
    """Raise InvalidRequest for a BYTES input with too many elements: each becomes a Python object."""
    if count > most:
        raise InvalidRequest(
            f"input '{tensor}' has {count} strings, more than the {most} that this server accepts. "
            "Use --max-string-elements to increase the limit."
        )
