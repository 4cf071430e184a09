"""The methods of the gRPC API: each extension of the protocol brings its own."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import DecodeError

from tpx.errors import InvalidRequest, TpxError
from tpx.protocol import messages
from tpx.protocol.grpc.server_call import Method, ServerCall
from tpx.protocol.tensors import Buffer
from tpx.serving.frontends.access import Category
from tpx.serving.frontends.grpc_answers import answer, fail, fail_internally

SERVICE = "/inference.GRPCInferenceService/"

Verb = Callable[[Any], Any]
"""Takes a request message, returns a response message, raises TpxError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rpc:
    """A method, and the part of the API it belongs to."""

    category: Category
    method: Method


def rpc(name: str, category: Category, verb: Verb) -> Rpc:
    """A unary method of the inference service."""
    return Rpc(category=category, method=unary(SERVICE + name, f"{name}Request", verb))


def unary(path: str, request_type: str, verb: Verb) -> Method:
    """A unary method around a verb: decode, call, encode, and map errors."""
    request_class = getattr(messages, request_type)

    def serve(call: ServerCall, message: Buffer) -> None:
        try:
            answer(call, verb(request_class.FromString(bytes(message))))
        except DecodeError:
            fail(call, InvalidRequest(f"Unable to parse request: it is not a {request_type}"))
        except TpxError as exc:
            fail(call, exc)
        except Exception as exc:  # noqa: BLE001 (one request's boundary)
            fail_internally(call, path, exc)

    return Method(path, unary=serve)
