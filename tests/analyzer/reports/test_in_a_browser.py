"""The report in a real browser: it sorts, filters, downloads, knows the dark, fits a phone."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.analyzer.reports.rendered import view_of
from tests.report.browser import BROWSER, Browser, chromium, opened
from tpx.analyzer.options.measuring import ProfileOutputSpec
from tpx.analyzer.reports.files import write_reports
from tpx.analyzer.results.run import Run

Replay = Callable[..., Run]

FIRST = "document.querySelector('#model-0-configurations tbody tr:not([hidden])').cells[0].innerText.trim()"
SHOWN = (
    "[...document.querySelectorAll('#model-0-configurations tbody tr')].filter(r => r.offsetHeight).length"
)
FIELD = "document.querySelector('.filter input')"
CHOICE = "document.querySelector('.filter select')"


async def browse(address: str, page: Path) -> tuple[dict[str, Any], list[Any]]:
    """What a person sees who sorts and filters; and what the browser complained of."""
    async with opened(address, page.as_uri()) as browser:
        await browser.until("!!document.querySelector('.filter')")
        shown = await _use(browser)
        await _look(browser, shown)
        return shown, browser.complaints


async def _use(browser: Browser) -> dict[str, Any]:
    shown: dict[str, Any] = {"first": await browser.evaluate(FIRST), "kept": await browser.evaluate(SHOWN)}
    change = "dispatchEvent(new Event('change'))"
    await browser.evaluate(f"{CHOICE}.value = ''; {CHOICE}.{change}")
    shown["all"] = await browser.evaluate(SHOWN)
    header = "document.querySelectorAll('#model-0-configurations thead button')"
    await browser.evaluate(f"[...{header}].find(b => b.innerText.startsWith('infer/s')).click()")
    await browser.evaluate(f"[...{header}].find(b => b.innerText.startsWith('infer/s')).click()")
    shown["slowest"] = await browser.evaluate(FIRST)
    shown["direction"] = await browser.evaluate("document.querySelector('[aria-sort]').ariaSort")
    await browser.evaluate(f"{FIELD}.value = 'config_4 5:gpu'; {FIELD}.dispatchEvent(new Event('input'))")
    shown["found"] = await browser.evaluate(SHOWN)
    shown["counted"] = await browser.evaluate("document.querySelector('.filter output').innerText")
    shown["buttons"] = await browser.evaluate(
        "[...document.querySelectorAll('.downloads button')].map(b => b.innerText)"
    )
    return shown


async def _look(browser: Browser, shown: dict[str, Any]) -> None:
    color = "getComputedStyle(document.body).backgroundColor"
    light = await browser.evaluate(color)
    dark = [{"name": "prefers-color-scheme", "value": "dark"}]
    await browser.call("Emulation.setEmulatedMedia", features=dark)
    shown["colors"] = {light, await browser.evaluate(color)}
    desk = {"width": 1400, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    await browser.call("Emulation.setDeviceMetricsOverride", **desk)
    # the words of an option's value: those that fit are on one line
    shown["broken"] = await browser.evaluate(
        "[...document.querySelectorAll('dd')].filter(d => d.innerText.length < 24 && d.offsetHeight > 30)"
        ".map(d => d.innerText)"
    )
    table = "document.querySelector('#model-0-configurations').parentElement"
    shown["cut_px"] = await browser.evaluate(f"{table}.scrollWidth - {table}.clientWidth")
    phone = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    await browser.call("Emulation.setDeviceMetricsOverride", **phone)
    shown["overflow"] = await browser.evaluate("document.documentElement.scrollWidth - 390")
    await browser.call("Emulation.setEmulatedMedia", media="print")
    shown["printed"] = await browser.evaluate(SHOWN)


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="needs chromium")
def test_a_person_can_sort_and_filter_and_read_it_in_the_dark_and_on_a_phone(
    replay: Replay, tmp_path: Path
) -> None:
    page = tmp_path / "report.html"
    write_reports(
        view_of(replay(), export_path=tmp_path), ProfileOutputSpec(html=page, skip_detailed_reports=True)
    )
    with chromium(tmp_path / "profile") as address:
        shown, complaints = asyncio.run(browse(address, page))
    assert complaints == []
    assert shown["first"] == "alexnet_config_4"
    assert (shown["kept"], shown["all"]) == (5, 6)
    assert shown["slowest"].startswith("alexnet_config_0")
    assert shown["direction"] == "ascending"
    assert (shown["found"], shown["counted"]) == (1, "1 of 6 rows")
    assert shown["buttons"][0] == "Download JSON"
    assert len(shown["colors"]) == 2
    assert shown["broken"] == []
    assert shown["cut_px"] == 0
    assert shown["overflow"] <= 0
    assert shown["printed"] == 6
