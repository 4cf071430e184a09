"""Sockets of a TLS endpoint until their handshake is done.

The event loop would report a connection only after its handshake, and until then a client could hold
any number of sockets. They are therefore accepted here, counted from the start, and closed if over a
limit.
"""

import asyncio
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Network, ip_address

BACKLOG = 4096
"""Length of the accept queue (Linux's default limit). If it is full, a client retries a second later."""
HANDSHAKE_S = 10
_WITHOUT_DESCRIPTORS_S = 0.1


class Handshakes:
    """Accepts sockets and turns them into connections of `factory`. `admits` checks a client before its
    handshake begins.
    """

    def __init__(
        self, factory: Callable[[], asyncio.BaseProtocol], tls: ssl.SSLContext, admits: Callable[[str], bool]
    ) -> None:
        self._factory = factory
        self._tls = tls
        self._admits = admits
        self._listening: list[socket.socket] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._fresh: set[socket.socket] = set()
        """Accepted sockets whose task has not started: cancelling such a task would not close its socket."""
        self.count = 0
        self.clients: Counter[str] = Counter()
        """Number of handshakes in progress per client."""

    def accept_from(self, listening: Sequence[socket.socket]) -> None:
        """Start accepting."""
        self._listening = list(listening)
        for sock in self._listening:
            self._start_task(self._accept_connections(sock))

    def stop_accepting(self) -> None:
        """Close the listening sockets and the unfinished handshakes."""
        for task in self._tasks:
            task.cancel()
        for sock in (*self._listening, *self._fresh):
            sock.close()
        self._listening.clear()
        self._fresh.clear()

    def _start_task(self, work: "asyncio._CoroutineLike[None]") -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept_connections(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, peer = await loop.sock_accept(listening)
            except OSError:
                # out of descriptors, or the client is gone already: keep serving others
                await asyncio.sleep(_WITHOUT_DESCRIPTORS_S)
                continue
            client = client_of(peer)
            if self._admits(client):
                self.count += 1
                self.clients[client] += 1
                self._fresh.add(accepted)
                self._start_task(self._shake_hands(accepted, client))
            else:
                accepted.close()

    async def _shake_hands(self, accepted: socket.socket, client: str) -> None:
        self._fresh.discard(accepted)
        loop = asyncio.get_running_loop()
        try:
            with suppress(OSError):  # a failed handshake is the client's problem
                await loop.connect_accepted_socket(
                    self._factory, accepted, ssl=self._tls, ssl_handshake_timeout=HANDSHAKE_S
                )
        finally:
            self.count -= 1
            self.clients[client] -= 1
            if not self.clients[client]:
                del self.clients[client]


def client_of(peername: object) -> str:
    """Return the key by which a client's connections are counted: an IPv4 address, or an IPv6 /64
    network, since one client has all of it.
    """
    host = str(peername[0]) if isinstance(peername, tuple) else ""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(IPv6Network((address, 64), strict=False))


async def listening_sockets(address: str, port: int, *, reuse_port: bool) -> list[socket.socket]:
    """Return one listening socket per address that the name resolves to. Raises OSError."""
    return begin_to_listen(await asyncio.to_thread(bound_sockets, address, port, reuse_port=reuse_port))


def is_local(address: str) -> bool:
    """Return True for an address to listen on that only this machine reaches."""
    return address in ("localhost", "::1") or address.startswith("127.")


def bound_sockets(address: str, port: int, *, reuse_port: bool) -> list[socket.socket]:
    """Return one bound socket, not yet listening, per address that the name resolves to. Raises OSError."""
    # as bytes: for text, Python loads tables for international names, 1 MB and 3 ms of every start
    host = address.encode() or None
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    out: list[socket.socket] = []
    try:
        for family, sockaddr in dict.fromkeys((entry[0], entry[4]) for entry in found):
            out.append(_bind_socket(family, sockaddr, reuse_port=reuse_port))
    except OSError:
        for sock in out:
            sock.close()
        raise
    return out


def begin_to_listen(sockets: Sequence[socket.socket]) -> list[socket.socket]:
    """Listen on bound sockets. Closes them and raises OSError on failure."""
    try:
        for sock in sockets:
            sock.listen(BACKLOG)
            sock.setblocking(False)
    except OSError:
        for sock in sockets:
            sock.close()
        raise
    return list(sockets)


def _bind_socket(family: int, sockaddr: object, *, reuse_port: bool) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(sockaddr)  # type: ignore[arg-type]
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock
