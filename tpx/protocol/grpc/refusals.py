"""Methods that refuse every call: unknown ones, and those that a client may not use."""

from collections.abc import Mapping, Sequence

from tpx.protocol.grpc.metadata import CallHead
from tpx.protocol.grpc.server_call import MessageSink, Method, ServerCall
from tpx.protocol.grpc.status import Status
from tpx.protocol.tensors import Buffer


def methods_by_path(methods: Sequence[Method]) -> Mapping[bytes, Method]:
    """The methods as a connection looks them up."""
    return {method.path.encode(): method for method in methods}


def refusing(path: str, status: Status, message: str) -> Method:
    """A method that ends every call at once, so that no streaming client waits for it in vain."""

    def refuse(call: ServerCall) -> MessageSink:
        call.fail(status, message)
        return _Ignore()

    return Method(path, stream=refuse)


class _Ignore:
    """What a client still sends to a call that has been answered."""

    def message(self, message: Buffer) -> None: ...
    def half_closed(self) -> None: ...
    def gone(self) -> None: ...


def unknown_method(head: CallHead) -> Method:
    """A method that answers UNIMPLEMENTED."""
    path = head.path.decode("latin-1")
    return refusing(path, Status.UNIMPLEMENTED, f"unknown method {path}")
