"""HTTP proxies: their URLs, and the one that the environment names for a server, as libcurl and gRPC's C core
look it up. A server on this machine is reached directly, unless --proxy is given.
"""

import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from tpx.errors import UsageError
from tpx.options import refuse
from tpx.sources import HIDDEN

if TYPE_CHECKING:
    from http.client import HTTPResponse

VARIABLES: Mapping[str, tuple[str, ...]] = {
    "http": ("http_proxy", "all_proxy"),
    "https": ("https_proxy", "all_proxy"),
    "grpc": ("grpc_proxy", "https_proxy", "http_proxy", "all_proxy"),
}
"""Environment variables in order of precedence, by the scheme of the request."""
EXCEPTIONS: Mapping[str, tuple[str, ...]] = {
    "http": ("no_proxy",),
    "https": ("no_proxy",),
    "grpc": ("no_grpc_proxy", "no_proxy"),
}
_DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpProxy:
    """An HTTP proxy; its text hides the password."""

    scheme: str
    host: str
    port: int
    user: str = ""
    password: str = field(default="", repr=False)
    written: str = field(default="", repr=False, compare=False)
    """The URL as the user wrote it."""

    @property
    def address(self) -> str:
        """URL without credentials."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"

    def __str__(self) -> str:
        scheme, separator, rest = self.address.partition("://")
        return f"{scheme}{separator}{self.user}:{HIDDEN}@{rest}" if self.user else self.address


def parse_proxy(text: str) -> HttpProxy:
    """Parse `--proxy [http://][USER:PASSWORD@]HOST[:PORT]`. Raises UsageError."""
    return _read_url(text, "--proxy")


def _read_url(text: str, source: str) -> HttpProxy:
    parts = urlsplit(text if "://" in text else f"http://{text}")
    if parts.scheme not in _DEFAULT_PORTS:
        refuse(source, f"A proxy is reached over http:// or https://, not {parts.scheme}://.")
    try:
        port = parts.port or _DEFAULT_PORTS[parts.scheme]
    except ValueError:
        port = 0
    if not parts.hostname or not port or parts.path.strip("/") or parts.query:
        # the value is not repeated: it may hold a password
        refuse(source, "The value does not match [http://][USER:PASSWORD@]HOST[:PORT].")
    return HttpProxy(
        scheme=parts.scheme,
        host=parts.hostname,
        port=port,
        user=unquote(parts.username or ""),
        password=unquote(parts.password or ""),
        written=text,
    )


@dataclass(frozen=True, slots=True)
class FoundProxy:
    """An environment variable that names a proxy, and its value."""

    variable: str
    text: str

    @property
    def proxy(self) -> HttpProxy:
        """The proxy. Raises UsageError if the value is not an HTTP proxy's URL."""
        try:
            return _read_url(self.text, self.variable)
        except UsageError as exc:
            raise UsageError(f"{exc} --client tpx connects directly.") from exc


def environment_proxy(
    host: str, port: int, scheme: str, environ: Mapping[str, str] | None = None
) -> FoundProxy | None:
    """Return the proxy for a request of this scheme (http, https or grpc); None if it goes directly."""
    environ = os.environ if environ is None else environ
    found = _first_set(VARIABLES[scheme], environ)
    if found is None or _is_loopback(host):
        return None
    exceptions = _first_set(EXCEPTIONS[scheme], environ)
    if exceptions is not None and _is_excepted(host, port, exceptions[1]):
        return None
    return FoundProxy(*found)


def open_page(url: str, timeout_s: float) -> "HTTPResponse":
    """Open a page, such as one of metrics, through the environment's proxy only where it applies.

    urllib alone would use the proxy for servers on this machine as well. Raises OSError, ValueError or
    HTTPException.
    """
    from urllib.request import ProxyHandler, build_opener  # late: tpx perf starts without it

    parts = urlsplit(url)
    found = None
    if parts.scheme in _DEFAULT_PORTS and parts.hostname:
        found = environment_proxy(parts.hostname, parts.port or _DEFAULT_PORTS[parts.scheme], parts.scheme)
    handler = ProxyHandler({parts.scheme: found.text} if found else {})
    page: HTTPResponse = build_opener(handler).open(url, timeout=timeout_s)
    return page


def _first_set(names: tuple[str, ...], environ: Mapping[str, str]) -> tuple[str, str] | None:
    """Return the first variable that is not empty, in lower case before upper case, and its value."""
    spellings = (spelling for name in names for spelling in (name, name.upper()))
    return next(((name, environ[name]) for name in spellings if environ.get(name)), None)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _is_excepted(host: str, port: int, exceptions: str) -> bool:
    """Return True if a list of hosts, domains, networks and `*` contains a host."""
    return any(_matches(host.lower(), port, entry) for entry in exceptions.lower().replace(",", " ").split())


def _matches(host: str, port: int, entry: str) -> bool:
    if entry == "*":
        return True
    try:
        network = ipaddress.ip_network(entry.strip("[]"), strict=False)
    except ValueError:
        name, colon, number = entry.removeprefix("*").removeprefix(".").rpartition(":")
        if not colon:
            name = number
        elif number != str(port):
            return False
        name = name.strip("[]")
        return host == name or host.endswith(f".{name}")
    try:
        return ipaddress.ip_address(host) in network
    except ValueError:
        return False
