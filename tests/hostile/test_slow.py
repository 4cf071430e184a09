"""Clients that take their time: each is waited for as long as it was told, and answered where that can be.

They all take it at the same time, or these tests would.
"""

import asyncio
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

from tests.hostile import wire
from tests.hostile.siege import GOOD, SERVICE, Siege, besieged, write_good_models
from tests.hostile.test_crowds import CALL
from tests.hostile.test_http2 import inference
from tests.protocol.http2.raw import RawPeer
from tpx.protocol.grpc.framing import frame_message
from tpx.protocol.grpc.status import Status
from tpx.protocol.http2 import frames
from tpx.protocol.http2.frames import DATA, PREFACE

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

LIMITS = (
    "--http-header-timeout-secs=1",
    "--http-body-timeout-secs=1",
    "--http-idle-timeout-secs=2",
    "--grpc-preface-timeout-secs=1",
    "--grpc-message-timeout-secs=1",
)
PATIENCE_S = 7
"""The limit, seconds until somebody looks, and room for a busy machine."""


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Siege]:
    """A server that waits for a second or two."""
    folder = tmp_path_factory.mktemp("impatient")
    write_good_models(folder)
    with besieged(folder, *LIMITS) as siege:
        siege.alive()
        yield siege


POST = b"POST /v2/models/double/infer HTTP/1.1\r\nHost: localhost\r\n"
BODIES = {
    "a length and nothing": POST + b"Content-Length: 100\r\n\r\n",
    "half a body": wire.post_request("/v2/models/double/infer", GOOD)[:-5],
    "a large body": POST + b"Content-Length: 8000000\r\n\r\n" + bytes(1000),
    "half a chunk": POST + b"Transfer-Encoding: chunked\r\n\r\n5\r\nab",
    "no last chunk": POST + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n",
    "an expectation": POST + b"Expect: 100-continue\r\nContent-Length: 100\r\n\r\n",
}
HEADS = {
    "a head that stops": (POST, b""),
    "a head that is good so far": (b"", POST),
    "a head with a long header": (b"GET /v2 HTTP/1.1\r\nHost: localhost\r\nX-Long: ", b"x" * 100),
}
"""What is sent at once, and what byte by byte."""
CALLS = {
    "a preface that does not come": b"",
    "half a preface": PREFACE[:10],
    "half a frame": PREFACE + frames.settings_frame({}) + CALL[:-5],
    "half a block of headers": PREFACE + frames.settings_frame({}) + CALL[:30],
}
MESSAGES = {"no message": 0, "half a prefix": 3, "a prefix": 5, "half a message": 20}


def silent_body(siege: Siege, data: bytes) -> None:
    """An announced body is answered 408 when it does not come."""
    with wire.connect(siege.http) as sock:
        sock.sendall(data)
        if b"Expect" in data:
            assert sock.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        answer = wire.read_answer(sock, until_closed=True)
    assert (answer.status, answer.rest) == (408, b"")
    assert "no byte of the announced body for 1 s" in answer.error


def drip(sock: socket.socket, data: bytes) -> None:
    """Send a byte now and then, until there is an answer or an end."""
    sock.settimeout(0.15)
    for at in range(len(data)):
        sock.sendall(data[at : at + 1])
        with suppress(TimeoutError):
            sock.recv(1, socket.MSG_PEEK)
            break
    sock.settimeout(wire.PATIENCE_S)


def dripping_head(siege: Siege, head: tuple[bytes, bytes]) -> None:
    """A head that does not end is answered; a byte now and then does not put off its deadline."""
    with wire.connect(siege.http) as sock:
        sock.sendall(head[0])
        drip(sock, head[1])
        answer = wire.read_answer(sock, until_closed=True)
    assert (answer.status, answer.rest) == (408, b"")
    assert "no complete request head within 1 s" in answer.error


def dripping_preface(siege: Siege) -> None:
    """A byte now and then does not put off the deadline of a connection's beginning."""
    with wire.connect(siege.grpc) as sock:
        drip(sock, PREFACE)
        assert wire.read_rest(sock) is not None


def silent_connection(siege: Siege, data: bytes) -> None:
    """A connection in the middle of something is closed."""
    with wire.connect(siege.grpc) as sock:
        sock.sendall(data)
        assert wire.read_rest(sock) is not None


def silent_call(siege: Siege, sent: int) -> None:
    """A call whose message comes in part, in whole frames, ends with a status."""

    async def scene() -> None:
        async with await RawPeer.connect(siege.grpc) as peer:
            peer.open(1, SERVICE + "ModelInfer")
            if sent:
                peer.send(DATA, 0, 1, frame_message(inference())[:sent])
            answer = await peer.answer(1, timeout_s=PATIENCE_S)
            assert answer.status == Status.DEADLINE_EXCEEDED
            assert answer.blocks[-1][b"grpc-message"].startswith(b"no byte of the request message for 1 s")

    asyncio.run(scene())


def silent_after_an_answer(siege: Siege) -> None:
    """A connection without a request is closed, without a word."""
    with wire.connect(siege.http) as sock:
        sock.sendall(b"GET /v2 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answer = wire.read_answer(sock, until_closed=True)
    assert (answer.status, answer.rest) == (200, b"")


Outcomes = dict[str, "Future[None]"]


@pytest.fixture(scope="module")
def outcomes(impatient: Siege) -> Iterator[Outcomes]:
    """What becomes of every slow client."""
    with ThreadPoolExecutor(32) as pool:
        plays: list[tuple[Callable[..., None], dict[str, Any]]] = [
            (silent_body, BODIES),
            (dripping_head, HEADS),
            (silent_connection, CALLS),
            (silent_call, MESSAGES),
        ]
        started = {
            what: pool.submit(play, impatient, arg) for play, args in plays for what, arg in args.items()
        }
        started["after an answer"] = pool.submit(silent_after_an_answer, impatient)
        started["a dripping preface"] = pool.submit(dripping_preface, impatient)
        impatient.alive()
        yield started
    impatient.alive()


@pytest.mark.parametrize("what", BODIES)
def test_h2_a_body_that_never_comes_is_answered_408(outcomes: Outcomes, what: str) -> None:
    outcomes[what].result()


@pytest.mark.parametrize("what", MESSAGES)
def test_h2_a_message_that_never_comes_ends_its_call(outcomes: Outcomes, what: str) -> None:
    outcomes[what].result()


@pytest.mark.parametrize("what", HEADS)
def test_h3_a_head_that_drips_in_is_answered_408(outcomes: Outcomes, what: str) -> None:
    outcomes[what].result()


@pytest.mark.parametrize("what", [*CALLS, "a dripping preface"])
def test_h3_half_a_beginning_ends_its_connection(outcomes: Outcomes, what: str) -> None:
    outcomes[what].result()


def test_a_connection_that_says_nothing_between_requests_is_closed(outcomes: Outcomes) -> None:
    outcomes["after an answer"].result()
