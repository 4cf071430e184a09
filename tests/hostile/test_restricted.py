"""Parts of the API that need a key: no other spelling of a path leads to them."""

from collections.abc import Iterator

import pytest

from tests.hostile import wire
from tests.hostile.siege import GOOD, Siege, besieged, write_good_models

pytestmark = [pytest.mark.e2e]

LOCKED = "inference,model-repository,shared-memory,model-config"


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Siege]:
    """A server most of which needs a key."""
    folder = tmp_path_factory.mktemp("locked")
    write_good_models(folder)
    with besieged(folder, f"--http-restricted-api={LOCKED}:x-key=secret") as siege:
        yield siege


def infer_line(path: str, headers: str = "") -> bytes:
    """An inference sent to a path."""
    rest = wire.post_request("/", GOOD, headers).partition(b" HTTP/1.1")[2]
    return f"POST {path} HTTP/1.1".encode("latin-1") + rest


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
def test_a7_no_spelling_of_a_path_opens_what_is_locked(locked: Siege, path: str) -> None:
    answer = wire.ask(locked.http, infer_line(path))
    assert answer.status in (400, 403, 404)
    assert b"outputs" not in answer.body
    opened = wire.ask(locked.http, infer_line(path, headers="x-KEY: secret\r\n"))
    if opened.status == 200:
        assert answer.status == 403
        assert answer.error == "This API is restricted, expecting header 'x-key'"
