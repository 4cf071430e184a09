"""Clients that do not read: what waits for them stays small, nobody else notices, and their models stop."""

import asyncio
import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import numpy as np
import psutil
import pytest
from hpack import Encoder

from tests.protocol.http2.raw import RawPeer, grpc_headers
from tests.serving.frontends.streams import (
    STREAM,
    Events,
    Response,
    counters,
    repeat,
    repeat_body,
    request,
    stream,
    write_streaming_models,
)
from tests.serving.live import Live, binary_request, floats, reset, serving
from tests.waiting import eventually, stands
from tpx.protocol.grpc.framing import frame_message
from tpx.protocol.http2 import frames
from tpx.protocol.http2.frames import MAX_WINDOW, PREFACE, Setting

MB = 1 << 20
ENDLESS = 100_000
LONG_ID = "r" * 2000
"""Responses, each with its request's id, that would take 200 MB if they were made at once."""


@pytest.fixture
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    repository = tmp_path_factory.mktemp("models")
    write_streaming_models(repository)
    with serving(repository) as running:
        yield running


def made(live: Live, model: str = "lone") -> int:
    """Responses of a model so far, all of them."""
    return counters(live, model)["responses"]


def settled(live: Live, model: str = "lone") -> int:
    """How many it has made once it makes no more."""
    return stands(lambda: made(live, model))


@contextmanager
def little_memory(most: int) -> Iterator[None]:
    """What happens inside takes no more than `most` bytes."""
    process = psutil.Process()
    before = process.memory_info().rss
    yield
    grown = process.memory_info().rss - before
    assert grown < most, f"{grown / MB:.0f} MB"


def others_are_served(live: Live) -> None:
    answer = live.infer_binary("double", {"x": floats([1, 2])})
    assert answer.tail == floats([2, 4]).tobytes()
    with stream(live) as calls:
        calls.send(request("repeat", repeat([1, 2])), request("double", {"x": floats([3, 4])}))
        assert len(calls.rest()) == 3


@pytest.mark.slow
def test_a_reader_of_events_who_stops_holds_back_the_model_and_nobody_else(live: Live) -> None:
    body = repeat_body([1] * ENDLESS, id=LONG_ID)
    with Events(live, "lone", body, receive=4096) as client:
        client.head()
        with little_memory(40 * MB):
            count = settled(live)
        assert 0 < count < ENDLESS // 4
        others_are_served(live)
        client.until(b'"IDX":%d,' % (count - 1))
        eventually(lambda: made(live) > count)  # what was read made room
        reset(client.socket)
    eventually(lambda: counters(live, "lone")["in_flight"] == 0)
    assert counters(live, "lone")["CANCELED"] == 1
    assert live.http("POST", "/v2/models/lone/generate", repeat_body([5])).json["OUT"] == 5


@pytest.mark.slow
def test_a_reader_of_events_who_is_slow_gets_every_one_of_them(live: Live) -> None:
    count = 6000
    with Events(live, "lone", repeat_body(list(range(count)), id=LONG_ID), receive=4096) as client:
        head = client.head()
        settled(live)
        body = client.until(b"\r\n0\r\n\r\n").decode()
    assert "chunked" in head
    values = [json.loads(line[6:])["OUT"] for line in body.splitlines() if line.startswith("data: ")]
    assert values == list(range(count))


@pytest.mark.slow
async def test_a_grpc_client_that_grants_no_window_holds_back_the_model_and_nobody_else(live: Live) -> None:
    settings = {Setting.INITIAL_WINDOW_SIZE: 0}
    async with await RawPeer.connect(live.ports["GRPCInferenceService"], settings=settings) as peer:
        peer.grant(0, MAX_WINDOW - 65535)
        peer.open(1, STREAM)
        peer.send_message(1, request("lone", repeat(list(range(ENDLESS))), LONG_ID))
        await peer.sync()
        with little_memory(60 * MB):
            count = await asyncio.to_thread(settled, live)
        assert 0 < count < ENDLESS // 2
        await asyncio.to_thread(others_are_served, live)
        peer.grant(1, MB)
        await peer.sync()
        assert await asyncio.to_thread(settled, live) == count, "there is still much for it to read"
        peer.grant(1, 8 * MB)
        await peer.sync()
        assert await asyncio.to_thread(settled, live) > count
        data = bytes(peer.answers[1].data)
        size = int.from_bytes(data[1:5], "big")
        first, second = Response.of(data[5 : 5 + size]), data[5 + size :]
        assert (first.request_id, first.outputs) == (LONG_ID, {"OUT": [0], "IDX": [0]})
        size = int.from_bytes(second[1:5], "big")
        assert Response.of(second[5 : 5 + size]).outputs == {"OUT": [1], "IDX": [1]}
        peer.reset(1)
        await peer.sync()
        await asyncio.to_thread(eventually, lambda: counters(live, "lone")["in_flight"] == 0)
    assert counters(live, "lone")["CANCELED"] == 1


