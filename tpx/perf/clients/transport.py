"""The transports of the clients: tpx's own connections, or those of well-known libraries, httpx and grpcio.

Encoders, streams and controls are the same on both; a library's module is imported on first use.
"""

import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Literal, Protocol

from tpx.errors import UsageError, WireError
from tpx.perf.clients.proxies import HttpProxy, environment_proxy
from tpx.perf.clients.tls import TlsSettings, tls_context
from tpx.protocol.http1.client import HttpCarrier, HttpClientConnection, HttpConnector
from tpx.protocol.tensors import Buffer
from tpx.protocol.write_buffer import WriteCoalescing

if TYPE_CHECKING:
    from tpx.protocol.grpc.client_call import GrpcResponse, PreparedCall

ClientName = Literal["tpx", "library"]
LIBRARIES = {"http": "httpx", "grpc": "grpcio"}
"""Distributions of the libraries, by protocol."""
_MODULES = {"http": "httpx", "grpc": "grpc"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryTransport:
    """Requests are sent by httpx or grpcio."""

    proxy: HttpProxy | None = None
    http2: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRoute:
    """The transport to a server, and a notice about it for the user."""

    library: LibraryTransport | None = None
    """None is tpx's own transport."""
    notice: str = ""

    @property
    def proxy(self) -> HttpProxy | None:
        return self.library.proxy if self.library else None

    def client(self, protocol: str) -> str:
        """Return the name of the client for reports: tpx, or a library with its version."""
        if self.library is None:
            return "tpx"
        from importlib.metadata import version  # late: only a library's name has one

        name = LIBRARIES[protocol]
        return f"{name} {version(name)}"


DIRECT = ClientRoute()


class Destination(Protocol):
    """The part of an Endpoint that a transport needs."""

    @property
    def host(self) -> str: ...
    @property
    def port(self) -> int: ...
    @property
    def tls(self) -> TlsSettings | None: ...
    @property
    def library(self) -> LibraryTransport | None: ...
    @property
    def at_once(self) -> bool: ...


def choose_route(
    host: str,
    port: int,
    scheme: str,
    *,
    client: ClientName | None,
    proxy: HttpProxy | None,
    http2: bool = False,
) -> ClientRoute:
    """Return the transport for requests of a scheme (http, https or grpc).

    The library is used where the user asks for it, or for what only it has: a proxy, also one that the
    environment names, and HTTP/2. Raises UsageError if a proxy cannot carry the scheme.
    """
    protocol = "grpc" if scheme == "grpc" else "http"
    name = LIBRARIES[protocol]
    found, reason = proxy, f"--proxy {proxy}"
    if proxy is None:
        named = environment_proxy(host, port, scheme)
        if named is not None and client == "tpx":
            return ClientRoute(notice=f"{named.variable} is not used: --client tpx connects directly")
        if named is not None and client is None and find_spec(_MODULES[protocol]) is None:
            return ClientRoute(
                notice=f"{named.variable} is not used, as {name} is not installed (pip install "
                "'tpx[clients]'): requests go directly to the server"
            )
        found, reason = (named.proxy, f"{named.variable}={named.proxy}") if named else (None, "")
    if found is not None and scheme == "grpc" and found.scheme != "http":
        direct = "" if proxy else "; --client tpx connects directly"
        raise UsageError(f"{reason}: grpcio reaches proxies over http:// only{direct}")
    if found is None and client != "library" and not http2:
        return DIRECT
    notice = f"requests go through a proxy, sent by {name} ({reason})" if found else ""
    return ClientRoute(library=LibraryTransport(proxy=found, http2=http2), notice=notice)


class HttpDialer(Protocol):
    """Opens connections to one server over HTTP."""

    async def connect(self, timeout_s: float = 10.0) -> HttpCarrier:
        """Open a connection. Raises WireError naming the address."""


class GrpcCarrier(Protocol):
    """A connection that makes calls; see GrpcClientConnection."""

    closing: bool

    @property
    def in_flight(self) -> int: ...
    def call(self, prepared: "PreparedCall", on_response: "Callable[[GrpcResponse], None]") -> int: ...
    def open(
        self,
        path: str,
        on_message: Callable[[Buffer], None],
        on_end: "Callable[[GrpcResponse], None]",
        metadata: Mapping[str, str | bytes] | None = None,
        *,
        encoding: str = "",
    ) -> "StreamCall": ...
    async def unary(
        self,
        path: str,
        message: Buffer,
        metadata: Mapping[str, str | bytes] | None = None,
        *,
        timeout_s: float = 30.0,
    ) -> Buffer: ...
    def cancel(self, stream_id: int) -> None: ...
    def close(self) -> None: ...


class StreamCall(Protocol):
    """A streaming call in flight; see ClientCall."""

    id: int

    def send_framed(self, framed: Buffer) -> None: ...
    def half_close(self) -> None: ...
    def cancel(self) -> None: ...


def http_dialer(
    to: Destination, kind: type[HttpClientConnection] = HttpClientConnection, opening_path: str = ""
) -> HttpDialer:
    """Return a dialer of the destination.

    `kind` is the class of tpx's own connections; httpx, which connects only to send a request, opens its
    own by a GET of `opening_path`, if there is one.
    """
    tls = tls_context(to.tls)
    if to.library is None:
        return HttpConnector(to.host, to.port, tls=tls, kind=kind, at_once=to.at_once)
    module = _library_module("http")
    dialer: HttpDialer = module.HttpxDialer(to.host, to.port, to.library, tls, opening_path)
    return dialer


async def connect_grpc(
    to: Destination, tls: ssl.SSLContext | None, coalescing: WriteCoalescing | None = None
) -> GrpcCarrier:
    """Return a connection to a gRPC server; `tls` is made of its settings, `coalescing` belongs to the
    connections that send in turns. Raises WireError naming the address.
    """
    if to.library is None:
        from tpx.protocol.grpc import client as own_grpc  # late: requests over HTTP do without it

        connection = await own_grpc.connect(to.host, to.port, tls=tls)
        if coalescing is not None:
            connection.http2.transport.coalesce_with(coalescing)
        if to.at_once:
            connection.write_at_once()
        return connection
    module = _library_module("grpc")
    carrier: GrpcCarrier = await module.connect(to.host, to.port, to.library, to.tls)
    return carrier


def _library_module(protocol: str) -> ModuleType:
    """Import the module of a library's transport. Raises UsageError if the library is missing."""
    try:
        return import_module(f"tpx.perf.clients.{_MODULES[protocol]}_library")
    except ImportError as exc:
        raise UsageError(
            f"the library client needs {LIBRARIES[protocol]}: pip install 'tpx[clients]' ({exc})"
        ) from exc


def through(proxy: HttpProxy | None) -> str:
    """Return the part of an error that names the proxy on the way."""
    return f" through the proxy {proxy.address}" if proxy else ""


def unreachable(host: str, port: int, proxy: HttpProxy | None, reason: str) -> WireError:
    """Return the error of a server that cannot be reached."""
    return WireError(f"cannot connect to {host}:{port}{through(proxy)}: {reason}")
