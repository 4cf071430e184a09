"""Any method of any gRPC service: unary, or with streams in either direction.

A request is one call: all messages of a step of the input data are sent, our half of the call ends, and the
request ends with the call. perf_analyzer's dynamic_grpc does the same, for bidirectional streams of
serialized messages (client_backend/dynamic_grpc). The types of the method come from a descriptor set or
from the server's reflection; without them, only serialized messages can be sent.
"""

import importlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from time import perf_counter_ns

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.json_format import ParseDict, ParseError
from google.protobuf.message import DecodeError, Message

from tpx.errors import Code, MeasurementError, ResponseError, UsageError
from tpx.options import nearest
from tpx.perf.clients.base import NO_USAGE, PLAIN, Failure, OnResponse, RequestFields, Template
from tpx.perf.clients.endpoint import Connections, Endpoint
from tpx.perf.clients.grpc import GrpcSlots, Send, call_failure, header_block
from tpx.perf.clients.grpc_control import GrpcCaller, metadata
from tpx.perf.clients.model import (
    ModelDescription,
    ModelKey,
    ServerDescription,
    Snapshot,
    TensorDescription,
)
from tpx.perf.clients.transport import GrpcCarrier
from tpx.protocol import messages
from tpx.protocol.grpc.client_call import GrpcResponse, PreparedCall
from tpx.protocol.grpc.framing import frame_message
from tpx.protocol.grpc.status import Status
from tpx.protocol.json_values import parse_json
from tpx.protocol.messages import all_classes
from tpx.protocol.tensors import Buffer, Tensor, decode_bytes

INPUT = TensorDescription(name="message_generator", datatype="BYTES", shape=(-1,))
"""The messages of a call, each as JSON or serialized; the name is perf_analyzer's."""
REFLECTION = ("grpc.reflection.v1", "grpc.reflection.v1alpha")
_WELL_KNOWN = "google/protobuf/"


def connect(endpoint: Endpoint) -> Connections:
    """Return the connections to a service, of which one method is called."""
    method = ServiceMethod(endpoint)
    return Connections(DynamicGrpcClient(endpoint, method), DynamicGrpcControl(method))


class ServiceMethod:
    """The method to call, and its types once they are known."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.name = endpoint.service.grpc_method
        self.path = f"/{self.name}"
        self.several_responses = endpoint.wire.streaming
        """True if the server may send several messages; without types, only the user knows."""
        self._pool: descriptor_pool.DescriptorPool | None = None
        self._request: type[Message] | None = None
        self._kept: list[type[Message]] = []
        if endpoint.service.grpc_descriptor_set is not None:
            self.learn(_read_descriptor_set(endpoint))

    @property
    def known(self) -> bool:
        return self._request is not None

    def learn(self, files: Mapping[str, descriptor_pb2.FileDescriptorProto]) -> None:
        """Take the method's types from files. Raises UsageError if they do not have it."""
        self._pool = _build_pool(files)
        method = self._find(self._pool)
        if self.endpoint.wire.streaming and not method.server_streaming:
            raise UsageError(f"--streaming: {self.name} has one response")
        self.several_responses = method.server_streaming
        self._kept = [*all_classes([method.input_type])]
        self._request = message_factory.GetMessageClass(method.input_type)

    def serialized(self, message: bytes) -> bytes:
        """Return a message of the input data, JSON or serialized, in serialized form. Raises UsageError."""
        # no serialized message begins like a JSON object: its first field would be a group
        if not message.startswith(b"{"):
            return self._checked(message)
        if self._request is None:
            raise UsageError(
                f"{self.name}: messages in JSON need its types, and the server has no reflection: give "
                "--grpc-descriptor-set"
            )
        try:
            made = ParseDict(parse_json(message), self._request(), descriptor_pool=self._pool)
            return bytes(made.SerializeToString(deterministic=True))
        except (ParseError, ValueError, TypeError) as exc:
            raise UsageError(f"{self.name}: {message[:200].decode('utf-8', 'replace')}: {exc}") from exc

    def _checked(self, message: bytes) -> bytes:
        try:
            if self._request is not None:
                self._request.FromString(message)
        except DecodeError as exc:
            raise UsageError(f"{self.name}: {len(message)} bytes are no message of its type: {exc}") from exc
        return message

    def _find(self, pool: descriptor_pool.DescriptorPool) -> MethodDescriptor:
        service, _, name = self.name.partition("/")
        try:
            methods = {method.name: method for method in pool.FindServiceByName(service).methods}
        except KeyError as exc:
            raise UsageError(f"--grpc-method {self.name}: there is no service {service}") from exc
        if name not in methods:
            has = ", ".join(methods)
            raise UsageError(
                f"--grpc-method {self.name}: {service} has no method {name}{nearest(name, methods)} "
                f"(has: {has})"
            )
        return methods[name]


