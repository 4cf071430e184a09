"""The server and model that requests go to, and the table of clients by service and transport."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Literal, cast

from tpx.errors import UsageError
from tpx.options import Options, flag_of, given, nearest, option, refuse
from tpx.perf.clients.base import Client, Control
from tpx.perf.clients.model import ModelKey
from tpx.perf.clients.tls import TlsSettings
from tpx.perf.clients.transport import LibraryTransport
from tpx.perf.clients.wire import WireSpec
from tpx.perf.settings import Header

Protocol = Literal["http", "grpc"]
ServiceKind = Literal["triton", "inprocess", "openai", "torchserve", "tfserving", "dynamic_grpc"]

SERVICES: Mapping[ServiceKind, Mapping[Protocol, str]] = {
    "triton": {"http": "tpx.perf.clients.http", "grpc": "tpx.perf.clients.grpc"},
    "openai": {"http": "tpx.perf.clients.openai"},
    "torchserve": {"http": "tpx.perf.clients.torchserve"},
    "tfserving": {"grpc": "tpx.perf.clients.tfserving"},
    "dynamic_grpc": {"grpc": "tpx.perf.clients.dynamic_grpc"},
}
"""Modules with a function `connect(endpoint) -> Connections`, by service kind and protocol; imported on
first use.

The in-process engine is not listed: the caller of `connect` names its module.
"""

DEFAULT_PORTS: Mapping[ServiceKind, Mapping[Protocol, int]] = {
    "triton": {"http": 8000, "grpc": 8001},
    "openai": {"http": 8000},
    "torchserve": {"http": 8080},
    "tfserving": {"grpc": 8500},
    "dynamic_grpc": {"grpc": 8001},
}


KINDS: dict[str, ServiceKind] = {
    "triton": "triton",
    "tfserving": "tfserving",
    "torchserve": "torchserve",
    "triton_c_api": "inprocess",
    "openai": "openai",
    "dynamic_grpc": "dynamic_grpc",
    "inprocess": "inprocess",
    "local": "inprocess",
}
"""Service kinds by the names that users may write."""


def parse_kind(text: str) -> ServiceKind:
    """Return the service kind for any of its names."""
    if text.lower() not in KINDS:
        known = ", ".join(f"'{name}'" for name in KINDS) + nearest(text.lower(), KINDS)
        refuse("--service-kind", f"Unsupported type provided: '{text}'. The available options are {known}.")
    return KINDS[text.lower()]


def parse_method(text: str) -> str:
    """Parse the full name of a gRPC method."""
    service, slash, method = text.partition("/")
    if not (service and slash and method) or "/" in method:
        raise UsageError(
            f"Received gRPC method name '{text}' that does not match the format: "
            "<package>.<service>/<method>."
        )
    return text


def parse_composing(text: str) -> tuple[ModelKey, ...]:
    """Parse `a:3,b`: models with optional versions."""
    keys = []
    for part in text.replace(" ", "").split(","):
        name, colon, version = part.partition(":")
        if not name or (colon and not version.isdecimal()):
            refuse("--bls-composing-models", f"The value '{text}' does not match <name>[:<version>],...")
        keys.append(ModelKey(name, version))
    return tuple(dict.fromkeys(keys))


class ServiceSpec(Options):
    """The service at the other end of the connections."""

    service_kind: ServiceKind = option(
        "triton",
        "triton (any v2 server), inprocess (the engine in this process, no network; also triton_c_api or "
        "local), openai, torchserve, tfserving, or dynamic_grpc (any gRPC method)",
        metavar="KIND",
        parse=parse_kind,
        common=True,
    )
    endpoint: str = option("", "openai: path of the service, such as v1/chat/completions", metavar="PATH")
    model_signature_name: str = option("serving_default", "tfserving: signature of the model", metavar="NAME")
    grpc_method: str = option(
        "", "dynamic_grpc: method to call", metavar="PACKAGE.SERVICE/METHOD", parse=parse_method
    )
    grpc_descriptor_set: Path | None = option(
        None,
        "dynamic_grpc: types of the method, as protoc --descriptor_set_out --include_imports writes them "
        "(default: the server's reflection)",
        metavar="FILE",
    )
    model_repository: tuple[Path, ...] = option(
        (), "inprocess: directory of the models (repeatable)", metavar="DIR"
    )
    bls_composing_models: tuple[ModelKey, ...] = option(
        (),
        "models called by the model, whose statistics are reported too",
        metavar="NAME[:VERSION],...",
        parse=parse_composing,
    )

    def __post_init__(self) -> None:
        kind = self.service_kind
        if kind == "openai" and not self.endpoint:
            raise UsageError(
                'Must supply --endpoint for OpenAI service kind. For example, "v1/chat/completions".'
            )
        if kind == "inprocess" and not self.model_repository:
            raise UsageError("--model-repository should not be empty when using service-kind=triton_c_api.")
        if kind == "dynamic_grpc" and not self.grpc_method:
            raise UsageError("--service-kind dynamic_grpc: give --grpc-method PACKAGE.SERVICE/METHOD")
        owners = {
            "endpoint": "openai",
            "model_repository": "inprocess",
            "model_signature_name": "tfserving",
            "grpc_method": "dynamic_grpc",
            "grpc_descriptor_set": "dynamic_grpc",
        }
        for name, owner in owners.items():
            if name in given(self) and kind != owner:
                raise UsageError(f"{flag_of(name)} applies to --service-kind {owner} only, not to {kind}")
        if self.bls_composing_models and kind not in ("triton", "inprocess"):
            raise UsageError(f"--bls-composing-models: --service-kind {kind} has no statistics of models")

    @property
    def protocols(self) -> str:
        """Protocols that this kind supports; empty for the in-process engine."""
        return ", ".join(SERVICES.get(self.service_kind, ()))

    @property
    def path(self) -> str:
        """OpenAI: the URL's path, such as v1/chat/completions."""
        return self.endpoint.strip("/")


