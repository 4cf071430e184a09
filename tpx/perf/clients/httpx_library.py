"""HTTP through httpx: connections like HttpClientConnection's, each over a transport of httpx.

The bytes of a request are those of our own encoder; httpx gets their head, parsed once, and their body.
"""

import asyncio
import math
import ssl
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from time import perf_counter_ns

import httpx

from tpx.errors import UsageError, WireError
from tpx.perf.clients.proxies import HttpProxy
from tpx.perf.clients.transport import LibraryTransport, unreachable
from tpx.protocol.http1.client import HttpResponse, encode_request, fetch
from tpx.protocol.http1.head import HttpHead
from tpx.protocol.tensors import Buffer

SLOTS_PER_HTTP2 = 16
"""Connection slots that share a connection over HTTP/2, as over gRPC."""
_MOST_HEADS = 1024
_UNCONNECTED = (httpx.ConnectError, httpx.ConnectTimeout, httpx.ProxyError)
_BROKEN = (httpx.TransportError, OSError)


class LibraryHead:
    """The head of an encoded request in httpx's form."""

    __slots__ = ("headers", "method", "url")

    def __init__(self, head: bytes, base: httpx.URL) -> None:
        first, *lines = head.split(b"\r\n")
        method, path, _ = first.split(b" ")
        self.method = method.decode()
        self.url = base.copy_with(raw_path=path)
        self.headers = [(name, value) for name, _, value in (line.partition(b": ") for line in lines)]


class SharedTransport:
    """A transport of httpx, and the number of connection slots that use it."""

    def __init__(self, transport: httpx.AsyncHTTPTransport) -> None:
        self.transport = transport
        self.users = 0


