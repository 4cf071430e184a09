"""Where requests go, and which transport carries them there."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Literal, cast

from tpx.errors import UsageError
from tpx.perf.clients.base import Client, Control
from tpx.perf.clients.model import ModelKey
from tpx.perf.clients.tls import TlsSettings
from tpx.perf.settings import Header

Protocol = Literal["http", "grpc"]
ServiceKind = Literal["triton", "inprocess", "openai", "torchserve", "tfserving"]

SERVICES: Mapping[ServiceKind, Mapping[Protocol, str]] = {
    "triton": {"http": "tpx.perf.clients.http", "grpc": "tpx.perf.clients.grpc"},
    "openai": {"http": "tpx.perf.clients.openai"},
    "torchserve": {"http": "tpx.perf.clients.torchserve"},
    "tfserving": {"grpc": "tpx.perf.clients.tfserving"},
}
"""By kind and protocol the module with a function `connect(endpoint) -> Connections`, imported when it is
first used.

The engine in this process is no service of this wing: whoever has one adds it.
"""

DEFAULT_PORTS: Mapping[ServiceKind, Mapping[Protocol, int]] = {
    "triton": {"http": 8000, "grpc": 8001},
    "openai": {"http": 8000},
    "torchserve": {"http": 8080},
    "tfserving": {"grpc": 8500},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WireSettings:
    """How requests are put on the wire, where a transport leaves a choice."""

    streaming: bool = False
    """gRPC: over streams; OpenAI: answers in pieces."""
    stream_per_request: bool = False
    """gRPC: a stream carries one request, and ends with the last response to it."""
    compression: str = ""
    """Of gRPC messages: gzip or deflate."""
    input_binary: bool = True
    """HTTP: tensors as raw bytes behind the JSON, or in it."""
    output_binary: bool = True
    at_once: bool = False
    """A write reaches the kernel before it returns, not at the end of the loop's turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSettings:
    """What is at the other end, and what only some kinds of service need to know."""

    kind: ServiceKind = "triton"
    path: str = ""
    """OpenAI: what follows host:port, such as v1/chat/completions."""
    sessions: bool = False
    """OpenAI: whether requests are the turns of conversations."""
    signature: str = "serving_default"
    """TensorFlow Serving: which of a model's signatures."""
    repositories: tuple[Path, ...] = ()
    """Of the engine in this process."""


PLAIN_WIRE = WireSettings()
TRITON = ServiceSettings()


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A model on a server, and the headers that every request to it carries."""

    host: str
    port: int
    model: ModelKey
    headers: tuple[Header, ...] = ()
    tls: TlsSettings | None = None
    """None speaks plainly."""
    wire: WireSettings = PLAIN_WIRE
    service: ServiceSettings = TRITON


@dataclass(frozen=True, slots=True)
class Connections:
    """What a transport opens: nothing is connected before the first use."""

    client: Client
    control: Control


def connect(protocol: Protocol, endpoint: Endpoint, in_process: str = "") -> Connections:
    """The connections of an endpoint; `in_process` is the module with the engine in this process."""
    kind = endpoint.service.kind
    module = in_process if kind == "inprocess" else SERVICES[kind][protocol]
    if not module:
        raise UsageError("--service-kind inprocess is there on the command line only")
    return cast("Connections", import_module(module).connect(endpoint))


@dataclass(frozen=True, slots=True)
class Address:
    """Where a service listens."""

    host: str
    port: int
    secure: bool = False
    """Whether the URL asks for TLS."""


_SCHEMES = {"http": False, "https": True, "grpc": False, "grpcs": True}


def parse_address(url: str, protocol: Protocol, kind: ServiceKind = "triton") -> Address:
    """Host and port of `host:port`, `host`, or `[ipv6]:port`, with or without a scheme before it.

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
        raise UsageError(f"-u {url}: expected host:port, a port from 1 to 65535 and nothing behind it")
    return Address(host, int(port), _SCHEMES[scheme])
