"""Who is served where clients must show a certificate: by each client, with certificates of every kind."""

import datetime
import http.client
import shutil
import socket
import ssl
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
import tritonclient.grpc
import tritonclient.http
import trustme
from geventhttpclient.response import HTTPConnectionClosed
from tritonclient.utils import InferenceServerException

from tests.e2e.child import Child, serve
from tests.protocol.certificates import key_and_chain
from tpx.examples import write

pytestmark = pytest.mark.e2e


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """A client's files; without a key it shows nothing."""

    authority: Path
    chain: Path | None = None
    key: Path | None = None

    def context(self) -> ssl.SSLContext:
        made = ssl.create_default_context(cafile=str(self.authority))
        if self.chain is not None:
            made.load_cert_chain(self.chain, self.key)
        return made


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarded:
    """A server that wants certificates, and clients to try."""

    child: Child
    http: str
    grpc: str
    clients: dict[str, Identity]


GOOD = "signed by the authority"
BAD = ("none", "signed by another authority", "expired", "not valid yet", "signed by itself")


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("tls")
    write(folder / "models", ["identity"])
    authority, other = trustme.CA(), trustme.CA()
    root = folder / "root.pem"
    authority.cert_pem.write_to_path(str(root))

    def stored(name: str, leaf: trustme.LeafCert) -> Identity:
        key, chain = key_and_chain(leaf)
        files = [folder / f"{name}.{ending}" for ending in ("key", "pem")]
        for file, content in zip(files, (key, chain), strict=True):
            file.write_bytes(content)
        return Identity(authority=root, key=files[0], chain=files[1])

    now = datetime.datetime.now(datetime.UTC)
    day = datetime.timedelta(days=1)
    expired = authority.issue_cert("client.example", not_before=now - 2 * day, not_after=now - day)
    early = authority.issue_cert("client.example", not_before=now + day, not_after=now + 2 * day)
    alone = trustme.CA().issue_cert("client.example")
    clients = {
        GOOD: stored("good", authority.issue_cert("client.example")),
        "none": Identity(authority=root),
        "signed by another authority": stored("other", other.issue_cert("client.example")),
        "expired": stored("expired", expired),
        "not valid yet": stored("early", early),
        "signed by itself": stored("alone", alone),
    }
    server = stored("server", authority.issue_cert("127.0.0.1"))
    words = ["--http-use-ssl", "--grpc-use-ssl-mutual"]
    for service in ("http", "grpc"):
        words += [
            f"--{service}-server-cert={server.chain}",
            f"--{service}-server-key={server.key}",
            f"--{service}-root-cert={root}",
        ]
    with serve("--model-repository", folder / "models", *words) as child:
        child.ready()
        yield Guarded(
            child=child,
            http=f"127.0.0.1:{child.port('HTTPService')}",
            grpc=f"127.0.0.1:{child.port('GRPCInferenceService')}",
            clients=clients,
        )
        assert child.stop() == 0
        assert child.err == []


def by_http_client(server: Guarded, who: Identity) -> bool:
    connection = http.client.HTTPSConnection(server.http, timeout=10, context=who.context())
    try:
        connection.request("GET", "/v2/health/ready")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def by_triton_http(server: Guarded, who: Identity) -> bool:
    with tritonclient.http.InferenceServerClient(
        server.http, ssl=True, ssl_context_factory=who.context
    ) as client:
        try:
            return bool(client.is_server_ready())
        except (OSError, HTTPConnectionClosed):
            return False


def _files(who: Identity) -> dict[str, Any]:
    if who.key is None or who.chain is None:
        return {"private_key": None, "certificate_chain": None}
    return {"private_key": who.key, "certificate_chain": who.chain}


def by_triton_grpc(server: Guarded, who: Identity) -> bool:
    files = {name: str(file) if file else None for name, file in _files(who).items()}
    with tritonclient.grpc.InferenceServerClient(
        server.grpc, ssl=True, root_certificates=str(who.authority), **files
    ) as client:
        try:
            return bool(client.is_server_ready(client_timeout=20))
        except InferenceServerException:
            return False


def by_grpcio(server: Guarded, who: Identity) -> bool:
    files = {name: file.read_bytes() if file else None for name, file in _files(who).items()}
    credentials = grpc.ssl_channel_credentials(who.authority.read_bytes(), **files)
    with grpc.secure_channel(server.grpc, credentials) as channel:
        try:
            channel.unary_unary("/inference.GRPCInferenceService/ServerLive")(b"", timeout=20)
        except grpc.RpcError:
            return False
        return True


def _by_curl(address: str, who: Identity, expected: str) -> bool:
    if shutil.which("curl") is None:
        pytest.skip("curl not found (Debian: curl)")
    words = ["curl", "-sS", "-m", "10", "-o", "/dev/null", "-w", "%{http_version} %{http_code}"]
    words += ["--cacert", str(who.authority)]
    if who.key is not None:
        words += ["--cert", str(who.chain), "--key", str(who.key)]
    done = subprocess.run(
        [*words, f"https://{address}/v2/health/ready"],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    return (done.returncode, done.stdout) == (0, expected)


def by_curl(server: Guarded, who: Identity) -> bool:
    return _by_curl(server.http, who, "1.1 200")  # as ALPN agrees


def by_curl_to_grpc(server: Guarded, who: Identity) -> bool:
    return _by_curl(server.grpc, who, "2 405")  # it speaks HTTP/2, but not gRPC


CLIENTS = [by_http_client, by_triton_http, by_curl, by_triton_grpc, by_grpcio, by_curl_to_grpc]
Client = Callable[[Guarded, Identity], bool]


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.__name__)
def test_only_a_good_certificate_is_served(guarded: Guarded, client: Client) -> None:
    served = {name for name, who in guarded.clients.items() if client(guarded, who)}
    assert set(guarded.clients) == {GOOD, *BAD}
    assert served == {GOOD}


@pytest.mark.parametrize("service", ["http", "grpc"])
def test_who_speaks_no_tls_is_not_served(guarded: Guarded, service: str) -> None:
    host, _, port = getattr(guarded, service).partition(":")
    with socket.create_connection((host, int(port)), timeout=5) as client:
        client.sendall(b"GET /v2/health/ready HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert not client.recv(1000).startswith(b"HTTP")


def test_a_client_does_not_take_a_server_of_another_authority(guarded: Guarded, tmp_path: Path) -> None:
    root = tmp_path / "root.pem"
    trustme.CA().cert_pem.write_to_path(str(root))
    good = guarded.clients[GOOD]
    stranger = Identity(authority=root, key=good.key, chain=good.chain)
    assert not any(client(guarded, stranger) for client in CLIENTS)
