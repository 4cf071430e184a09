"""Protocol between frontends and engine: kinds of frames, and their metadata as MessagePack."""

from collections.abc import Sequence
from enum import IntEnum
from typing import TypeVar

import msgspec
from msgspec import Struct

from tpx.errors import Code, InvalidRequest, RequestError, TpxError
from tpx.protocol.tensors import Buffer, Tensor
from tpx.protocol.v2 import DecodedRequest, Parameter, RequestedOutput, SharedMemoryRange
from tpx.serving.logs import LogSettings
from tpx.serving.processes.ring import PlainHead
from tpx.serving.request import BoundOutput, RequestHead, TensorSpec
from tpx.serving.signature import Signature

_T = TypeVar("_T")


class FrameKind(IntEnum):
    """Kinds of frames; 0 is internal to the channel."""

    # from a frontend
    INFER = 1
    """Inference request, with tensors as payload; has metadata if its template is new or its sizes vary."""
    CANCEL = 2
    STALL = 3
    """The client does not read its responses (with flag ON), or reads them again (without)."""
    ASK_MODEL = 4
    HTTP = 5
    """HTTP request other than inference, answered by the engine."""
    GRPC = 6
    SERVING = 7
    """The frontend accepts connections."""
    TRACE = 8
    """The last timestamps of a traced request."""
    # from the engine
    RESPONSE = 16
    MODEL = 17
    """Answer to ASK_MODEL."""
    ANSWER = 18
    """Answer to HTTP or GRPC."""
    STATE = 19
    """Log and trace settings for frontends."""
    RELEASE_CLIENTS = 20
    STOP_ACCEPTING = 21
    END = 22


class Flag(IntEnum):
    """Bits of a frame's flags."""

    DEFINES = 1
    """The metadata defines the template with the frame's template number."""
    FINAL = 2
    ERROR = 4
    """The metadata is an error."""
    PACED = 8
    """The model must not produce responses faster than the client reads them."""
    DESCRIBES = 16
    """The metadata also describes the outputs, because models changed while the request was in flight."""
    ON = 32
    TRACED = 64
    """The metadata is a TraceStart, which contains the request's own metadata."""


NO_TEMPLATE = 0xFFFFFFFF
TEMPLATES = 4096


class FrameTemplate:
    """Metadata that is sent once and then referred to by number; the oldest one's number is reused.

    `owners` is this side's table of the numbers that the other side knows.
    """

    __slots__ = ("_number", "_plain", "_plain_key", "meta")

    def __init__(self, meta: bytes) -> None:
        self.meta = meta
        self._number = 0
        self._plain_key = -1, -1
        self._plain: PlainHead

    def number_in(self, owners: "Templates") -> int | None:
        """Return its number, None if the other side does not know it."""
        return self._number if owners.known[self._number] is self else None

    def define_in(self, owners: "Templates") -> int:
        """Assign a number to it and return the number."""
        self._plain_key = -1, -1
        self._number = number = owners.next
        owners.next = (number + 1) % TEMPLATES
        owners.known[number] = self
        return number

    def plain_in(
        self, owners: "Templates", kind: int, flags: int, generation: int, size: int
    ) -> PlainHead | None:
        """Return the head of plain frames with this template, None if the other side does not know it."""
        if owners.known[self._number] is not self:
            return None
        key = generation, size
        if self._plain_key != key:
            self._plain_key = key
            self._plain = PlainHead(kind, flags, self._number, generation, size)
        return self._plain


class Templates:
    """Templates of one direction of a channel, by number."""

    def __init__(self) -> None:
        self.known: list[FrameTemplate | None] = [None] * TEMPLATES
        self.next = 0


def encode(message: Struct) -> bytes:
    """Encode metadata. Raises InvalidRequest if a client's integer has more than 64 bits."""
    try:
        return msgspec.msgpack.encode(message)
    except OverflowError as exc:
        raise InvalidRequest("a parameter or dimension of the request has more than 64 bits") from exc


def decode(kind: type[_T], meta: Buffer) -> _T:
    """Decode metadata. Raises msgspec.DecodeError, which breaks the channel."""
    return msgspec.msgpack.decode(meta, type=kind)


class Error(Struct, array_like=True):
    """A serialized TpxError."""

    code: str
    message: str

    @classmethod
    def of(cls, error: TpxError) -> "Error":
        # the message may quote a client's bytes, which need not be valid text
        return cls(error.code.value, error.message.encode(errors="replace").decode())

    def error(self) -> TpxError:
        """Return the error."""
        return RequestError(self.message, code=Code(self.code))


class Spec(Struct, array_like=True):
    """A serialized TensorSpec."""

    name: str
    datatype: str
    dims: tuple[int, ...]
    model_dims: tuple[int, ...] | None
    optional: bool
    ragged: bool
    labels: tuple[str, ...]

    @classmethod
    def of(cls, spec: TensorSpec) -> "Spec":
        reshaped = None if spec.model_dims is spec.dims else spec.model_dims
        return cls(spec.name, spec.datatype, spec.dims, reshaped, spec.optional, spec.ragged, spec.labels)

    def spec(self) -> TensorSpec:
        """Return the TensorSpec."""
        return TensorSpec(
            self.name,
            self.datatype,
            self.dims,
            model_dims=self.model_dims,
            optional=self.optional,
            ragged=self.ragged,
            labels=self.labels,
        )


class ModelName(Struct, array_like=True):
    """Name and version of a model that a frontend asks for."""

    name: str
    version: str