@pytest.mark.slow
def test_a_grpc_client_that_does_not_read_its_socket_holds_back_the_model_and_nobody_else(live: Live) -> None:
    """Its windows are wide open: the pipe is what is full."""
    message = frame_message(request("lone", repeat([1] * ENDLESS), LONG_ID))
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", live.ports["GRPCInferenceService"]))
        connection.sendall(
            PREFACE
            + frames.settings_frame({Setting.INITIAL_WINDOW_SIZE: MAX_WINDOW})
            + frames.window_update(0, MAX_WINDOW - 65535)
            + frames.frame(frames.HEADERS, frames.END_HEADERS, 1, Encoder().encode(grpc_headers(STREAM)))
        )
        for at in range(0, len(message), 16384):
            connection.sendall(frames.frame(frames.DATA, 0, 1, message[at : at + 16384]))
        with little_memory(60 * MB):
            assert 0 < settled(live) < ENDLESS // 2
        others_are_served(live)
        reset(connection)
    eventually(lambda: counters(live, "lone")["in_flight"] == 0)
    assert counters(live, "lone")["CANCELED"] == 1


async def test_requests_of_a_stream_whose_answers_nobody_reads_are_not_computed(live: Live) -> None:
    """Small requests could otherwise fill the memory with large answers."""
    wide = {"x": np.zeros((1, 64 << 10), np.float32)}
    settings = {Setting.INITIAL_WINDOW_SIZE: 0}
    async with await RawPeer.connect(live.ports["GRPCInferenceService"], settings=settings) as peer:
        peer.grant(0, MAX_WINDOW - 65535)
        peer.open(1, STREAM)
        for n in range(30):
            peer.send_message(1, request("double", wide, str(n)))
            await peer.sync()
            await asyncio.to_thread(eventually, lambda: counters(live, "double")["in_flight"] == 0)
        computed = counters(live, "double")["success"]
        assert computed < 25
        await asyncio.to_thread(others_are_served, live)
        peer.grant(1, MAX_WINDOW)
        peer.send(0, 1, 1)  # END_STREAM
        answer = await peer.answer(1, 10)
        assert answer.status == 0
        assert len(answer.data) > 30 * 4 * (64 << 10)
    assert counters(live, "double")["success"] == 30 + 2


def test_pipelined_requests_whose_answers_nobody_reads_are_not_computed(live: Live) -> None:
    whole = binary_request("double", {"x": np.zeros((1, 64 << 10), np.float32)})
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", live.http_port))
        connection.setblocking(False)
        sent = 0

        def pushed() -> int:
            """Send as much as is taken; return how much that is altogether."""
            nonlocal sent
            with suppress(BlockingIOError):
                while sent < 100 * len(whole):
                    sent += connection.send(whole[sent % len(whole) :])
            return sent

        stands(pushed)
        computed = stands(lambda: counters(live, "double")["success"])
        assert computed < 30, "the kernel's buffers and one answer"
        assert sent < 60 * len(whole)
        others_are_served(live)
        assert counters(live, "double")["success"] == computed + 2
        reset(connection)
    eventually(lambda: counters(live, "double")["in_flight"] == 0)


@pytest.mark.slow
def test_a_reader_who_takes_nothing_is_cut_off_and_frees_the_model(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    repository = tmp_path_factory.mktemp("models")
    write_streaming_models(repository)
    with (
        serving(repository, write_timeout_secs=1) as strict,
        Events(strict, "lone", repeat_body([1] * ENDLESS, id=LONG_ID), receive=4096) as client,
    ):
        client.head()
        settled(strict)
        eventually(lambda: counters(strict, "lone")["CANCELED"] == 1, 10)
        assert strict.http("POST", "/v2/models/lone/generate", repeat_body([5])).json["OUT"] == 5


@pytest.mark.slow
def test_a_reader_as_slow_as_its_model_is_not_taken_for_a_deaf_one(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """What waits for it is the same at every look, and yet it reads."""
    repository = tmp_path_factory.mktemp("models")
    write_streaming_models(repository)
    with (
        serving(repository, write_timeout_secs=2) as strict,
        Events(strict, "lone", repeat_body([1] * ENDLESS, id=LONG_ID), receive=4096) as client,
    ):
        client.head()
        settled(strict)
        for _ in range(18):
            assert client.socket.recv(20_000)
            time.sleep(0.14)
        assert counters(strict, "lone")["CANCELED"] == 0
