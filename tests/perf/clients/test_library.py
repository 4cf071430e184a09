"""The client on httpx and grpcio against our own: the same requests, figures and errors."""

import asyncio
import builtins
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.perf.clients.proxying import free_port, listening
from tests.perf.clients.running import level, ran
from tests.perf.parsing import parse
from tests.perf.servers import Behaviour, grpc_server, http_server
from tests.protocol.certificates import certificates, key_and_chain
from tpx.cli.perf import main
from tpx.errors import MeasurementError, UsageError, WireError
from tpx.perf.clients.base import Slot
from tpx.perf.clients.endpoint import Endpoint
from tpx.perf.clients.grpc import GrpcClient
from tpx.perf.clients.model import ModelKey
from tpx.perf.clients.transport import LibraryTransport
from tpx.protocol.tensors import Tensor

Server = Callable[[Behaviour], AbstractContextManager[str]]
SERVERS: dict[str, Server] = {"http": http_server, "grpc": grpc_server}
CLIENTS = ("tpx", "library")


def by(client: str, protocol: str, behaviour: Behaviour, *words: str) -> Any:
    with SERVERS[protocol](behaviour) as url:
        return level("-m", "net", "-i", protocol, "-u", url, "--client", client, *words)


@pytest.mark.parametrize(
    ("protocol", "words"),
    [
        ("http", ()),
        ("http", ("--input-tensor-format", "json")),
        ("grpc", ()),
        ("grpc", ("--grpc-compression-algorithm", "gzip")),
    ],
)
def test_both_clients_send_the_same_bodies_and_headers(protocol: str, words: tuple[str, ...]) -> None:
    sent = []
    for client in CLIENTS:
        behaviour = Behaviour()
        extra = ("-H", "x-team: vision", "--seed", "7", "--request-parameter", "a:1:int")
        result = by(client, protocol, behaviour, "--request-count", "3", *extra, *words)
        assert (result.requests, result.failed) == (3, 0)
        sent.append([(headers["x-team"], body) for headers, body in behaviour.seen])
    assert len(sent[0]) == 3
    assert sent[0] == sent[1]


@pytest.mark.parametrize(("protocol", "status"), [("http", 503), ("grpc", 8)])
def test_both_clients_count_the_same_errors(protocol: str, status: int) -> None:
    found = []
    for client in CLIENTS:
        behaviour = Behaviour(status=lambda number: status if number % 3 == 0 else 0)
        result = by(client, protocol, behaviour, "--request-count", "30", "--concurrency-range", "2")
        found.append((result.requests, result.failed, [(e.code, e.count, e.message) for e in result.errors]))
    assert found[0] == found[1]
    assert found[0][:2] == (20, 10)


def test_a_request_without_a_response_is_lost_and_the_next_one_is_sent() -> None:
    found = []
    for client in CLIENTS:
        # a broken answer, not an idle connection that closes: that request is not sent again
        behaviour = Behaviour(breaks=lambda number: number == 5)
        result = by(client, "http", behaviour, "--request-count", "20", "--max-errors", "1")
        found.append((result.requests, result.failed, [(e.code, e.count) for e in result.errors]))
    assert found == [(19, 1, [("connection lost", 1)])] * 2


def test_a_connection_that_the_server_closes_after_each_response_costs_no_request() -> None:
    result = by("library", "http", Behaviour(closes=lambda _: True), "--request-count", "20")
    assert (result.requests, result.failed) == (20, 0)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_request_over_its_timeout_fails_and_its_connection_is_replaced(protocol: str) -> None:
    behaviour = Behaviour(delay_s=lambda number: 0.4 if number == 3 else 0.0)
    result = by("library", protocol, behaviour, "--timeout", "0.1", "--request-count", "10")
    assert (result.requests, result.failed) == (9, 1)
    assert [error.code for error in result.errors] == ["timeout"]


