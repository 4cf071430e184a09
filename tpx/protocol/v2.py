"""An inference request and its answer as both protocols mean them, free of JSON and protobuf."""

from dataclasses import dataclass, field

from tpx.protocol.tensors import Tensor

Parameter = str | int | float | bool


@dataclass(slots=True, kw_only=True)
class RequestedOutput:
    """One output that the client named. `binary` says how HTTP sends it; gRPC always sends bytes."""

    name: str
    binary: bool = True
    classification: int = 0
    """Send this many top classes instead of the tensor."""
    parameters: dict[str, Parameter] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class DecodedRequest:
    """What a client asked for, as far as it can be understood without the model."""

    model_name: str = ""
    model_version: str = ""
    request_id: str = ""
    parameters: dict[str, Parameter] = field(default_factory=dict)
    inputs: list[Tensor] = field(default_factory=list)
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
