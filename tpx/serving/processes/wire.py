"""The protocol of frontends and engine: kinds of frames, and their meta data as MessagePack."""

from collections.abc import Sequence
from enum import IntEnum
from typing import TypeVar

import msgspec
from msgspec import Struct

from tpx.errors import Code, InvalidRequest, RequestError, TpxError
from tpx.protocol.tensors import Buffer, Tensor
from tpx.protocol.v2 import DecodedRequest, Parameter, RequestedOutput, SharedMemoryRange
from tpx.serving.logs import LogSettings
from tpx.serving.request import BoundOutput, RequestHead, TensorSpec
from tpx.serving.signature import Signature

_T = TypeVar("_T")


class FrameKind(IntEnum):
    """Kinds of frames; 0 is the channel's own."""

    # from a frontend
    INFER = 1
    """Tensors as payload; meta data where the template is not known yet, or sizes vary."""
    CANCEL = 2
    STALL = 3
    """The client does not take its responses; with flag ON. Otherwise it does again."""
    ASK_MODEL = 4
    HTTP = 5
    """A request that the engine answers itself."""
    GRPC = 6
    SERVING = 7
    """The frontend accepts connections."""
    TRACE = 8
    """The last stamps of a traced request."""
    # from the engine
    RESPONSE = 16
    MODEL = 17
    """The answer to ASK_MODEL."""
    ANSWER = 18
    """The answer to HTTP or GRPC."""
    STATE = 19
    """Settings that frontends carry out: of the log, of tracing."""
    RELEASE_CLIENTS = 20
    STOP_ACCEPTING = 21
    END = 22


class Flag(IntEnum):
    """Bits of a frame's flags."""

    DEFINES = 1
    """The meta data is to be remembered under the template's number."""
    FINAL = 2
    ERROR = 4
    """The meta data is an error."""
    PACED = 8
    """The model must not run ahead of the client."""
    DESCRIBES = 16
    """The payload is what the outputs are: the model changed while the request was on its way."""
    ON = 32
    TRACED = 64
    """The meta data is another one and the beginning of a trace."""


NO_TEMPLATE = 0xFFFFFFFF
TEMPLATES = 4096


class FrameTemplate:
    """Something that is sent once, and from then on by its number; the oldest loses its number to the next.

    `owners` is a list of this side: it tells which template each number stands for on the other side.
    """

    __slots__ = ("_number", "meta")

    def __init__(self, meta: bytes) -> None:
        self.meta = meta
        self._number = 0

    def number_in(self, owners: "Templates") -> int | None:
        """Return its number, None if the other side does not know it."""
        return self._number if owners.known[self._number] is self else None

    def define_in(self, owners: "Templates") -> int:
        """Return the number that it has from now on."""
        self._number = number = owners.next
        owners.next = (number + 1) % TEMPLATES
        owners.known[number] = self
        return number


class Templates:
    """The templates of one direction of a channel."""

    def __init__(self) -> None:
        self.known: list[FrameTemplate | None] = [None] * TEMPLATES
        self.next = 0


def encode(message: Struct) -> bytes:
    """Encode meta data. Raises InvalidRequest where a client's integer has more than 64 bits."""
    try:
        return msgspec.msgpack.encode(message)
    except OverflowError as exc:
        raise InvalidRequest("a parameter or dimension of the request has more than 64 bits") from exc


def decode(kind: type[_T], meta: Buffer) -> _T:
    """Decode meta data. Raises msgspec.DecodeError, which breaks a channel."""
    return msgspec.msgpack.decode(meta, type=kind)


class Error(Struct, array_like=True):
    """A TpxError as it travels."""

    code: str
    message: str

    @classmethod
    def of(cls, error: TpxError) -> "Error":
        # what a client wrote may be in it, and need not be text
        return cls(error.code.value, error.message.encode(errors="replace").decode())

    def error(self) -> TpxError:
        """Return it to raise or to answer."""
        return RequestError(self.message, code=Code(self.code))


class Spec(Struct, array_like=True):
    """A TensorSpec as it travels."""

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
        """Return what it was made of."""
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
    """The model that a frontend asks for."""

    name: str
    version: str


class Model(Struct, array_like=True):
    """A model as a frontend sees it."""

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
        """Return the tensors of the model."""
        inputs, outputs = ([each.spec() for each in specs] for specs in (self.inputs, self.outputs))
        return Signature(self.name, self.max_batch_size, inputs, outputs)


class WireInput(Struct, array_like=True):
    """An input without its data."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    shared: SharedMemoryRange | None


class Request(Struct, array_like=True):
    """A DecodedRequest without data, and the sizes of the tensors that come with it."""

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
        """Sizes are yet to be filled in."""
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
        """Return the request over its tensors' data; none came of those in shared memory."""
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
    """Implements Placement, in a frontend: the engine has put the output there already."""

    def put(self, output: str, data: Buffer) -> None:
        """Nothing is left to do."""


class WireOutput(Struct, array_like=True):
    """A BoundOutput as it travels."""

    spec: Spec
    binary: bool
    classification: int
    placed: bool

    def bound(self) -> BoundOutput:
        """Return what it was made of."""
        output = BoundOutput(self.spec.spec(), binary=self.binary, classification=self.classification)
        output.placement = Elsewhere() if self.placed else None
        return output


class Described(Struct, array_like=True):
    """The model that has answered, where that is not the one that the frontend knows."""

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
    """A tensor of a response without its data."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    size: int


class WireResponse(Struct, array_like=True):
    """A response without its tensors' data."""

    tensors: list[OutputTensor]
    parameters: dict[str, Parameter] | None
    described: Described | None


class EngineState(Struct, array_like=True):
    """Settings of the engine that frontends carry out."""

    logs: LogSettings
    tracing: bool
    hears_callers: bool


class WireStamp(Struct, array_like=True):
    """Something happened to a traced request."""

    name: str
    ns: int


class Calling(Struct, array_like=True):
    """A Caller as it travels: its ids have more bits than MessagePack's integers."""

    trace_id: str
    span_id: int
    sampled: bool
    state: str


class TraceStart(Struct, array_like=True):
    """The beginning of a trace; `meta` is what the frame would say without it."""

    meta: bytes
    caller: Calling | None
    stamps: list[WireStamp]


class TraceEnd(Struct, array_like=True):
    """The rest of a trace."""

    stamps: list[WireStamp]


class RelayedHead(Struct, array_like=True):
    """An HTTP request that is handed on."""

    method: bytes
    path: bytes


class HttpAnswer(Struct, array_like=True):
    """A response besides its body."""

    status: int
    headers: bytes


class GrpcCall(Struct, array_like=True):
    """A gRPC call that is handed on."""

    path: str


class GrpcAnswer(Struct, array_like=True):
    """Its status; 0 with a message as payload."""

    status: int
    message: str


def cut(payload: Buffer, sizes: Sequence[int]) -> list[Buffer]:
    """Cut a payload into tensors of these sizes. Raises ValueError where they do not fill it."""
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