def _read_descriptor_set(endpoint: Endpoint) -> Mapping[str, descriptor_pb2.FileDescriptorProto]:
    path = endpoint.service.grpc_descriptor_set
    assert path is not None
    try:
        files = descriptor_pb2.FileDescriptorSet.FromString(path.read_bytes()).file
    except OSError as exc:
        raise UsageError(f"--grpc-descriptor-set {path}: {exc.strerror}") from exc
    except DecodeError as exc:
        raise UsageError(
            f"--grpc-descriptor-set {path}: it is not a descriptor set, as protoc --descriptor_set_out "
            "--include_imports writes it"
        ) from exc
    return {file.name: file for file in files}


def _build_pool(
    files: Mapping[str, descriptor_pb2.FileDescriptorProto],
) -> descriptor_pool.DescriptorPool:
    """Return a private pool of files, each after its imports. Raises UsageError if one is missing."""
    pool, added = descriptor_pool.DescriptorPool(), set[str]()

    def add(name: str, importer: str) -> None:
        if name in added:
            return
        added.add(name)
        file = files.get(name) or _well_known(name)
        if file is None:
            raise UsageError(
                f"the descriptor set lacks {name}, which {importer} imports: protoc --include_imports adds it"
            )
        for dependency in file.dependency:
            add(dependency, name)
        pool.Add(file)

    for name in files:
        add(name, "")
    return pool


def _well_known(name: str) -> descriptor_pb2.FileDescriptorProto | None:
    """Return a file that is part of protobuf itself, such as timestamp.proto."""
    if not name.startswith(_WELL_KNOWN):
        return None
    try:
        module = importlib.import_module(name.removesuffix(".proto").replace("/", ".") + "_pb2")
    except ImportError:
        return None
    return descriptor_pb2.FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)


class DynamicCall:
    """The encoded messages of one call."""

    __slots__ = ("framed", "prepared")

    def __init__(self, framed: list[bytes], prepared: PreparedCall | None) -> None:
        self.framed = framed
        self.prepared = prepared
        """The whole call, if it has one message in each direction."""


class DynamicAnswer:
    """Implements StreamedResponse; `bodies` are the serialized messages."""

    __slots__ = ("arrivals", "bodies", "end_ns", "first_byte_ns", "message", "status", "units", "usage")

    def __init__(self) -> None:
        self.status = int(Status.OK)
        self.message = ""
        self.first_byte_ns = self.end_ns = 0
        self.arrivals: list[int] = []
        self.bodies: list[Buffer] = []
        self.units = 0
        self.usage = NO_USAGE

    def take(self, data: Buffer) -> None:
        """Record a message."""
        self.end_ns = perf_counter_ns()
        self.first_byte_ns = self.first_byte_ns or self.end_ns
        self.arrivals.append(self.end_ns)
        self.bodies.append(data)

    def finish(self, response: GrpcResponse) -> None:
        """Record the end of the call; a call without a response ends with it."""
        self.status, self.message = int(response.status), response.message
        if self.status != Status.OK or not self.arrivals:
            self.end_ns = perf_counter_ns()
            self.first_byte_ns = self.first_byte_ns or self.end_ns


