"""Accepting for TLS: sockets count before they have said anything, and leave nothing behind."""

import asyncio
import socket
import ssl

import pytest

from tests.protocol.certificates import certificates
from tests.protocol.http1.service import Bare, WireServer, serving
from tests.protocol.turns import pause
from tests.waiting import until
from tpx.protocol.handshakes import client_of
from tpx.protocol.listener import Listener


def silent(port: int, count: int) -> list[socket.socket]:
    """Clients that connect and say nothing."""
    made = [socket.create_connection(("127.0.0.1", port), timeout=5) for _ in range(count)]
    for client in made:
        client.setblocking(False)
    return made


def left(clients: list[socket.socket]) -> int:
    """How many of them were closed."""
    count = 0
    for client in clients:
        try:
            count += client.recv(1) == b""
        except BlockingIOError:
            pass
        except ConnectionError:
            count += 1
    return count


async def served(server: WireServer) -> int:
    context = certificates().client_context("http/1.1")
    async with await Bare.connect(server.port, tls=context) as client:
        client.get("/echo")
        return (await client.answer()).status


@pytest.mark.parametrize("limits", [{"max_connections": 2}, {"max_per_client": 2}], ids=str)
async def test_silent_sockets_are_held_up_to_the_limit(limits: dict[str, int]) -> None:
    tls = certificates().server_context("http/1.1")
    async with serving(tls=tls, **limits) as server:  # type: ignore[arg-type]
        crowd = silent(server.port, 150)
        await until(lambda: left(crowd) >= 150 - (2 + 128))
        await pause(0.2)
        assert left(crowd) == 150 - (2 + 128)
        for client in crowd:
            client.close()
        await until(lambda: not server.listener.connections)
        assert await served(server) == 200


async def test_what_is_no_tls_is_closed_and_forgotten() -> None:
    async with serving(tls=certificates().server_context("http/1.1"), max_connections=1) as server:
        for _ in range(3):
            for words in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\xff\xff" + bytes(100), b""):
                [client] = silent(server.port, 1)
                client.sendall(words)
                client.shutdown(socket.SHUT_WR)
                await pause(0.03)
                assert left([client]) == 1 or client.recv(100).startswith(b"\x15")  # a TLS alert
                client.close()
        await pause(0.05)
        assert server.listener.connections == 0
        assert await served(server) == 200


async def test_a_server_that_ends_closes_what_has_not_shaken_hands() -> None:
    async with serving(tls=certificates().server_context("http/1.1")) as server:
        crowd = silent(server.port, 5)
        await pause(0.1)
        assert left(crowd) == 0
        server.listener.stop_accepting()
        await pause(0.1)
        assert left(crowd) == 5
        with pytest.raises(OSError, match=r"refused|Connect"):
            silent(server.port, 1)
        for client in crowd:
            client.close()


async def test_a_connection_too_many_over_tls_is_told_so() -> None:
    context = certificates().client_context("http/1.1")
    async with (
        serving(tls=certificates().server_context("http/1.1"), max_connections=1) as server,
        await Bare.connect(server.port, tls=context) as first,
        await Bare.connect(server.port, tls=context) as second,
    ):
        assert (await second.answer()).status == 503
        first.get("/echo")
        assert (await first.answer()).status == 200


async def listening(address: str, port: int = 0, *, reuse_port: bool = False) -> tuple[Listener, int]:
    listener = Listener()
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    return listener, await listener.start(asyncio.Protocol, address, port, tls=tls, reuse_port=reuse_port)


async def test_a_port_is_shared_only_if_both_say_so() -> None:
    first, port = await listening("127.0.0.1", reuse_port=True)
    second, same = await listening("127.0.0.1", port, reuse_port=True)
    assert same == port
    with pytest.raises(OSError, match="in use"):
        await listening("127.0.0.1", port)
    first.close()
    second.close()
    third, same = await listening("127.0.0.1", port)
    assert same == port
    third.close()


@pytest.mark.parametrize(
    ("address", "asked"), [("::1", "::1"), ("", "127.0.0.1"), ("localhost", "localhost")]
)
async def test_addresses_of_both_kinds_are_listened_to(address: str, asked: str) -> None:
    listener, port = await listening(address)
    socket.create_connection((asked, port), timeout=5).close()
    listener.close()


async def test_an_address_that_is_not_ours_is_refused() -> None:
    with pytest.raises(OSError, match="assign"):
        await listening("192.0.2.1")


@pytest.mark.parametrize(
    ("peername", "client"),
    [
        (("10.0.0.1", 5), "10.0.0.1"),
        (("::ffff:10.0.0.1", 5, 0, 0), "10.0.0.1"),
        (("2001:db8:1:2:3:4:5:6", 5, 0, 0), "2001:db8:1:2::/64"),
        (("2001:db8:1:2:ffff::", 5, 0, 0), "2001:db8:1:2::/64"),
        (("fe80::1%eth0", 5, 0, 2), "fe80::/64"),
        ("", ""),
        (None, ""),
        (("odd", 1), "odd"),
    ],
)
def test_who_a_connection_counts_for(peername: object, client: str) -> None:
    assert client_of(peername) == client