class Model(Struct, array_like=True):
    """Description of a model for frontends."""

    name: str
    version: int
    max_batch_size: int
    decoupled: bool
    inputs: list[Spec]
    outputs: list[Spec]

    @classmethod
    def of(cls, name: str, version: int, signature: Signature, *, decoupled: bool) -> "Model":
        inputs, outputs = (
            [Spec.of(spec) for spec in specs.values()] for specs in (signature.inputs, signature.outputs)
        )
        return cls(name, version, signature.max_batch_size, decoupled, inputs, outputs)

    def signature(self) -> Signature:
        """Return the signature of the model."""
        inputs, outputs = ([each.spec() for each in specs] for specs in (self.inputs, self.outputs))
        return Signature(self.name, self.max_batch_size, inputs, outputs)


class WireInput(Struct, array_like=True):
    """An input without its data."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    shared: SharedMemoryRange | None


class Request(Struct, array_like=True):
    """A DecodedRequest without data, and the sizes of the tensors in the payload."""

    model_name: str
    model_version: str
    request_id: str
    parameters: dict[str, Parameter]
    inputs: list[WireInput]
    outputs: list[RequestedOutput]
    default_binary: bool
    empty_final_response: bool
    sizes: list[int]

    @classmethod
    def of(cls, request: DecodedRequest) -> "Request":
        """Return the request with `sizes` empty; the caller sets them."""
        shared = {id(tensor): place for tensor, place in request.shared_inputs}
        return cls(
            request.model_name,
            request.model_version,
            request.request_id,
            request.parameters,
            [WireInput(t.name, t.datatype, t.shape, shared.get(id(t))) for t in request.inputs],
            request.outputs,
            request.default_binary,
            request.empty_final_response,
            [],
        )

    def request(self, buffers: Sequence[Buffer]) -> DecodedRequest:
        """Return the request with these data; tensors in shared memory have none."""
        request = DecodedRequest(
            model_name=self.model_name,
            model_version=self.model_version,
            request_id=self.request_id,
            parameters=dict(self.parameters),
            outputs=self.outputs,
            default_binary=self.default_binary,
            empty_final_response=self.empty_final_response,
        )
        given = iter(buffers)
        for each in self.inputs:
            data = b"" if each.shared is not None else next(given)
            tensor = Tensor(each.name, each.datatype, each.shape, data)
            request.inputs.append(tensor)
            if each.shared is not None:
                request.shared_inputs.append((tensor, each.shared))
        return request


class Elsewhere:
    """Implements Placement in a frontend: the engine has written the output to shared memory already."""

    def put(self, output: str, data: Buffer) -> None:
        """Do nothing: the engine has written it."""


class WireOutput(Struct, array_like=True):
    """A serialized BoundOutput."""

    spec: Spec
    binary: bool
    classification: int
    placed: bool

    def bound(self) -> BoundOutput:
        """Return the BoundOutput."""
        output = BoundOutput(self.spec.spec(), binary=self.binary, classification=self.classification)
        output.placement = Elsewhere() if self.placed else None
        return output


class Described(Struct, array_like=True):
    """The model that answered, if the frontend does not know it."""

    name: str
    version: int
    decoupled: bool
    outputs: list[WireOutput]

    @classmethod
    def of(cls, head: RequestHead) -> "Described":
        model = head.model
        outputs = [
            WireOutput(Spec.of(each.spec), each.binary, each.classification, each.placement is not None)
            for each in head.outputs
        ]
        return cls(model.name, model.version, model.decoupled, outputs)


class OutputTensor(Struct, array_like=True):
    """An output of a response without its data."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    size: int


class WireResponse(Struct, array_like=True):
    """A response without its data."""

    tensors: list[OutputTensor]
    parameters: dict[str, Parameter] | None
    described: Described | None


class EngineState(Struct, array_like=True):
    """Engine settings that frontends apply."""

    logs: LogSettings
    tracing: bool
    accepts_callers: bool


class WireStamp(Struct, array_like=True):
    """Timestamp of a traced request."""

    name: str
    ns: int


class Calling(Struct, array_like=True):
    """A serialized Caller; its trace id exceeds MessagePack's integers."""

    trace_id: str
    span_id: int
    sampled: bool
    state: str


class TraceStart(Struct, array_like=True):
    """Beginning of a trace; `meta` is the metadata of the frame without tracing."""

    meta: bytes
    caller: Calling | None
    stamps: list[WireStamp]


class TraceEnd(Struct, array_like=True):
    """Remaining timestamps of a trace."""

    stamps: list[WireStamp]


class RelayedHead(Struct, array_like=True):
    """A relayed HTTP request without its body."""

    method: bytes
    path: bytes


class HttpAnswer(Struct, array_like=True):
    """A relayed HTTP response without its body."""

    status: int
    headers: bytes


class GrpcCall(Struct, array_like=True):
    """A relayed gRPC call."""

    path: str


class GrpcAnswer(Struct, array_like=True):
    """Status of a gRPC call; if it is 0, the payload is the message."""

    status: int
    message: str


def cut(payload: Buffer, sizes: Sequence[int]) -> list[Buffer]:
    """Split a payload into tensors of these sizes. Raises ValueError if they do not fill it."""
    if len(sizes) == 1 and sizes[0] == len(payload):
        return [payload]
    if sum(sizes) != len(payload):
        raise ValueError(f"tensors of {sum(sizes)} bytes in {len(payload)}")
    view, at = memoryview(payload), 0
    out: list[Buffer] = []
    for size in sizes:
        out.append(view[at : at + size])
        at += size
    return out
