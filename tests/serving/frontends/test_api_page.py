"""The page of the API: complete, self-contained, and a real browser sends a request from it."""

import asyncio
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tests.report.browser import BROWSER, chromium, opened
from tests.serving.backends.llamacpp.models import write_tiny
from tests.serving.live import Live, serving
from tpx import examples
from tpx.serving.frontends.api_page import page_view
from tpx.serving.frontends.page import build_page

VOID = {"meta", "link", "input", "br"}


class Reader(HTMLParser):
    """Ids, links and texts of a page, and whether every tag was closed in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.texts: list[str] = []
        self.labels: list[str] = []
        self._open: list[str] = []
        self.feed(html)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.ids += [values["id"]] if "id" in values else []
        self.links += [values[name] for name in ("href", "src", "action") if name in values]
        self.labels += [values["for"]] if tag == "label" else []
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag, f"{tag} closes something else, line {self.getpos()}"

    def handle_data(self, data: str) -> None:
        self.texts.append(data.strip())


@pytest.fixture(scope="module")
def html(live: Live) -> str:
    answer = live.get("/v2/docs")
    assert (answer.status, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    return answer.body.decode()


def test_every_operation_and_every_schema_of_the_document_is_on_it(live: Live, html: str) -> None:
    told = live.get("/v2/openapi.json").json
    page = Reader(html)
    for path, item in told["paths"].items():
        assert path in page.texts
        for operation in item.values():
            assert operation["operationId"].partition("_")[0] in page.ids
            assert operation["summary"] in page.texts
    assert {f"schema-{name}" for name in told["components"]["schemas"]} <= set(page.ids)


def test_links_lead_somewhere_on_it_and_labels_to_their_fields(html: str) -> None:
    page = Reader(html)
    assert len(page.ids) == len(set(page.ids))
    assert {link[1:] for link in page.links if link.startswith("#")} <= set(page.ids)
    assert set(page.labels) <= set(page.ids)


def test_it_needs_nothing_from_elsewhere(live: Live, html: str) -> None:
    page = Reader(html)
    assert [link for link in page.links if not link.startswith("#")] == ["data:,", "/v2/openapi.json"]
    assert not re.search(r"https?:|url\(|@import|//[a-z]", html.replace("// ", ""))
    policy = live.get("/v2/docs").headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "'unsafe" not in policy


def test_what_the_document_says_cannot_become_markup(live: Live) -> None:
    told = live.get("/v2/openapi.json").json
    told["info"]["title"] = "<script>alert(1)</script>"
    _, html = build_page("api_docs", title="", page=page_view(told), chats=["<b>"])
    assert b"<script>alert" not in html
    assert page_view(told).title == "<script>alert(1)</script>"


# in a browser


async def first_send(address: str, url: str) -> dict[str, Any]:
    """Press Send without typing anything; what the page then shows, and its snippets."""
    async with opened(address, url) as page:
        await page.until("document.getElementById('infer-body').value.includes('datatype')")
        shown = {"model": await page.evaluate("document.getElementById('infer-model').value")}
        shown["answer"] = await page.until(_sent("infer"))
        for kind in ("curl", "python"):
            shown[kind] = await page.evaluate(f"document.querySelector('#infer .{kind}').textContent")
            shown[f"live {kind}"] = await page.evaluate(
                f"document.querySelector('#serverMetadata .{kind}').textContent"
            )
        await page.evaluate("document.getElementById('infer-model').value = 'bool'")
        await page.evaluate("document.getElementById('infer-model').dispatchEvent(new Event('change'))")
        shown["changed"] = await page.until(
            "document.getElementById('infer-body').value.includes('BOOL') && "
            "document.querySelector('#infer .python').textContent"
        )
        assert page.complaints == [], shown
        return shown


async def browse(address: str, url: str) -> tuple[dict[str, Any], list[Any]]:
    """Send three requests from the page; what it then shows, and what the browser complained of."""
    async with opened(address, url) as page:
        shown = {"health": await page.until(_sent("serverLive"))}
        await page.evaluate("document.getElementById('infer-model').value = 'double'")
        await page.evaluate("document.getElementById('infer-body').value = ''")
        await page.evaluate("document.querySelector('#infer .fill').click()")
        await page.until("document.getElementById('infer-body').value.includes('[0]')")
        shown["infer"] = await page.until(_sent("infer"))
        await page.evaluate("document.getElementById('generateStream-model').value = 'bool'")
        await page.evaluate("document.getElementById('generateStream-body').value = '{\"x\": true}'")
        shown["stream"] = await page.until(_sent("generateStream"))
        light = await page.evaluate("getComputedStyle(document.body).backgroundColor")
        dark = [{"name": "prefers-color-scheme", "value": "dark"}]
        await page.call("Emulation.setEmulatedMedia", features=dark)
        shown["colors"] = {light, await page.evaluate("getComputedStyle(document.body).backgroundColor")}
        await page.evaluate(
            "const find = document.getElementById('find'); find.value = 'unload';"
            "find.dispatchEvent(new Event('input'))"
        )
        shown["found"] = await page.evaluate(
            "[...document.querySelectorAll('nav li')].filter(item => item.offsetHeight).length"
        )
        return shown, page.complaints


async def talk(address: str, url: str) -> dict[str, Any]:
    """Chat with a language model, and stop its second answer; what the page shows of both."""
    log = "document.querySelectorAll('#chat-log p')"
    form = "document.getElementById('chat-form')"
    say = "document.getElementById('chat-text').value = {!r};" + f"{form}.requestSubmit()"
    async with opened(address, url) as page:
        shown = {"models": await page.evaluate("document.getElementById('chat-model').innerText")}
        await page.evaluate(
            """window.grown = new Set(); new MutationObserver(() => {
                 const last = document.querySelector('#chat-log p:last-child');
                 if (last) grown.add(last.textContent.length);
               }).observe(document.getElementById('chat-log'), { childList: true, subtree: true })"""
        )
        # slow enough that an answer comes in pieces on any machine, and that the second cannot be complete
        await page.call("Network.enable")
        await page.call(
            "Network.emulateNetworkConditions",
            offline=False,
            latency=0,
            downloadThroughput=20_000,
            uploadThroughput=-1,
        )
        await page.evaluate(
            """window.plain = window.fetch; window.tokens = 50; window.fetch = (url, given) => plain(
                 url, { ...given, body: JSON.stringify(
                   { ...JSON.parse(given.body), ignore_eos: true, max_tokens: tokens }) })"""
        )
        await page.evaluate(say.format("And it came to pass"))
        shown["answer"] = await page.until(
            f"{log}.length === 2 && / s$/.test({log}[1].innerText) && {log}[1].innerText"
        )
        shown["steps"] = await page.evaluate("grown.size")
        await page.evaluate(
            """window.tokens = 900; new MutationObserver((_, looking) => {
                 if (document.querySelectorAll('#chat-log p')[3]?.textContent.length) {
                   looking.disconnect();
                   document.getElementById('chat-stop').click();
                 }
               }).observe(document.getElementById('chat-log'), { childList: true, subtree: true })"""
        )
        await page.evaluate(say.format("And then"))
        shown["stopped"] = await page.until(f"/ s$/.test({log}[3].innerText) && {log}[3].innerText")
        shown["ready"] = await page.evaluate("document.getElementById('chat-stop').disabled")
        await page.evaluate("document.getElementById('chat-new').click()")
        shown["cleared"] = await page.evaluate(f"{log}.length")
        assert page.complaints == []
        return shown


def _sent(operation: str) -> str:
    """Sends the form of an operation once; true, with the text, when its result is there."""
    return f"""(() => {{
      const card = document.getElementById({operation!r}), form = card.querySelector("form");
      if (!form.dataset.sent) {{ form.dataset.sent = 1; form.requestSubmit(); }}
      const text = card.querySelector(".result").innerText;
      return / ms/.test(text) && text;
    }})()"""


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="needs chromium")
def test_a_person_can_send_requests_from_it(live: Live, tmp_path: Path) -> None:
    with chromium(tmp_path) as address:
        shown, complaints = asyncio.run(browse(address, f"http://127.0.0.1:{live.http_port}/v2/docs"))
    assert complaints == []
    assert shown["health"].startswith("200 OK no body")
    assert '"model_name": "double"' in shown["infer"]
    assert shown["infer"].startswith("200 OK application/json")
    assert 'data: {"model_name":"bool"' in shown["stream"]
    assert len(shown["colors"]) == 2
    assert shown["found"] == 1


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="needs chromium")
def test_the_first_send_succeeds_and_its_snippets_run(live: Live, tmp_path: Path) -> None:
    with chromium(tmp_path) as address:
        shown = asyncio.run(first_send(address, f"http://127.0.0.1:{live.http_port}/v2/docs"))
    assert shown["answer"].startswith("200 OK application/json")
    assert f'"model_name": "{shown["model"]}"' in shown["answer"]
    for words in (
        ["bash", "-c", shown["curl"]],
        [sys.executable, "-c", shown["python"]],
        [sys.executable, "-c", shown["changed"]],
    ):
        done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60)
        assert "model_name" in done.stdout, words
    assert shown["live curl"] == f"curl 'http://127.0.0.1:{live.http_port}/v2'"
    assert shown["live python"].startswith("import requests\n")


def test_models_that_a_plain_request_suits_come_first(tmp_path: Path) -> None:
    examples.write(tmp_path, ["accumulator", "alexnet", "identity"])
    with serving(tmp_path) as live:
        told = live.get("/v2/openapi.json").json
    assert list(told["components"]["parameters"]["model"]["examples"]) == [
        "identity",
        "accumulator",
        "alexnet",
    ]


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="needs chromium")
def test_a_person_can_chat_there_and_stop_an_answer(tmp_path: Path) -> None:
    repository = tmp_path / "models"
    write_tiny(repository, "tiny", threads=1, n_parallel=1)
    write_tiny(repository, "vectors", threads=1, embeddings="true", pooling="mean")
    with serving(repository) as live, chromium(tmp_path / "profile") as address:
        shown = asyncio.run(talk(address, f"http://127.0.0.1:{live.http_port}/v2/docs"))
    assert shown["models"].split() == ["tiny"]
    assert re.search(r"length, 50 tokens, [0-9.]+ s$", shown["answer"])
    assert shown["steps"] > 3, "the text appears at once"
    assert re.search(r"stopped, [0-9.]+ s$", shown["stopped"])
    assert shown["ready"] is True
    assert shown["cleared"] == 0


def test_a_server_without_a_language_model_has_no_chat(html: str) -> None:
    assert "chat-form" not in Reader(html).ids