class DynamicGrpcClient(GrpcSlots):
    """Implements Client."""

    streams = True

    def __init__(self, endpoint: Endpoint, method: ServiceMethod) -> None:
        super().__init__(endpoint)
        self._method = method
        self._encoding = endpoint.wire.compression

    async def prepare(self, tensors: Sequence[Tensor], fields: RequestFields = PLAIN) -> DynamicCall:
        if fields.sequence or fields.shared_inputs or fields.outputs:
            raise UsageError(
                "--service-kind dynamic_grpc supports neither sequences nor outputs nor shared memory"
            )
        (tensor,) = tensors
        raw = decode_bytes(tensor.data, int(tensor.shape[0]))
        framed = [frame_message(self._method.serialized(each), self._encoding) for each in raw]
        if len(framed) != 1 or self._method.several_responses:
            return DynamicCall(framed, None)
        block = header_block(self.endpoint, self._method.path)
        return DynamicCall(framed, PreparedCall(block, framed[0]))

    async def template(self, tensors: Sequence[Tensor], fields: RequestFields) -> Template:  # noqa: ARG002
        raise UsageError("--service-kind dynamic_grpc does not support sequences")

    def failure(self, response: GrpcResponse) -> Failure:
        return call_failure(response)

    def send_on(self, carrier: GrpcCarrier) -> Send:
        path, pairs, encoding = self._method.path, metadata(self.endpoint), self._encoding

        def send(call: DynamicCall, on_response: OnResponse) -> int:
            answer = DynamicAnswer()

            def on_end(response: GrpcResponse) -> None:
                answer.finish(response)
                on_response(answer)

            if call.prepared is not None:
                return carrier.call(call.prepared, _unary(answer, on_response))
            streamed = carrier.open(path, answer.take, on_end, pairs, encoding=encoding)
            for message in call.framed:
                streamed.send_framed(message)
            streamed.half_close()
            return streamed.id

        return send


def _unary(answer: DynamicAnswer, on_response: OnResponse) -> Callable[[GrpcResponse], None]:
    def on_end(response: GrpcResponse) -> None:
        answer.status, answer.message = int(response.status), response.message
        answer.first_byte_ns, answer.end_ns = response.first_byte_ns, response.end_ns
        if answer.status == Status.OK:
            answer.arrivals.append(answer.end_ns)
            answer.bodies.append(response.data)
        on_response(answer)

    return on_end


class DynamicGrpcControl(GrpcCaller):
    """Implements Control; the model is the method."""

    def __init__(self, method: ServiceMethod) -> None:
        super().__init__(method.endpoint)
        self._method = method

    async def server(self) -> ServerDescription:
        await self.connected()
        return ServerDescription(name="dynamic_grpc", version="", extensions=frozenset())

    async def model(self, model: ModelKey) -> ModelDescription:
        """Return the method's input, with its types learnt by reflection unless a file has them."""
        if not self._method.known:
            service = self._method.name.partition("/")[0]
            files = await self._reflect(service)
            if files:
                self._method.learn(files)
        return ModelDescription(
            name=model.name or self._method.name, platform="dynamic_grpc", inputs=(INPUT,)
        )

    async def statistics(self, model: ModelKey) -> Snapshot:  # noqa: ARG002 (there are none)
        return {}

    async def set_trace(self, settings: Mapping[str, Sequence[str]]) -> None:  # noqa: ARG002
        raise MeasurementError("a service of kind dynamic_grpc has no trace settings")

    async def _reflect(self, service: str) -> Mapping[str, descriptor_pb2.FileDescriptorProto]:
        """Return the files that the server's reflection has of a service; none without reflection."""
        for package in REFLECTION:
            with suppress(_NoReflection):
                return await self._read_files(package, service)
        return {}

    async def _read_files(
        self, package: str, service: str
    ) -> Mapping[str, descriptor_pb2.FileDescriptorProto]:
        """Return the file of a service, and all that it imports. Raises UsageError for an unknown service."""
        files: dict[str, descriptor_pb2.FileDescriptorProto] = {}
        wanted = [messages.ServerReflectionRequest(file_containing_symbol=service)]
        while wanted:
            for data in await self._ask(package, wanted.pop()):
                file = descriptor_pb2.FileDescriptorProto.FromString(data)
                files[file.name] = file
                wanted += (
                    messages.ServerReflectionRequest(file_by_filename=name)
                    for name in file.dependency
                    if name not in files
                )
        return files

    async def _ask(self, package: str, request: Message) -> Sequence[bytes]:
        # a stream that carries one message each way is a unary call
        connection = await self.connected()
        path = f"/{package}.ServerReflection/ServerReflectionInfo"
        try:
            data = await connection.unary(path, request.SerializeToString(), metadata(self.endpoint))
        except ResponseError as exc:
            if exc.code in (Code.UNSUPPORTED, Code.NOT_FOUND):
                raise _NoReflection from exc
            raise MeasurementError(f"failed to ask the server's reflection: {exc.message}") from exc
        answer = messages.ServerReflectionResponse.FromString(bytes(data))
        if answer.HasField("error_response"):
            raise UsageError(
                f"--grpc-method {self._method.name}: the server's reflection says: "
                f"{answer.error_response.error_message}"
            )
        return list(answer.file_descriptor_response.file_descriptor_proto)


class _NoReflection(Exception):
    """The server does not have this version of the reflection service."""
