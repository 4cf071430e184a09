"""What a process runs out of, what it is told by signals, and TLS that is none."""

import resource
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.child import FRONTENDS
from tests.hostile import wire
from tests.hostile.siege import GOOD, SERVICE, Siege, besieged, write_good_models
from tests.hostile.test_crowds import CALL, pending
from tests.protocol.certificates import certificates
from tests.protocol.http2.raw import grpc_headers
from tests.serving.live import reset
from tests.waiting import eventually
from tpx.protocol.http2 import frames
from tpx.protocol.http2.frames import END_HEADERS, HEADERS, PREFACE
from tpx.protocol.http2.hpack import encode_stateless

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository of models that answer."""
    folder = tmp_path_factory.mktemp("good")
    write_good_models(folder)
    return folder


def test_f7_sigterm_ends_a_server_whose_connections_are_held_open(models: Path) -> None:
    """Idle ones, half a head, half a body, half a call, an open stream, and a request in flight."""
    preface = PREFACE + frames.settings_frame({})
    stream = frames.frame(
        HEADERS, END_HEADERS, 1, encode_stateless(grpc_headers(SERVICE + "ModelStreamInfer"))
    )
    with besieged(models, "--exit-timeout-secs=2") as siege:
        held = [wire.connect(port) for port in (siege.http, siege.grpc, siege.metrics)]
        for port, data in (
            (siege.http, b"POST /v2/models/double/infer HTTP/1.1\r\nHo"),
            (siege.http, wire.post_request("/v2/models/double/infer", GOOD)[:-5]),
            (
                siege.http,
                b"POST /v2 HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
            ),
            (siege.grpc, preface),
            (siege.grpc, preface + CALL[:40]),
            (siege.grpc, preface + stream),
        ):
            sock = wire.connect(port)
            sock.sendall(data)
            held.append(sock)
        busy = wire.connect(siege.http)
        busy.sendall(wire.post_request("/v2/models/patient/infer", GOOD))
        eventually(lambda: pending(siege))
        siege.child.send(signal.SIGTERM)
        assert wire.read_answer(busy).status == 200
        assert siege.child.ended(25) == 0
        for sock in [*held, busy]:
            sock.close()


def test_a_server_without_descriptors_serves_those_it_has_and_then_everyone_again(models: Path) -> None:
    with besieged(models) as siege:
        siege.alive()
        before = siege.footprint()
        known = wire.connect(siege.http)
        known.sendall(b"GET /v2 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert wire.read_answer(known).status == 200
        limit = siege.footprint().descriptors + 20
        old = resource.prlimit(siege.child.pid, resource.RLIMIT_NOFILE, (limit, resource.getrlimit(7)[1]))
        crowd = [wire.connect(port) for _ in range(60) for port in (siege.http, siege.grpc)]
        for _ in range(50):
            known.sendall(b"GET /v2/models/double HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert wire.read_answer(known).status == 200
        for sock in (*crowd, known):
            sock.close()
        eventually(lambda: serves(siege))
        resource.prlimit(siege.child.pid, resource.RLIMIT_NOFILE, old)
        after = siege.settles(lambda now: now.descriptors <= before.descriptors)
        assert after.descriptors <= before.descriptors


def serves(siege: Siege) -> bool:
    """Return whether a good request is answered."""
    try:
        siege.alive()
    except (OSError, AssertionError):
        return False
    return True


@pytest.fixture(scope="module")
def secure(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Siege]:
    """A server that speaks TLS on both ports."""
    folder = tmp_path_factory.mktemp("tls")
    server = certificates().server
    chain, key = folder / "chain.pem", folder / "key.pem"
    chain.write_bytes(b"".join(part.bytes() for part in server.cert_chain_pems))
    key.write_bytes(server.private_key_pem.bytes())
    words = [
        f"--{name}-{what}={path}"
        for name in ("http", "grpc")
        for what, path in (("use-ssl", "true"), ("server-cert", chain), ("server-key", key))
    ]
    with besieged(models, *words) as siege:
        for _ in range(1 + 15 * FRONTENDS):  # each frontend opens what its first handshake needs
            _ask_securely(siege)
        yield siege


def _ask_securely(siege: Siege) -> None:
    """Fails unless a good request over TLS is answered well."""
    context = certificates().client_context()
    with socket.create_connection(("127.0.0.1", siege.http), timeout=10) as plain:
        sock = context.wrap_socket(plain, server_hostname="localhost")
        sock.sendall(wire.post_request("/v2/models/double/infer", GOOD))
        assert b"[2.0,4.0]" in wire.read_answer(sock).body
        sock.close()


HANDSHAKES = {
    "nothing": b"",
    "half a hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100),
    "a hello of garbage": b"\x16\x03\x01\x00\x2a" + bytes(range(42)),
    "an alert": b"\x15\x03\x01\x00\x02\x02\x28",
    "a record of 64 KB": b"\x16\x03\x01\xff\xff" + bytes(65535),
    "plain HTTP": b"GET /v2 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "plain HTTP/2": PREFACE + frames.settings_frame({}),
    "garbage": bytes(range(256)) * 10,
}


@pytest.mark.parametrize("end", [socket.socket.close, reset], ids=["closed", "reset"])
@pytest.mark.parametrize("what", HANDSHAKES)
def test_a_handshake_that_is_none_ends_its_connection_only(
    secure: Siege, what: str, end: Callable[[socket.socket], None]
) -> None:
    before = secure.footprint()
    for port in (secure.http, secure.grpc):
        for _ in range(20):
            sock = wire.connect(port)
            wire.send_all(sock, HANDSHAKES[what])
            end(sock)
    _ask_securely(secure)
    after = secure.settles(lambda now: now.descriptors <= before.descriptors)
    assert after.descriptors <= before.descriptors