class HttpxConnection:
    """Implements HttpCarrier: one request in flight at a time."""

    def __init__(self, dialer: "HttpxDialer", shared: SharedTransport, connect_s: float) -> None:
        self.closing = False
        self.unanswered = False
        self.on_lost: Callable[[WireError], None] | None = None
        self.on_piece: Callable[[bytes], None] | None = None
        """Called with each piece of a body."""
        self.told = 0
        """Bytes of the body already passed to `on_piece`."""
        self._dialer = dialer
        self._shared = shared
        self._timeouts = {"timeout": {"connect": connect_s}}
        self._most = math.inf
        self._used = False
        self._exchange: asyncio.Task[None] | None = None

    def send(self, request: Buffer | Sequence[Buffer], on_response: Callable[[HttpResponse], None]) -> None:
        """Send a request made by `encode_request`. Raises WireError if one is in flight, or when closing."""
        if self._exchange is not None or self.closing:
            raise WireError("the connection is closing" if self.closing else "a request is already in flight")
        self._exchange = asyncio.ensure_future(self._run(request, on_response))

    def limit_response(self, size: int) -> None:
        """Refuse responses with larger bodies, which break the connection."""
        self._most = size

    def close(self) -> None:
        """Close the connection; no callback is called afterwards."""
        if not self.closing:
            self.closing = True
            self._dialer.release(self._shared)
        if self._exchange is not None:
            self._exchange.cancel()

    async def _run(
        self, request: Buffer | Sequence[Buffer], on_response: Callable[[HttpResponse], None]
    ) -> None:
        head, content = self._dialer.split(request)
        first_byte_ns = 0
        try:
            response = await self._shared.transport.handle_async_request(
                httpx.Request(
                    head.method, head.url, headers=head.headers, content=content, extensions=self._timeouts
                )
            )
            first_byte_ns = perf_counter_ns()
            try:
                body = await self._read(response)
            finally:
                await response.aclose()
        except _UNCONNECTED as exc:
            self._exchange = None
            self._lose(self._dialer.refused(exc))
            return
        except _BROKEN as exc:
            self._exchange = None
            self.unanswered = self._used and not first_byte_ns
            self._lose(WireError(str(exc) or type(exc).__name__))
            return
        self._exchange, self._used = None, True
        headers = {name.lower(): value for name, value in response.headers.raw}
        on_response(HttpResponse(HttpHead(status=response.status_code, headers=headers), body, first_byte_ns))

    async def _read(self, response: httpx.Response) -> bytes:
        pieces, size = [], 0
        async for piece in response.aiter_raw():
            pieces.append(piece)
            size += len(piece)
            if size > self._most:
                raise httpx.ReadError(f"response larger than {self._most} bytes")
            if self.on_piece is not None:
                self.told += len(piece)
                self.on_piece(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _lose(self, error: WireError) -> None:
        if self.closing:
            return
        self.close()
        if self.on_lost is not None:
            self.on_lost(error)


class HttpxDialer:
    """Implements HttpDialer. Over HTTP/1.1 a connection slot has a transport to itself."""

    def __init__(
        self, host: str, port: int, library: LibraryTransport, tls: ssl.SSLContext | None, opening_path: str
    ) -> None:
        if library.http2 and find_spec("h2") is None:
            raise UsageError("--http2 needs the package h2: pip install 'tpx[clients]'")
        authority = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self.host, self.port, self._proxy = host, port, library.proxy
        self._base = httpx.URL(f"{'https' if tls else 'http'}://{authority}")
        # a proxy that forwards requests may close a connection after each of them
        forwarded = library.proxy is not None and tls is None
        opens = opening_path and not forwarded
        self._opening = encode_request("GET", opening_path, authority, {}) if opens else []
        self._listening = False
        self._http2 = library.http2
        # a context without certificates is never used, and httpx loads them all where it is given none
        self._tls = tls or ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._via = _library_proxy(library.proxy)
        self._heads: dict[bytes, LibraryHead] = {}
        self._open: list[SharedTransport] = []
        self._closing: set[asyncio.Task[None]] = set()

    async def connect(self, timeout_s: float = 10.0) -> HttpxConnection:
        """Open a connection. Raises WireError naming the address.

        httpx connects with a request: with the opening one, whose response does not matter, or else with
        the first of the load.
        """
        if not self._opening and not self._listening:
            await self._check_listening(timeout_s)
        connection = HttpxConnection(self, self._share(), timeout_s)
        if self._opening:
            await fetch(connection, self._opening, timeout_s)
        return connection

    def refused(self, error: Exception) -> WireError:
        """Return the error of a server or proxy that accepts no connection."""
        self._listening = False
        return unreachable(self.host, self.port, self._proxy, str(error) or type(error).__name__)

    async def _check_listening(self, timeout_s: float) -> None:
        """Raise WireError if nothing listens at the server's address, or the proxy's."""
        to = self._proxy or self
        try:
            async with asyncio.timeout(timeout_s):
                _, writer = await asyncio.open_connection(to.host, to.port)
        except TimeoutError as exc:
            raise self.refused(TimeoutError(f"no answer within {timeout_s} s")) from exc
        except OSError as exc:
            raise self.refused(exc) from exc
        writer.close()
        self._listening = True

    def split(self, request: Buffer | Sequence[Buffer]) -> tuple[LibraryHead, bytes]:
        """Return the head of an encoded request, parsed once, and its body."""
        encoded = bytes(request) if isinstance(request, bytes | bytearray | memoryview) else b"".join(request)
        words, _, content = encoded.partition(b"\r\n\r\n")
        head = self._heads.get(words)
        if head is None:
            if len(self._heads) >= _MOST_HEADS:
                self._heads.clear()
            head = self._heads[words] = LibraryHead(words, self._base)
        return head, content

    def release(self, shared: SharedTransport) -> None:
        """Close a transport that no connection slot uses any more."""
        shared.users -= 1
        if not shared.users:
            self._open.remove(shared)
            task = asyncio.ensure_future(shared.transport.aclose())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    def _share(self) -> SharedTransport:
        """Return a transport with room for another connection slot."""
        most = SLOTS_PER_HTTP2 if self._http2 else 1
        shared = next((each for each in self._open if each.users < most), None)
        if shared is None:
            transport = httpx.AsyncHTTPTransport(
                verify=self._tls,
                http1=not self._http2,
                http2=self._http2,
                limits=httpx.Limits(max_connections=1, max_keepalive_connections=1, keepalive_expiry=None),
                proxy=self._via,
                trust_env=False,
            )
            shared = SharedTransport(transport)
            self._open.append(shared)
        shared.users += 1
        return shared


def _library_proxy(proxy: HttpProxy | None) -> httpx.Proxy | None:
    if proxy is None:
        return None
    return httpx.Proxy(proxy.address, auth=(proxy.user, proxy.password) if proxy.user else None)
