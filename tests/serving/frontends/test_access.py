"""Restricted parts of the API: parsed as Triton does, and with no way around them."""

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import grpc
import pytest

from tests.serving import onnx_files
from tests.serving.live import SERVICE, Live, floats, infer_message, serving
from tests.serving.onnx_files import write_model
from tpx.errors import UsageError
from tpx.protocol import messages
from tpx.protocol.compression import Inflater
from tpx.serving.frontends.access import Category, Key, parse_restrictions
from tpx.serving.frontends.grpc import GrpcFrontend
from tpx.serving.frontends.http import HttpFrontend
from tpx.serving.frontends.overview import Overview

FRONT = Overview(controlled=False, metrics=lambda request: request.respond(200, b""))

ALL = ",".join(get_args(Category))
KEY = {"X-Key": "s3cret"}
METADATA = (("triton-grpc-protocol-x-key", "s3cret"),)
HTTP_REFUSAL = {"error": "This API is restricted, expecting header 'X-Key'"}
GRPC_REFUSAL = "This protocol is restricted, expecting header 'triton-grpc-protocol-X-Key'"


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A server that wants the key for everything."""
    repository = tmp_path_factory.mktemp("models")
    write_model(repository, "net", onnx_files.doubling())
    flag = f"{ALL}:X-Key=s3cret"
    with serving(repository, http_restricted_api=(flag,), grpc_restricted_protocol=(flag,)) as live:
        yield live


def test_a_key_can_come_from_a_file_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`ps` shows a command line to all users."""
    (tmp_path / "key").write_text("s3cret\n", encoding="utf-8")
    monkeypatch.setenv("TPX_TEST_KEY", "other")
    read = parse_restrictions(
        "--http-restricted-api", [f"health:X-Key=file:{tmp_path}/key", "trace:X-Key=env:TPX_TEST_KEY"]
    )
    assert read == {
        "health": Key(name="X-Key", value="s3cret"),
        "trace": Key(name="X-Key", value="other"),
    }
    (tmp_path / "empty").touch()
    for place, why in (
        (f"file:{tmp_path}/none", "can not be read: No such file"),
        (f"file:{tmp_path}/empty", "there is no key in file"),
        ("env:TPX_TEST_NO_KEY", "there is no key in variable 'TPX_TEST_NO_KEY'"),
    ):
        with pytest.raises(UsageError, match=f"--http-restricted-api: .*{why}"):
            parse_restrictions("--http-restricted-api", [f"health:X-Key={place}"])


