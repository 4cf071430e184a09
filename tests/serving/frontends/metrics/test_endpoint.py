"""GET /metrics: paths and methods, under load, and under names that no model has."""

import asyncio
import threading
from collections.abc import Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import cast

import grpc
import pytest

from tests.serving.frontends.metrics.pages import Page, Series, ask, parse, scrape
from tests.serving.live import Live, floats, infer_message
from tpx.protocol.http1.request import HttpRequest
from tpx.protocol.tensors import Buffer
from tpx.serving.distributions.settings import LatencySettings
from tpx.serving.frontends.metrics.endpoint import MetricsFrontend
from tpx.serving.frontends.metrics.models import ModelFamilies
from tpx.serving.frontends.metrics.text import Family


@pytest.mark.parametrize(
    ("method", "path", "status", "empty"),
    [
        ("GET", "/metrics", 200, False),
        ("GET", "/metrics/", 200, False),
        ("GET", "/metrics?name=x", 200, False),
        ("HEAD", "/metrics", 200, True),
        ("GET", "/", 302, True),
        ("GET", "/other", 200, True),
        ("POST", "/metrics", 405, True),
        ("POST", "/other", 405, True),
        ("DELETE", "/metrics", 405, True),
    ],
)
def test_paths_and_methods(live: Live, method: str, path: str, status: int, empty: bool) -> None:
    answer = ask(live.ports["Metrics Service"], path, method)
    assert (answer.status, not answer.text) == (status, empty)


def test_the_root_leads_to_the_page(live: Live) -> None:
    assert ask(live.ports["Metrics Service"], "/").headers["location"] == "/metrics"


def test_the_content_type_is_tritons(live: Live) -> None:
    answer = ask(live.ports["Metrics Service"])
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert answer.text.endswith("\n")


def test_a_wrong_method_is_told_the_right_ones(live: Live) -> None:
    assert ask(live.ports["Metrics Service"], method="PUT").headers["allow"] == "GET, HEAD"


def test_names_that_no_model_has_make_no_series(live: Live) -> None:
    before = scrape(live)
    for n in range(1000):
        assert live.infer_binary(f"nobody-{n}", {"x": floats([1, 2])}).status == 404
    with live.channel() as channel:
        for n in range(1000):
            with pytest.raises(grpc.RpcError):
                channel.send("ModelInfer", infer_message(f"none-{n}", {"x": floats([1, 2])}))
    assert _of_models(scrape(live)) == _of_models(before)


def test_scrapes_under_load_are_all_consistent(live: Live) -> None:
    labels = {"model": "double", "version": "1"}
    counters = ("nv_inference_request_success", "nv_inference_count", "nv_inference_queue_duration_us")
    before = scrape(live).value("nv_inference_count", **labels)
    sent, stop = [0, 0, 0], threading.Event()

    def send(which: int) -> None:
        while not stop.is_set():
            assert live.infer_binary("double", {"x": floats([1, 2])}).status == 200
            sent[which] += 1

    senders = [threading.Thread(target=send, args=(which,)) for which in range(len(sent))]
    for sender in senders:
        sender.start()
    pages = [ask(live.ports["Metrics Service"]).text for _ in range(30)]
    stop.set()
    for sender in senders:
        sender.join(20)
    rows = [[parse(text).value(name, **labels) for name in counters] for text in pages]
    for earlier, later in pairwise(rows):
        assert all(a <= b for a, b in zip(earlier, later, strict=True))
    assert rows[-1][1] > rows[0][1], "the server answered nobody while it was scraped"
    assert min(sent) > 0
    assert scrape(live).value("nv_inference_count", **labels) == before + sum(sent)


class Scrape:
    """A request for the page that notes which turn of the loop its answer has, counted by `turns`."""

    head = SimpleNamespace(method=b"GET", path=b"/metrics")

    def __init__(self, turns: list[None]) -> None:
        self._turns = turns
        self.answered: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def respond(self, status: int, headers: bytes, parts: Sequence[Buffer]) -> None:
        assert (status, headers[:12], bytes(parts[0][:6])) == (200, b"Content-Type", b"# HELP")
        self.answered.set_result(len(self._turns))


def test_many_scrapes_share_a_page_and_others_run_between_their_answers(live: Live) -> None:
    renders, turns = list[None](), list[None]()

    def count() -> Sequence[Family]:
        renders.append(None)
        return ()

    async def scrape_together() -> list[int]:
        def turn() -> None:
            turns.append(None)
            if not all(one.answered.done() for one in scrapes):
                asyncio.get_running_loop().call_soon(turn)

        models = ModelFamilies(LatencySettings(), {})
        frontend = MetricsFrontend(live.server.plane, models, [count])
        scrapes = [Scrape(turns) for _ in range(50)]
        for one in scrapes:
            frontend.serve(cast("HttpRequest", one))
        turn()
        return [await one.answered for one in scrapes]

    answered = asyncio.run_coroutine_threadsafe(scrape_together(), live.loop).result(20)
    assert len(renders) <= 2
    assert len(set(answered)) == len(answered)


def _of_models(page: Page) -> set[Series]:
    return {series for series in page.values if series.name.startswith("nv_inference")}