PLAIN_WIRE = WireSpec()
TRITON = ServiceSpec()


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A model on a server, and the headers that every request to it carries."""

    host: str
    port: int
    model: ModelKey
    headers: tuple[Header, ...] = ()
    tls: TlsSettings | None = None
    """None connects without TLS."""
    wire: WireSpec = PLAIN_WIRE
    service: ServiceSpec = TRITON
    sessions: bool = False
    """OpenAI: True if requests are turns of conversations."""
    library: LibraryTransport | None = None
    """None is tpx's own transport."""
    at_once: bool = False
    """True if a write reaches the kernel before it returns, not at the end of the event loop's iteration."""


@dataclass(frozen=True, slots=True)
class Connections:
    """The client and the control of an endpoint; neither connects before its first use."""

    client: Client
    control: Control


def connect(protocol: Protocol, endpoint: Endpoint, in_process: str = "") -> Connections:
    """Return the connections of an endpoint; `in_process` is the module of the in-process engine."""
    kind = endpoint.service.service_kind
    module = in_process if kind == "inprocess" else SERVICES[kind][protocol]
    if not module:
        raise UsageError("--service-kind inprocess is available on the command line only")
    return cast("Connections", import_module(module).connect(endpoint))


@dataclass(frozen=True, slots=True)
class Address:
    """Host and port of a service."""

    host: str
    port: int
    secure: bool = False
    """True if the URL asks for TLS."""


_SCHEMES = {"http": False, "https": True, "grpc": False, "grpcs": True}


def parse_address(url: str, protocol: Protocol, kind: ServiceKind = "triton") -> Address:
    """Parse `host:port`, `host`, or `[ipv6]:port`, with or without a scheme.

    Raises UsageError for anything else.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        scheme, rest = "http", url
    if scheme not in _SCHEMES or (scheme.startswith("grpc") and protocol != "grpc"):
        raise UsageError(
            f"-u {url}: '{scheme}://' does not go with -i {protocol}; give host:port, or with TLS "
            "https://host:port"
        )
    address = rest.rstrip("/")
    host, colon, port = address.rpartition(":")
    if not colon or address.endswith("]"):
        host, port = address, str(DEFAULT_PORTS.get(kind, {}).get(protocol, 8000))
    host = host.removeprefix("[").removesuffix("]")
    if not host or "/" in host or not port.isdigit() or not 0 < int(port) < 65536:
        raise UsageError(f"-u {url}: expected host:port, with a port from 1 to 65535 and nothing after it")
    return Address(host, int(port), _SCHEMES[scheme])
