"""Looking at a page while other things happen."""

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest

from tpx.perf.measure.scraper import PageReader, Scrape, Scraper
from tpx.perf.metrics_page import MetricsAddress, MetricsFigures
from tpx.protocol.http1.client import HttpConnector

GPU = "\n".join(
    f'nv_gpu_{name}{{gpu_uuid="g"}} 1' for name in
    ("utilization", "power_usage", "memory_used_bytes", "memory_total_bytes")
)  # fmt: skip
Scene = Callable[[Scraper], Awaitable[None]]


def played(scene: Scene, page: str = GPU, status: int = 200, **place: object) -> list[str]:
    """What was noticed while the scene was played against a page."""
    notices: list[str] = []

    answering: list[asyncio.Task[object] | None] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answering.append(asyncio.current_task())
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                body = page.encode()
                writer.write(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body))
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def run() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        fields = {"host": "127.0.0.1", "port": port, "path": "/metrics", "interval_s": 0.01} | place
        page = MetricsAddress(**fields)
        scraper = Scraper(page, HttpConnector(page.host, page.port), notices.append)
        try:
            await scene(scraper)
        finally:
            await scraper.stop()
            server.close()
            await asyncio.gather(*(task for task in answering if task is not None))

    asyncio.run(run())
    return notices


async def looked(scraper: Scraper, count: int) -> MetricsFigures:
    """What has been seen once it has looked so often."""
    for _ in range(2000):
        figures = scraper.figures(0, 2**62)
        if figures is not None and figures.scrapes >= count:
            return figures
        await asyncio.sleep(0.005)
    raise AssertionError("it looks no more")


def test_it_looks_until_it_is_stopped() -> None:
    async def scene(scraper: Scraper) -> None:
        began = time.perf_counter()
        await scraper.begin()
        figures = await looked(scraper, 3)
        assert figures.scrapes <= 2 + (time.perf_counter() - began) / 0.01
        assert figures.gpus[0].utilization == 1
        assert figures.cost_ns > 0

    assert played(scene) == []


def test_the_loop_turns_while_a_long_page_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    turns, turns_at = 0, list[int]()
    read_piece = PageReader.read_piece

    def noted(reader: PageReader, page: bytes, start: int, end: int, scrape: Scrape) -> None:
        turns_at.append(turns)
        read_piece(reader, page, start, end, scrape)

    def turn() -> None:
        nonlocal turns
        turns += 1
        asyncio.get_running_loop().call_soon(turn)

    async def scene(scraper: Scraper) -> None:
        turn()
        await scraper.begin()

    monkeypatch.setattr(PageReader, "read_piece", noted)
    assert played(scene, GPU + "\nnv_inference_count 1" * 5000) == []
    assert len(turns_at) > 3
    assert len(set(turns_at)) == len(turns_at)


def test_each_level_has_its_own_looks() -> None:
    async def scene(scraper: Scraper) -> None:
        await scraper.begin()
        await scraper.begin()
        figures = scraper.figures(0, 2**62)
        assert figures is not None
        assert figures.scrapes == 1

    played(scene, interval_s=60.0)


def test_a_page_without_gpus_is_noticed_once() -> None:
    async def scene(scraper: Scraper) -> None:
        await scraper.scrape()
        await scraper.scrape()

    assert played(scene, page="up 1") == [
        "Unable to parse 'nv_gpu_utilization' metric. The server reports no GPU."
    ]


def test_a_series_that_is_not_there_is_named() -> None:
    async def scene(scraper: Scraper) -> None:
        await scraper.scrape()

    (notice,) = played(scene, wanted=("nothing",))
    assert notice.startswith("--metric nothing: no series of 127.0.0.1:")


def test_an_endpoint_slower_than_the_interval_is_noticed() -> None:
    async def scene(scraper: Scraper) -> None:
        await scraper.begin()
        await looked(scraper, 2)

    (notice,) = played(scene, interval_s=1e-6)
    assert notice.startswith("Triton metrics endpoint latency (")
    assert notice.endswith("Please try a larger querying interval via `--metrics-interval`.")


def test_what_is_no_page_is_noticed_and_counted() -> None:
    async def scene(scraper: Scraper) -> None:
        await scraper.scrape()
        await scraper.scrape()
        assert scraper.figures(0, 1) is None

    (notice,) = played(scene, status=404)
    assert notice.endswith("/metrics: HTTP 404; the run continues without metrics")


@pytest.mark.parametrize("path", ["/metrics"])
def test_nobody_there_is_noticed_and_no_error(path: str) -> None:
    async def scene(scraper: Scraper) -> None:
        await scraper.begin()

    (notice,) = played(scene, port=9, path=path)
    assert "cannot connect to 127.0.0.1:9" in notice