def test_a_channel_whose_server_is_gone_is_replaced_by_one_to_its_successor() -> None:
    async def scene() -> None:
        with grpc_server(Behaviour()) as url:
            host, _, port = url.rpartition(":")
            endpoint = Endpoint(host=host, port=int(port), model=ModelKey("net"), library=LibraryTransport())
            client = GrpcClient(endpoint)
            request = await client.prepare([Tensor("x", "FP32", (1, 4), bytes(16))])
            (slot,) = await client.open(1)
            assert (await answered(slot, request)).status == 0
        response = await answered(slot, request)
        assert client.failure(response).code == "gRPC UNAVAILABLE"
        with pytest.raises(WireError, match="the connection is closing"):
            slot.send(request, lambda _: None)
        with pytest.raises(WireError, match="cannot connect"):
            await client.renew(slot, None)
        with grpc_server(Behaviour(), int(port)):
            await client.renew(slot, None)
            assert (await answered(slot, request)).status == 0
        await client.close()

    async def answered(slot: Slot, request: Any) -> Any:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        slot.send(request, answer.set_result)
        return await answer

    asyncio.run(scene())


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_server_that_is_not_there_is_named(protocol: str) -> None:
    url = f"127.0.0.1:{free_port()}"
    with pytest.raises(WireError, match=rf"cannot connect to {url}: .*[Rr]efused|All connection attempts"):
        ran("-m", "net", "-i", protocol, "-u", url, "--client", "library")


def test_the_report_says_which_client_sent_the_requests(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with http_server(Behaviour()) as url:
        files = ("--json", str(tmp_path / "run.json"), "--html", str(tmp_path / "run.html"))
        words = ("-m", "net", "-u", url, "--request-count", "3", "--client", "library", *files)
        assert main(words) == 0
    assert "  Sending requests by httpx " in capfd.readouterr().out
    target = json.loads((tmp_path / "run.json").read_text("utf-8"))["target"]
    assert target["client"].startswith("httpx ")
    assert target["client"] in (tmp_path / "run.html").read_text("utf-8")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--client", "tpx", "--proxy", "p:1"), "--proxy needs the library client: leave out --client tpx"),
        (("--client", "tpx", "--http2"), "--http2 needs the library client: leave out --client tpx"),
        (("--http2", "-i", "grpc"), "--http2 is for -i http: gRPC is HTTP/2 anyway"),
        (
            ("--client", "library", "--service-kind", "inprocess", "--model-repository", "."),
            "--client: an engine in this process is reached without a network",
        ),
    ],
)
def test_what_a_client_cannot_do_is_refused(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(*words)
    assert caught.value.message == message


def test_a_missing_library_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name == "httpx":
            raise ImportError("No module named 'httpx'")
        return real(name, *rest, **more)

    monkeypatch.delitem(sys.modules, "tpx.perf.clients.httpx_library", raising=False)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UsageError, match=r"needs httpx: pip install 'tpx\[clients\]'"):
        ran("-m", "net", "-u", "127.0.0.1:9", "--client", "library")


def test_a_missing_package_for_http2_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "h2", None)
    with pytest.raises(UsageError, match=r"--http2 needs the package h2: pip install 'tpx\[clients\]'"):
        ran("-m", "net", "-u", "127.0.0.1:9", "--http2")


@contextmanager
def over_http2(directory: Path, server: str, binding: str) -> Iterator[str]:
    """Run HAProxy in front of a server, for nothing but HTTP/2; yields its host:port."""
    binary = shutil.which("haproxy")
    if binary is None:
        pytest.skip("haproxy is not installed: apt-get install haproxy")
    port, config = free_port(), directory / "haproxy.cfg"
    config.write_text(
        "defaults\n  mode http\n  timeout client 10s\n  timeout server 10s\n  timeout connect 5s\n"
        f"frontend http2\n  bind 127.0.0.1:{port} {binding}\n"
        "  http-request deny unless { req.ver 2.0 }\n  default_backend servers\n"
        f"backend servers\n  server one {server}\n"
    )
    with listening([binary, "-db", "-q", "-f", str(config)], port):
        yield f"127.0.0.1:{port}"


@pytest.mark.parametrize("tls", [False, True])
def test_requests_share_connections_over_http2(tmp_path: Path, tls: bool) -> None:
    key, chain = key_and_chain(certificates().server)
    pem, authority = tmp_path / "server.pem", tmp_path / "authority.pem"
    pem.write_bytes(chain + key)
    authority.write_bytes(certificates().authority_pem)
    binding = f"ssl crt {pem} alpn h2" if tls else "proto h2"
    trusting = ("--ssl-https-ca-certificates-file", str(authority)) if tls else ()
    scheme = "https" if tls else "http"
    with http_server(Behaviour()) as server, over_http2(tmp_path, server, binding) as address:
        words = ("-m", "net", "-u", f"{scheme}://{address}", *trusting)
        with pytest.raises((WireError, MeasurementError)):
            ran(*words)
        load = ("--http2", "--concurrency-range", "20", "--request-count", "100")
        result = level(*words, *load)
        assert (result.requests, result.failed) == (100, 0)
