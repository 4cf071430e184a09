"""The page at /: who sees it, and what a person sees on it in a real browser."""

import asyncio
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.report.browser import BROWSER, chromium, opened
from tests.serving import onnx_files
from tests.serving.live import Live, serving
from tests.serving.onnx_files import write_model

BROKEN = "max_batch_size: 8 input [ { name: 'nobody' data_type: TYPE_FP32 dims: [ 1 ] } ]"
ASK = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [1.0]}]}


@pytest.fixture(scope="module")
def controlled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A server whose models a person may load and unload; one of them cannot be loaded."""
    repository = tmp_path_factory.mktemp("models")
    write_model(repository, "double", onnx_files.doubling("batch", "n"))
    write_model(repository, "<b>broken", onnx_files.doubling("batch", "n"), BROKEN)
    options = {"model_control_mode": "explicit", "load_model": ("double", "<b>broken")}
    with serving(repository, exit_on_error=False, strict_readiness=False, **options) as live:
        yield live


def test_the_page_needs_nothing_from_elsewhere_and_runs_only_its_own_script(live: Live) -> None:
    answer = live.get("/")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    html = answer.body.decode()
    assert not re.search(r"(src|href)=\"?https?:|url\(|@import", html)
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "connect-src 'self'" in policy
    assert "'unsafe" not in policy


def test_the_metrics_that_it_shows_are_those_of_the_metrics_port(live: Live) -> None:
    answer = live.get("/metrics")
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert b"process_resident_memory_bytes" in answer.body


@pytest.mark.parametrize("options", [{"http_address": "0.0.0.0"}, {"ui": False}])
def test_without_the_page_the_root_leads_to_the_api(tmp_path: Path, options: dict[str, Any]) -> None:
    write_model(tmp_path, "net", onnx_files.doubling())
    with serving(tmp_path, **options) as live:
        answer = live.get("/")
        assert (answer.status, answer.headers["location"]) == (302, "/v2/docs")
        assert live.get("/metrics").status == 404


def test_a_server_for_others_has_the_page_if_it_is_asked_to(tmp_path: Path) -> None:
    write_model(tmp_path, "net", onnx_files.doubling())
    with serving(tmp_path, http_address="0.0.0.0", ui=True, allow_metrics=False) as live:
        assert b"<title>tpx serve</title>" in live.get("/").body
        assert live.get("/metrics").status == 404


ROWS = "[...document.querySelectorAll('#models tbody tr')]"


def row(name: str) -> str:
    """The cells of a model's row."""
    return f"{ROWS}.map(row => [...row.cells].map(cell => cell.innerText)).find(row => row[0] === {name!r})"


async def look(address: str, live: Live) -> tuple[dict[str, Any], list[Any]]:
    """What a person sees who watches requests, unloads the model and looks for it."""
    stop = threading.Event()

    def keep_asking() -> None:
        while not stop.is_set():
            live.infer("double", ASK)

    asking = threading.Thread(target=keep_asking)
    asking.start()
    try:
        async with opened(address, f"http://127.0.0.1:{live.http_port}/") as page:
            shown = {"rate": await page.until(f"parseFloat({row('double')}?.[3]) > 0 && {row('double')}")}
            stop.set()
            shown["broken"] = await page.evaluate(row("<b>broken"))
            shown["errors"] = await page.evaluate("document.getElementById('errors').innerText")
            shown["server"] = await page.evaluate("document.getElementById('server').innerText")
            shown["charts"] = await page.evaluate(
                "[...document.querySelectorAll('.chart')].map(chart => chart.innerText)"
            )
            full = "[['tpx_event_loop_utilization', 0.99], ['tpx_advised_frontends', 3]]"
            shown["advice"] = await page.evaluate(f"eventLoop({{machine: new Map({full})}})")
            double = f"{ROWS}.find(row => row.innerText.startsWith('double'))"
            await page.evaluate(f"{double}.querySelector('button').click()")
            shown["unloaded"] = await page.until(f"{row('double')}?.[1] === 'unloaded' && {row('double')}")
            await page.evaluate(
                "{ const find = document.getElementById('find'); find.value = 'brok';"
                "find.dispatchEvent(new Event('input')) }"
            )
            shown["found"] = await page.evaluate("document.querySelectorAll('#models tbody tr').length")
            return shown, page.complaints
    finally:
        stop.set()
        asking.join()


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="needs chromium")
def test_a_person_sees_load_and_errors_and_unloads_a_model(controlled: Live, tmp_path: Path) -> None:
    with chromium(tmp_path) as address:
        shown, complaints = asyncio.run(look(address, controlled))
    assert complaints == []
    assert shown["server"] == "ready"
    assert shown["rate"][1] == "ready"
    assert re.fullmatch(r"\d . CPU", shown["rate"][2])
    assert re.fullmatch(r"[\d.]+ (µs|ms)", shown["rate"][4])
    assert "unexpected inference input 'nobody'" in shown["broken"][1]
    assert "<b>broken: " in shown["errors"]
    assert "iB" in next(chart for chart in shown["charts"] if chart.startswith("Memory of the server"))
    processors = next(chart for chart in shown["charts"] if chart.startswith("Processors"))
    assert re.search(r"event loop [\d.]+ ?%$", processors, re.M)
    assert shown["advice"].endswith("%: --frontends 3 would help")
    assert shown["unloaded"][10] == "Load"
    assert shown["found"] == 1


async def with_key(address: str, live: Live) -> list[Any]:
    """What the page shows before and after the key is typed."""
    async with opened(address, f"http://127.0.0.1:{live.http_port}/") as page:
        before = await page.until("!document.getElementById('key').hidden")
        await page.evaluate(
            "const form = document.getElementById('key'); form.elements.name.value = 'X-Key';"
            "form.elements.value.value = 'secret'; form.requestSubmit()"
        )
        return [
            before,
            await page.until("document.getElementById('key').hidden"),
            await page.until(row("net")),
        ]


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="needs chromium")
def test_what_a_key_restricts_is_shown_once_it_is_given(tmp_path: Path) -> None:
    write_model(tmp_path / "models", "net", onnx_files.doubling())
    restricted = ("statistics,model-repository,model-config:X-Key=secret",)
    with serving(tmp_path / "models", http_restricted_api=restricted) as live, chromium(tmp_path) as address:
        before, after, cells = asyncio.run(with_key(address, live))
    assert (before, after) == (True, True)
    assert cells[1] == "ready"
