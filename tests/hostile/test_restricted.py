"""Parts of the API that need a key: no other path, method or spelling leads to them."""

from collections.abc import Iterator

import grpc
import pytest

from tests.hostile import wire
from tests.hostile.siege import GOOD, Siege, besieged, write_good_models

pytestmark = [pytest.mark.e2e]

LOCKED = "inference,model-repository,shared-memory,model-config"
WORDS = (
    f"--http-restricted-api={LOCKED}:x-key=secret",
    f"--grpc-restricted-protocol={LOCKED}:x-key=secret",
    "--model-control-mode=explicit",
    "--load-model=*",
)


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Siege]:
    """A server most of which needs a key."""
    folder = tmp_path_factory.mktemp("locked")
    write_good_models(folder)
    with besieged(folder, *WORDS) as siege:
        yield siege


def infer_line(path: str, method: str = "POST", headers: str = "") -> bytes:
    """An inference sent to a path."""
    rest = wire.post_request("/", GOOD, headers).partition(b" HTTP/1.1")[2]
    return f"{method} {path} HTTP/1.1".encode("latin-1") + rest


SPELLINGS = (
    "/v2/models/double/infer",
    "//v2/models/double/infer",
    "/v2//models/double/infer",
    "/v2/models/double/infer/",
    "/V2/models/double/infer",
    "/v2/MODELS/double/infer",
    "/v2/./models/double/infer",
    "/v2/x/../models/double/infer",
    "/v2/models/x/../double/infer",
    "/v2/%6dodels/double/infer",
    "/v2/models/double/%69nfer",
    "/v2/models/double%2finfer",
    "/v2%2fmodels%2fdouble%2finfer",
    "/v2/models/double/infer?x=/v2/health/live",
    "/v2/models/double/infer#/v2/health/live",
    "/v2/models/double/infer;/v2/health/live",
    "/v2/models/double/versions/1/infer",
    "http://a/v2/models/double/infer",
    "http://a//v2/models/double/infer",
    "/v2/health/live/../../models/double/infer",
    "/invocations",
    "/predict",
)


@pytest.mark.parametrize("path", SPELLINGS)
@pytest.mark.parametrize("headers", ["", "X-Key: wrong\r\n", "X-Key: \r\n", "X-Key: secretsecret\r\n"])
def test_a7_no_spelling_of_a_path_opens_what_is_locked(locked: Siege, path: str, headers: str) -> None:
    answer = wire.ask(locked.http, infer_line(path, headers=headers))
    assert answer.status in (400, 403, 404)
    assert b"outputs" not in answer.body
    opened = wire.ask(locked.http, infer_line(path, headers="x-KEY: secret\r\n"))
    if opened.status == 200:
        assert answer.status == 403
        assert answer.error == "This API is restricted, expecting header 'x-key'"


OVERRIDES = (
    "X-HTTP-Method-Override: POST\r\n",
    "X-Method-Override: POST\r\n",
    "X-Original-URL: /v2/health/live\r\n",
    "X-Rewrite-URL: /v2/health/live\r\n",
    "X-Forwarded-For: 127.0.0.1\r\n",
    "Authorization: x-key=secret\r\n",
    "Connection: x-key\r\n",
    "X_Key: secret\r\n",
    "x-key-2: secret\r\n",
)


@pytest.mark.parametrize("headers", OVERRIDES)
@pytest.mark.parametrize("method", ["POST", "GET", "PUT", "HEAD", "PATCH"])
def test_a7_no_header_overrides_what_a_request_is(locked: Siege, headers: str, method: str) -> None:
    answer = wire.ask(locked.http, infer_line("/v2/models/double/infer", method, headers))
    assert answer.status in (403, 405)
    assert b"outputs" not in answer.body


@pytest.mark.parametrize(
    "path",
    [
        "/v2/repository/index",
        "/v2/repository/models/double/load",
        "/v2/repository/models/double/unload",
        "/v2/repository/x/models/double/unload",
        "/v2/systemsharedmemory/region/r/register",
        "/v2/models/double/generate",
        "/v2/models/double/generate_stream",
    ],
)
def test_a7_every_verb_of_a_locked_part_is_locked(locked: Siege, path: str) -> None:
    answer = wire.post(locked.http, path, GOOD)
    assert (answer.status, answer.error) == (403, "This API is restricted, expecting header 'x-key'")


def test_a7_over_grpc_every_method_of_a_locked_part_is_locked(locked: Siege) -> None:
    for verb in ("ModelInfer", "RepositoryIndex", "RepositoryModelUnload", "ModelConfig"):
        for metadata in ([], [("triton-grpc-protocol-x-key", "wrong")], [("x-key", "secret")]):
            with pytest.raises(grpc.RpcError) as caught:
                locked.call(verb, b"", metadata=metadata)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            assert "expecting header 'triton-grpc-protocol-x-key'" in caught.value.details()
    assert locked.call("RepositoryIndex", b"", metadata=[("triton-grpc-protocol-x-key", "secret")])


def test_a7_what_is_not_locked_is_open(locked: Siege) -> None:
    assert wire.get(locked.http, "/v2/health/ready").status == 200
    assert wire.get(locked.http, "/v2/models/double").status == 200
