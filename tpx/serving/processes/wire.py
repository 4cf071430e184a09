"""Protocol between frontends and engine: kinds of frames, and their metadata as MessagePack."""

from collections.abc import Sequence
from enum import IntEnum
from typing import TypeVar

import msgspec
from msgspec import Struct

from tpx.errors import Code, InvalidRequest, Overloaded, RequestError, TpxError
from tpx.protocol import messages
from tpx.protocol.tensors import Buffer, Tensor
from tpx.protocol.v2 import DecodedRequest, Parameter, RequestedOutput, SharedMemoryRange
from tpx.serving.logs import LogSettings
from tpx.serving.processes.channel import PlainHead
from tpx.serving.request import RequestHead
from tpx.serving.served import Served

_T = TypeVar("_T")

WireStamps = list[tuple[str, int]]
"""Names and times of the timestamps of a traced request."""


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
    ANSWER = 17
    """Answer to ASK_MODEL, HTTP or GRPC."""
    STATE = 18
    """Log and trace settings for frontends."""
    RELEASE_CLIENTS = 19
    STOP_ACCEPTING = 20
    END = 21


class Flag:
    """Bits of a frame's flags, beside the channel's; not an Enum, whose members cost 100 ns to look up on
    Python 3.11.
    """

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


def encode(message: Struct | WireStamps) -> bytes:
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
    overloaded: bool

    @classmethod
    def of(cls, error: TpxError) -> "Error":
        # the message may quote a client's bytes, which need not be valid text
        text = error.message.encode(errors="replace").decode()
        return cls(error.code.value, text, isinstance(error, Overloaded))

    def error(self) -> TpxError:
        """Return the error."""
        kind = Overloaded if self.overloaded else RequestError
        return kind(self.message, code=Code(self.code))


class ModelName(Struct, array_like=True):
    """Name and version of a model that a frontend asks for."""

    name: str
    version: str


class Model(Struct, array_like=True):
    """Description of a model for frontends."""

    version: int
    config: bytes
    """Serialized ModelConfig with name, tensors and transaction policy."""
    labels: dict[str, tuple[str, ...]]

    @classmethod
    def of(cls, model: Served) -> "Model":
        config = messages.ModelConfig(
            name=model.name,
            max_batch_size=model.max_batch_size,
            input=model.config.input,
            output=model.config.output,
            model_transaction_policy=model.config.model_transaction_policy,
        )
        labels = {name: spec.labels for name, spec in model.signature.outputs.items()}
        return cls(model.version, config.SerializeToString(), labels)


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


class EnginePlacement:
    """Implements Placement in a frontend: the engine has written the output to shared memory already."""

    def put(self, output: str, data: Buffer) -> None:
        """Do nothing: the engine has written it."""


class WireOutput(Struct, array_like=True):
    """A serialized BoundOutput, without its spec."""

    name: str
    binary: bool
    classification: int
    placed: bool


class Described(Struct, array_like=True):
    """The model that answered, if the frontend does not know it, and the outputs."""

    model: Model
    outputs: list[WireOutput]

    @classmethod
    def of(cls, head: RequestHead) -> "Described":
        assert isinstance(head.model, Served)
        outputs = [
            WireOutput(each.spec.name, each.binary, each.classification, each.placement is not None)
            for each in head.outputs
        ]
        return cls(Model.of(head.model), outputs)


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


class TraceStart(Struct, array_like=True):
    """Beginning of a trace; `meta` is the metadata of the frame without tracing."""

    meta: bytes
    traceparent: str
    """Header of the caller; empty if it traces nothing."""
    tracestate: str
    stamps: WireStamps


class Verb(Struct, array_like=True):
    """A relayed request without its body: of HTTP, or a gRPC call, which has no method."""

    path: bytes
    method: bytes = b""


class VerbAnswer(Struct, array_like=True):
    """Status of a relayed request; the payload is the body or message."""

    status: int
    text: bytes
    """Headers of HTTP, or the message of a gRPC status."""


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
