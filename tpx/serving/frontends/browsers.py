"""Which pages in a browser may use the HTTP endpoints.

A browser sends what any page asks of it to any address that it reaches, servers on this machine included.
Pages of other sites may not send requests that change something or compute, and a server on this machine
answers only to names of this machine: a page can give its own name any address (DNS rebinding).
"""

from collections.abc import Callable, Sequence
from ipaddress import ip_address

import msgspec
import orjson

from tpx.errors import UsageError
from tpx.protocol.handshakes import is_local
from tpx.protocol.http1.head import HttpHead
from tpx.protocol.http1.request import JSON_TYPE, HttpRequest
from tpx.serving.frontends.http_verbs import HttpRefusal

_SAFE_METHODS = (b"GET", b"HEAD", b"OPTIONS")
_EXPOSED = b"Access-Control-Expose-Headers: Inference-Header-Content-Length\r\n"
_PREFLIGHT_S = 600


class BrowserPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The names by which clients may call an endpoint, and the origins whose pages may use it."""

    hosts: tuple[str, ...] | None = None
    """Names besides localhost and IP addresses, ".example.com" with its subdomains; None: any."""
    origins: tuple[str, ...] = ()
    """Origins of pages, such as https://example.com."""

    @classmethod
    def of(cls, address: str, hosts: Sequence[str], origins: Sequence[str]) -> "BrowserPolicy":
        """Return the policy of an endpoint that listens on `address`; "*" allows any. Raises UsageError."""
        for origin in origins:
            scheme, separator, rest = origin.partition("://")
            if origin not in ("*", "null") and not (scheme and separator and rest and "/" not in rest):
                raise UsageError(
                    f"--allowed-origins: '{origin}' is no origin, such as https://example.com:8443, or '*'"
                )
        names = tuple(host.lower() for host in hosts)
        checked = "*" not in names and (bool(names) or is_local(address))
        return cls(hosts=names if checked else None, origins=tuple(origin.lower() for origin in origins))

    def check(self, head: HttpHead) -> None:
        """Raise HttpRefusal for a request of a page that may not send it. Answers to one that may get the
        headers that the browser wants to see.
        """
        headers = head.headers
        host = headers.get(b"host", b"").decode("latin-1").lower()
        if self.hosts is not None and host and not _is_known(_name_of(host), self.hosts):
            raise HttpRefusal(
                403,
                f"this server is not known by the name '{_name_of(host)}'. "
                "Start the server with '--allowed-hosts' to add names.",
            )
        origin = headers.get(b"origin", b"").decode("latin-1").lower()
        site = headers.get(b"sec-fetch-site", b"").lower()
        if origin and ("*" in self.origins or origin in self.origins):
            head.answer_headers = self._answer_headers(headers[b"origin"])
        elif head.method not in _SAFE_METHODS and site not in (b"same-origin", b"none"):
            if origin and origin.partition("://")[2] == host:
                return
            if origin or site:
                raise HttpRefusal(
                    403,
                    f"pages of {origin or 'other sites'} may not use this server. "
                    "Start the server with '--allowed-origins' to allow them.",
                )

    def _answer_headers(self, origin: bytes) -> bytes:
        if "*" in self.origins:
            return b"Access-Control-Allow-Origin: *\r\n" + _EXPOSED
        return b"Access-Control-Allow-Origin: %b\r\nVary: Origin\r\n%b" % (origin, _EXPOSED)

    def guard(self, serve: Callable[[HttpRequest], None]) -> Callable[[HttpRequest], None]:
        """Return a handler that answers refused requests itself. It remembers the others in their heads."""

        def guarded(request: HttpRequest) -> None:
            head = request.head
            if head.memo is None:
                try:
                    self.check(head)
                except HttpRefusal as exc:
                    request.respond(exc.status, JSON_TYPE, (orjson.dumps({"error": str(exc)}),))
                    return
                head.memo = serve
            serve(request)

        return guarded


def is_preflight(head: HttpHead) -> bool:
    """Return True if a browser asks in advance for a request that an allowed page wants to send."""
    asks = head.method == b"OPTIONS" and b"access-control-request-method" in head.headers
    return asks and bool(head.answer_headers)


def answer_preflight(request: HttpRequest, methods: bytes) -> None:
    """Allow the request that a preflight is about; its headers are not restricted."""
    headers = request.head.headers
    lines = b"Access-Control-Allow-Methods: %b\r\nAccess-Control-Max-Age: %d\r\n" % (methods, _PREFLIGHT_S)
    wanted = headers.get(b"access-control-request-headers")
    if wanted:
        lines += b"Access-Control-Allow-Headers: %b\r\n" % wanted
    if headers.get(b"access-control-request-private-network") == b"true":
        lines += b"Access-Control-Allow-Private-Network: true\r\n"
    request.respond(200, lines)


def _name_of(host: str) -> str:
    """Return the name or address in a Host header, without the port."""
    name = host[: host.find("]") + 1] if host.startswith("[") else host.partition(":")[0]
    return name.removesuffix(".")


def _is_known(name: str, hosts: tuple[str, ...]) -> bool:
    if name == "localhost" or name.endswith(".localhost") or name in hosts:
        return True
    if any(host.startswith(".") and ("." + name).endswith(host) for host in hosts):
        return True
    try:
        ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True  # a page that was loaded from an address has that address as its origin
