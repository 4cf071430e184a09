"""gRPC server reflection, for clients without .proto files (grpcurl, Postman, grpcio's reflection
client).

The two versions of the service, v1 and v1alpha, share the same messages.
"""

from collections.abc import Iterable

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.message import DecodeError

from tpx.errors import InvalidRequest, NotFound, RequestError
from tpx.protocol import messages
from tpx.protocol.grpc.server_call import Method, ServerCall
from tpx.protocol.grpc.status import from_code
from tpx.protocol.tensors import Buffer
from tpx.serving.frontends.grpc_verbs import Rpc, fail, fail_internally

_SERVICES = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")


def reflection_rpcs(others: Iterable[Rpc]) -> list[Rpc]:
    """Return ServerReflectionInfo for the services of the other methods and for itself."""
    services = sorted({*(rpc.method.path.split("/")[1] for rpc in others), *_SERVICES})

    def open_stream(call: ServerCall) -> _Questions:
        return _Questions(call, services)

    paths = [f"/{service}/ServerReflectionInfo" for service in _SERVICES]
    return [Rpc(category="metadata", method=Method(path, stream=open_stream)) for path in paths]


class _Questions:
    """Sink of one reflection stream, which answers each request immediately."""

    def __init__(self, call: ServerCall, services: list[str]) -> None:
        self._call = call
        self._services = services

    def message(self, message: Buffer) -> None:
        """Handle one request. Every error is answered; nothing is raised."""
        try:
            request = messages.ServerReflectionRequest.FromString(bytes(message))
        except DecodeError:
            fail(self._call, InvalidRequest("Unable to parse request: it is not a ServerReflectionRequest"))
            return
        try:
            data = _make_response(request, self._services).SerializeToString()
        except Exception as exc:  # noqa: BLE001 (one request's boundary)
            fail_internally(self._call, exc, "ServerReflectionInfo")
            return
        self._call.send((data,), len(data))

    def half_closed(self) -> None:
        self._call.finish()

    def gone(self) -> None: ...


def _make_response(
    request: messages.ServerReflectionRequest, services: list[str]
) -> messages.ServerReflectionResponse:
    """Return a ServerReflectionResponse. A failed lookup is reported in it and does not end the stream."""
    response = messages.ServerReflectionResponse(valid_host=request.host, original_request=request)
    question = request.WhichOneof("message_request")
    try:
        if question == "list_services":
            for service in services:
                response.list_services_response.service.add(name=service)
        elif question == "file_by_filename":
            _add_files(response, messages.file_named(request.file_by_filename))
        elif question == "file_containing_symbol":
            _add_files(response, messages.file_of_symbol(request.file_containing_symbol))
        elif question == "file_containing_extension":
            extension = request.file_containing_extension
            raise NotFound(
                f"'{extension.containing_type}' has no extension {extension.extension_number}: the v2 "
                "protocol has none"
            )
        elif question == "all_extension_numbers_of_type":
            name = request.all_extension_numbers_of_type
            messages.file_of_symbol(name)
            response.all_extension_numbers_response.base_type_name = name
        else:
            raise InvalidRequest("the request asks nothing: set one member of 'message_request'")
    except RequestError as exc:
        response.error_response.error_code = from_code(exc.code).value
        response.error_response.error_message = exc.message
    return response


def _add_files(response: messages.ServerReflectionResponse, file: FileDescriptor) -> None:
    """Add a file and everything it imports, each once."""
    waiting, seen = [file], {file.name}
    while waiting:
        file = waiting.pop()
        response.file_descriptor_response.file_descriptor_proto.append(file.serialized_pb)
        for imported in file.dependencies:
            if imported.name not in seen:
                seen.add(imported.name)
                waiting.append(imported)