@pytest.fixture(scope="module")
def partly(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A server with a key for statistics and the repository, and another for the configuration."""
    repository = tmp_path_factory.mktemp("models")
    write_model(repository, "net", onnx_files.doubling())
    flags = ("statistics,model-repository:a=1", "model-config:b=x:y=z")
    with serving(repository, http_restricted_api=flags, grpc_restricted_protocol=flags) as live:
        yield live


PATHS = {
    "/": "metadata",
    "/metrics": "statistics",
    "/v2": "metadata",
    "/v2/openapi.json": "metadata",
    "/v2/docs": "metadata",
    "/v2/models/net": "metadata",
    "/v2/health/live": "health",
    "/v2/health/ready": "health",
    "/v2/models/net/ready": "health",
    "/v2/models/net/config": "model-config",
    "/v2/models/net/versions/1/config": "model-config",
    "/v2/models/stats": "statistics",
    "/v2/models/net/stats": "statistics",
    "/v1/chat/completions": "inference",
    "/v1/completions": "inference",
    "/v1/embeddings": "inference",
    "/v1/responses": "inference",
    "/v1/messages": "inference",
    "/v1/messages/count_tokens": "inference",
    "/v1/rerank": "inference",
    "/v1/score": "inference",
    "/v1/models": "metadata",
    "/v1/models/net": "metadata",
    "/health/ready": "health",
    "/v2/models/net/infer": "inference",
    "/v2/models/net/generate": "inference",
    "/v2/models/net/generate_stream": "inference",
    "/v2/repository/index": "model-repository",
    "/v2/repository/models/net/load": "model-repository",
    "/v2/repository/models/net/unload": "model-repository",
    "/v2/systemsharedmemory/status": "shared-memory",
    "/v2/systemsharedmemory/region/r/register": "shared-memory",
    "/v2/systemsharedmemory/unregister": "shared-memory",
    "/v2/cudasharedmemory/region/r/status": "shared-memory",
    "/v2/cudasharedmemory/region/r/register": "shared-memory",
    "/v2/cudasharedmemory/region/r/unregister": "shared-memory",
    "/v2/trace/setting": "trace",
    "/v2/models/net/trace/setting": "trace",
    "/v2/logging": "logging",
}


def routes_of(live: Live) -> list[Any]:
    return HttpFrontend(live.server.plane, 1000, Inflater(), front=FRONT).routes


def test_every_route_has_a_path_below_and_its_category(closed: Live) -> None:
    routes = routes_of(closed)
    found = {path: next((route.category for route in routes if route.match(path)), None) for path in PATHS}
    assert found == PATHS
    assert [route.template for route in routes if not any(map(route.match, PATHS))] == []


@pytest.mark.parametrize("path", PATHS)
def test_no_path_is_open_without_the_key(closed: Live, path: str) -> None:
    for method in ("GET", "POST", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH"):
        answer = closed.http(method, path)
        assert answer.status == 403, method
        if method != "HEAD":
            error = answer.json["error"]
            message = error["message"] if path.startswith("/v1/") else error
            assert {"error": message} == HTTP_REFUSAL
    assert closed.http("PUT", path, headers=KEY).status == 405
    assert closed.http("GET", path, headers={"x-KEY": "s3cret"}).status != 403


AROUND = {
    "an escaped letter": "/v2/models/net/c%6Fnfig",
    "an escaped model": "/v2/models/%6eet/config",
    "a query": "/v2/models/net/config?x-key=s3cret&X-Key=s3cret",
    "a whole URL": "http://127.0.0.1/v2/models/net/config",
    "a version": "/v2/models/net/versions/1/config",
}


@pytest.mark.parametrize("path", AROUND.values(), ids=AROUND)
def test_another_spelling_of_a_path_is_the_same_path(closed: Live, path: str) -> None:
    assert closed.http("GET", path, headers=KEY).status == 200
    assert closed.http("GET", path).status == 403


NOWHERE = [
    "//v2/models/net/config",
    "/V2/models/net/config",
    "/v2//models/net/config",
    "/v2/models/net/config/",
    "/v2/./models/net/config",
    "/v2/x/../models/net/config",
    "/v2%2fmodels/net/config",
    "/v2/models/net/config%00",
    "/v2/models/net;x/config/../config",
    "/invocations",
    "/ping",
]


@pytest.mark.parametrize("path", NOWHERE)
def test_what_is_no_path_leads_nowhere(closed: Live, path: str) -> None:
    assert closed.http("GET", path).status in (403, 404)
    assert closed.http("GET", path, headers=KEY).status == 404


@pytest.mark.parametrize(
    "headers",
    [
        {"X-Key": "wrong"},
        {"X-Key": ""},
        {"X-Key": "S3CRET"},
        {"X-Key": "s3cret x"},
        {"X-Keys": "s3cret"},
        {"Key": "s3cret"},
        {"X_Key": "s3cret"},
        {"Connection": "x-key"},
        {"Authorization": "s3cret"},
        {
            "X-HTTP-Method-Override": "GET",
            "X-Original-URL": "/v2/health/live",
            "X-Forwarded-For": "127.0.0.1",
        },
        {"triton-grpc-protocol-x-key": "s3cret"},
    ],
    ids=str,
)
def test_no_other_header_opens(closed: Live, headers: dict[str, str]) -> None:
    assert closed.http("GET", "/v2/models/net/config", headers=headers).status == 403


def test_a_key_shown_twice_is_another_key(closed: Live) -> None:
    with closed.raw_http() as client:
        key = b"X-Key: s3cret\r\n"
        twice = b"GET /v2 HTTP/1.1\r\nHost: localhost\r\n" + 2 * key + b"Connection: close\r\n\r\n"
        assert exchange(client, twice).startswith(b"HTTP/1.1 403 ")


def exchange(client: socket.socket, request: bytes) -> bytes:
    client.sendall(request)
    got = b""
    while chunk := client.recv(65536):
        got += chunk
    return got


def test_who_shows_the_key_opens_for_nobody_after_him(closed: Live) -> None:
    """Heads are remembered by all of their bytes: on one connection, and for all of them."""
    for _ in range(3):
        assert closed.http("GET", "/v2", headers=KEY).status == 200
        assert closed.http("GET", "/v2").status == 403
    body = b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,2],"data":[1,2]}]}'
    for _ in range(3):
        assert closed.http("POST", "/v2/models/net/infer", body, KEY).status == 200
        assert closed.http("POST", "/v2/models/net/infer", body).status == 403


@pytest.mark.parametrize("framing", ["Content-Length: 50000000", "Transfer-Encoding: chunked"])
def test_the_body_of_who_has_no_key_is_not_read(closed: Live, framing: str) -> None:
    with closed.raw_http() as client:
        head = (
            f"POST /v2/models/net/infer HTTP/1.1\r\nHost: localhost\r\n{framing}\r\nExpect: 100-continue\r\n"
        )
        told = exchange(client, f"{head}\r\n".encode())
        assert told.startswith(b"HTTP/1.1 403 ")
        assert b"expecting header 'X-Key'" in told
    with closed.raw_http() as client:
        client.sendall(f"{head}X-Key: s3cret\r\n\r\n".encode())
        assert client.recv(1000).startswith(b"HTTP/1.1 100 ")


def test_a_body_that_comes_in_two_pieces_is_served_with_the_key(closed: Live) -> None:
    body = b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,2],"data":[1,2]}]}'
    with closed.raw_http() as client:
        for path, status in ((b"infer", b"200"), (b"nothing", b"404")):
            head = b"POST /v2/models/net/%b HTTP/1.1\r\nHost: localhost\r\nX-Key: s3cret\r\n"
            head += b"Content-Length: %d\r\n\r\n"
            client.sendall(head % (path, len(body)) + body[:10])
            time.sleep(0.02)
            client.sendall(body[10:])
            assert client.recv(10000).startswith(b"HTTP/1.1 " + status)


def test_each_part_has_its_key_and_the_rest_is_open(partly: Live) -> None:
    def status(path: str, **headers: str) -> int:
        return partly.http("POST" if "index" in path else "GET", path, headers=headers).status

    assert status("/v2/health/live") == status("/v2") == 200
    assert status("/v2/models/stats") == status("/v2/repository/index") == 403
    assert status("/v2/models/stats", a="1") == status("/v2/repository/index", A="1") == 200
    assert status("/v2/models/net/config", a="1") == 403
    assert status("/v2/models/net/config", b="x:y=z") == 200


# gRPC


METHODS = [
    *("ServerLive", "ServerReady", "ModelReady", "ServerMetadata", "ModelMetadata", "ModelConfig"),
    *("ModelInfer", "ModelStreamInfer", "ModelStatistics", "TraceSetting", "LogSettings"),
    *("RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload"),
    *("SystemSharedMemoryStatus", "SystemSharedMemoryRegister", "SystemSharedMemoryUnregister"),
    *("CudaSharedMemoryStatus", "CudaSharedMemoryRegister", "CudaSharedMemoryUnregister"),
]
RPCS = [
    "/grpc.health.v1.Health/Check",
    "/grpc.health.v1.Health/Watch",
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
    *(SERVICE + name for name in METHODS),
]


def call(live: Live, path: str, message: bytes = b"", metadata: Any = ()) -> tuple[str, str]:
    """Status and words that a call, of whatever kind, ends with."""
    with live.raw_grpc() as channel:
        answers = channel.stream_stream(path)(iter([message]), metadata=metadata, timeout=5)
        try:
            next(answers)
        except StopIteration:
            pass
        except grpc.RpcError as exc:
            return exc.code().name, exc.details()
    return "OK", ""


def test_every_method_is_known_below(closed: Live) -> None:
    assert {method.path for method in GrpcFrontend(closed.server.plane).methods()} == set(RPCS)


@pytest.mark.parametrize("path", RPCS)
def test_no_method_is_open_without_the_key(closed: Live, path: str) -> None:
    assert call(closed, path) == ("UNAVAILABLE", GRPC_REFUSAL)
    assert call(closed, path, metadata=METADATA)[1] != GRPC_REFUSAL


@pytest.mark.parametrize(
    "metadata",
    [
        (("triton-grpc-protocol-x-key", "wrong"),),
        (("triton-grpc-protocol-x-key", "S3CRET"),),
        (*METADATA, *METADATA),
        (("x-key", "s3cret"),),
        (("triton-grpc-protocol-x-key-bin", b"s3cret"),),
    ],
    ids=str,
)
def test_no_other_metadata_opens(closed: Live, metadata: Any) -> None:
    assert call(closed, SERVICE + "ServerLive", metadata=metadata) == ("UNAVAILABLE", GRPC_REFUSAL)


def test_calls_on_one_connection_are_judged_one_by_one(closed: Live) -> None:
    message = infer_message("net", {"x": floats([1, 2])})
    with closed.raw_grpc() as channel:
        infer = channel.unary_unary(SERVICE + "ModelInfer")
        for _ in range(3):
            assert messages.ModelInferResponse.FromString(infer(message, metadata=METADATA, timeout=5))
            with pytest.raises(grpc.RpcError) as caught:
                infer(message, timeout=5)
            assert caught.value.details() == GRPC_REFUSAL


def test_a_refused_call_is_not_read(closed: Live) -> None:
    """Whoever has no key does not fill our memory either: the answer comes before the message has."""
    with closed.raw_grpc() as channel:
        answered = threading.Event()

        def nothing() -> Iterator[bytes]:
            answered.wait(10)
            yield from ()

        answers = channel.stream_stream(SERVICE + "ModelInfer")(nothing(), timeout=5)
        with pytest.raises(grpc.RpcError) as caught:
            next(answers)
        answered.set()
        assert caught.value.details() == GRPC_REFUSAL


def test_each_part_of_grpc_has_its_key(partly: Live) -> None:
    config = messages.ModelConfigRequest(name="net").SerializeToString()
    assert call(partly, SERVICE + "ServerLive")[0] == "OK"
    assert call(partly, SERVICE + "ModelConfig", config)[0] == "UNAVAILABLE"
    assert call(partly, SERVICE + "ModelConfig", config, (("triton-grpc-protocol-b", "x:y=z"),))[0] == "OK"
    assert call(partly, SERVICE + "RepositoryIndex", b"", (("triton-grpc-protocol-a", "1"),))[0] == "OK"


# parsing


def test_a_key_may_hold_any_characters() -> None:
    restrictions = parse_restrictions("--flag", ["health,metadata:x-key=a=b:c d", "trace:y=2"])
    assert restrictions is not None
    assert restrictions.get("health") == restrictions.get("metadata") == Key(name="x-key", value="a=b:c d")
    assert restrictions.get("trace") == Key(name="y", value="2")
    assert restrictions.get("inference") is None


def test_a_bearer_token_is_compared_without_its_scheme(tmp_path: Path) -> None:
    flag = "--openai-restricted-api"
    (tmp_path / "key").write_text("sk-1\n")
    for value in ("Bearer sk-1", "sk-1", f"file:{tmp_path}/key"):
        restrictions = parse_restrictions(flag, [f"inference:Authorization={value}"])
        assert restrictions is not None
        key = restrictions["inference"]
        assert key.fits(b"Bearer sk-1")
        assert key.fits(b"bearer sk-1")
        for shown in (None, b"", b"Bearer", b"Bearer ", b"Bearer sk-2", b"sk-1", b"Basic sk-1"):
            assert not key.fits(shown)
    other = parse_restrictions(flag, ["metadata:x-key=Bearer a"])
    assert other is not None
    assert other["metadata"].fits(b"Bearer a")
    for wrong, message in (
        ("inference:Authorization=Bearer ", "option format"),
        ("statistics:x=1", "unknown restricted api 'statistics'"),
    ):
        with pytest.raises(UsageError, match=message):
            parse_restrictions(flag, [wrong])


def test_without_groups_nothing_is_restricted() -> None:
    assert parse_restrictions("--flag", ()) is None


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (["helth:k=v"], "unknown restricted api 'helth' (did you mean 'health'?)"),
        (["health, metadata:k=v"], "unknown restricted api ' metadata'"),
        (["health,health:k=v"], "restricted api 'health' can not be specified in multiple config groups"),
        (["health:k=v", "trace,health:a=b"], "restricted api 'health' can not be specified in multiple"),
        *(
            ([group], f"option format is '<config name>:<setting>=<value>'. Got {group}")
            for group in (
                "",
                "health",
                "health:",
                "health:k",
                "health:k=",
                "health:=v",
                ":k=v",
                "health:a b=c",
            )
        ),
    ],
)
def test_what_restricts_nothing_is_refused(groups: list[str], message: str) -> None:
    for flag in ("--http-restricted-api", "--grpc-restricted-protocol"):
        with pytest.raises(UsageError) as caught:
            parse_restrictions(flag, groups)
        assert flag in caught.value.message
        part = flag.rpartition("-")[2]
        assert message.replace("restricted api", f"restricted {part}") in caught.value.message


def test_a_server_with_wrong_restrictions_does_not_start(tmp_path: Path) -> None:
    with (
        pytest.raises(UsageError, match="--grpc-restricted-protocol: unknown restricted protocol 'x'"),
        serving(tmp_path, grpc_restricted_protocol=("x:a=b",)),
    ):
        pass
