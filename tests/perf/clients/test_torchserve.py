"""TorchServe, as its inference API is documented: a form to /predictions, errors as JSON."""

import email
import email.policy
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.answering import Request, answering
from tests.perf.clients.running import level
from tpx.argv import from_argv
from tpx.errors import UsageError
from tpx.perf.clients.torchserve import form
from tpx.perf.options import SessionSpec


@dataclass(frozen=True, slots=True)
class Seen:
    """A request: its path, and its form's one field."""

    path: str
    name: str
    content: Any
    file: str


class TorchServe:
    """Answers as TorchServe does."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []

    def answer(self, request: Request) -> tuple[int, bytes]:
        head = f"Content-Type: {request.headers['Content-Type']}\r\n\r\n".encode()
        message = email.message_from_bytes(head + request.body, policy=email.policy.HTTP)
        (part,) = message.iter_parts()
        name = part.get_param("name", header="content-disposition")
        content = part.get_payload(decode=True)
        self.seen.append(Seen(request.path, str(name), content, str(part.get_filename())))
        if request.path.startswith("/predictions/resnet"):
            return 200, b'{"tabby": 0.5}'
        return 404, b'{"code": 404, "type": "ModelNotFoundException", "message": "Model not found: x"}'


@contextmanager
def torchserve(port: int = 0) -> Iterator[tuple[str, list[Seen]]]:
    """A running server: host:port, and what it has seen."""
    server = TorchServe()
    with answering(server.answer, port) as url:
        yield url, server.seen


KIND = ("--service-kind", "torchserve", "--request-count", "4")


@pytest.mark.slow
def test_the_file_that_the_data_names_is_sent_in_a_form(tmp_path: Path) -> None:
    picture = tmp_path / 'kit"ten.jpg'
    picture.write_bytes(b"\xff\xd8\r\n--not-the-end\r\npicture")
    (tmp_path / "data.json").write_text(json.dumps({"data": [{"TORCHSERVE_INPUT": [str(picture)]}]}))
    with torchserve() as (url, seen):
        result = level(*KIND, "-m", "resnet-18", "-u", url, "--input-data", str(tmp_path / "data.json"))
    assert (result.requests, result.failed) == (4, 0)
    assert seen == [Seen("/predictions/resnet-18", "data", picture.read_bytes(), 'kit"ten.jpg')] * 4


@pytest.mark.slow
def test_data_that_is_no_file_is_sent_itself_and_the_version_is_in_the_path() -> None:
    with torchserve() as (url, seen):
        level(*KIND, "-m", "resnet", "-x", "2.0", "-u", url, "--string-data", "some words")
    assert (seen[0].path, seen[0].content) == ("/predictions/resnet/2.0", b"some words")


def test_an_error_has_the_servers_words() -> None:
    with torchserve() as (url, _):
        (error,) = level(*KIND, "-m", "x", "-u", url).errors
    assert (error.code, error.count, error.message) == ("HTTP 404", 4, "Model not found: x")


def test_its_own_port_is_the_default() -> None:
    assert from_argv(SessionSpec, ["-m", "x", *KIND]).address == "localhost:8080"


def test_data_that_would_end_the_form_is_refused() -> None:
    boundary = form(b"").split(b"\r\n")[0]
    with pytest.raises(UsageError, match="the line that ends a form"):
        form(b"x\r\n" + boundary)
