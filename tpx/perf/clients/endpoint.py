"""Where requests go, and which transport carries them there."""

from dataclasses import dataclass
from importlib import import_module
from typing import cast

from tpx.errors import UsageError
from tpx.perf.clients.base import Client, Control
from tpx.perf.clients.model import ModelKey
from tpx.perf.clients.tls import TlsSettings
from tpx.perf.settings import Header

DEFAULT_PORTS = {"http": 8000, "grpc": 8001}

TRANSPORTS = {"http": "tpx.perf.clients.http", "grpc": "tpx.perf.clients.grpc"}
"""Modules with a function `connect(endpoint) -> Connections`; imported when first used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WireSettings:
    """How requests are put on the wire, where a transport leaves a choice."""

    streaming: bool = False
    """gRPC: over streams; OpenAI: answers in pieces."""
    compression: str = ""
    """Of gRPC messages: gzip or deflate."""
    input_binary: bool = True
    """HTTP: tensors as raw bytes behind the JSON, or in it."""
    output_binary: bool = True


PLAIN_WIRE = WireSettings()


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


@dataclass(frozen=True, slots=True)
class Connections:
    """What a transport opens: nothing is connected before the first use."""

    client: Client
    control: Control


def connect(protocol: str, endpoint: Endpoint) -> Connections:
    """The connections of a protocol of TRANSPORTS to an endpoint."""
    return cast("Connections", import_module(TRANSPORTS[protocol]).connect(endpoint))


def parse_address(url: str, protocol: str) -> tuple[str, int]:
    """Host and port of `host:port`, `host`, or `[ipv6]:port`; the protocol's scheme may stand before it.

    Raises UsageError for anything else.
    """
    scheme, separator, rest = url.partition("://")
    if separator and scheme not in ("http", protocol):
        raise UsageError(f"-u {url}: tpx perf -i {protocol} cannot speak '{scheme}' yet; give host:port")
    address = (rest if separator else url).rstrip("/")
    host, colon, port = address.rpartition(":")
    if not colon or address.endswith("]"):
        host, port = address, str(DEFAULT_PORTS[protocol])
    host = host.removeprefix("[").removesuffix("]")
    if not host or "/" in host or not port.isdigit() or not 0 < int(port) < 65536:
        raise UsageError(f"-u {url}: expected host:port")
    return host, int(port)
