"""Pages of other sites, and names that are not this machine's: what browsers may do with a server."""

import asyncio
import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.report.browser import BROWSER, Browser, chromium
from tests.serving import onnx_files
from tests.serving.live import Live, serving
from tests.serving.onnx_files import write_model
from tpx.errors import UsageError
from tpx.protocol.handshakes import is_local
from tpx.protocol.http1.head import parse_request_head
from tpx.serving.frontends.browsers import BrowserPolicy
from tpx.serving.frontends.http_verbs import HttpRefusal

LOCAL = BrowserPolicy.of("127.0.0.1", (), ())
INFER = "/v2/models/double/infer"
BODY = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [2]}]}


def refused(policy: BrowserPolicy, method: str, *lines: str) -> bool:
    head = parse_request_head("\r\n".join([f"{method} {INFER} HTTP/1.1", *lines, "", ""]).encode())
    try:
        policy.check(head)
    except HttpRefusal:
        return True
    return False


def test_a_refusal_names_the_option_that_lifts_it() -> None:
    for lines, option in (("Host: evil.example", "hosts"), ("Host: localhost\r\nOrigin: null", "origins")):
        head = parse_request_head(f"POST {INFER} HTTP/1.1\r\n{lines}\r\n\r\n".encode())
        with pytest.raises(HttpRefusal, match=f"--allowed-{option}") as caught:
            LOCAL.check(head)
        assert caught.value.status == 403


@pytest.mark.parametrize(
    ("host", "known"),
    [
        ("localhost:8000", True),
        ("LOCALHOST", True),
        ("app.localhost:1", True),
        ("127.0.0.1:8000", True),
        ("[::1]:8000", True),
        ("192.168.1.7", True),
        ("localhost.:8000", True),
        ("evil.example", False),
        ("localhost.evil.example:8000", False),
        ("127.0.0.1.evil.example", False),
        ("1.2.3", False),
        ("gateway", False),
        ("", False),
    ],
)
def test_an_endpoint_of_this_machine_is_known_by_its_names_only(host: str, known: bool) -> None:
    if host:
        assert refused(LOCAL, "GET", f"Host: {host}") is not known
    assert not refused(BrowserPolicy.of("0.0.0.0", (), ()), "GET", f"Host: {host}")


def test_names_can_be_added_and_are_then_checked_at_any_address() -> None:
    for address in ("127.0.0.1", "0.0.0.0"):
        policy = BrowserPolicy.of(address, ("API.example", ".corp.example"), ())
        for host in ("api.example:80", "corp.example", "a.b.corp.example", "10.0.0.1", "localhost"):
            assert not refused(policy, "POST", f"Host: {host}")
        for host in ("b.api.example", "evilcorp.example", "example"):
            assert refused(policy, "POST", f"Host: {host}")
    assert not refused(BrowserPolicy.of("127.0.0.1", ("*",), ()), "POST", "Host: any.example")


OTHER, OWN = "Origin: http://evil.example", "Origin: http://localhost:8000"


@pytest.mark.parametrize(
    ("method", "lines", "refusal"),
    [
        ("POST", (), False),  # no browser
        ("POST", (OWN,), False),
        ("POST", (OWN, "Sec-Fetch-Site: same-origin"), False),
        ("POST", ("Origin: https://gateway.example", "Sec-Fetch-Site: same-origin"), False),  # behind a proxy
        ("POST", ("Sec-Fetch-Site: none",), False),
        ("POST", (OTHER,), True),
        ("POST", (OTHER, "Sec-Fetch-Site: cross-site"), True),
        ("POST", ("Sec-Fetch-Site: cross-site",), True),
        ("POST", ("Origin: http://localhost:3000", "Sec-Fetch-Site: same-site"), True),
        ("POST", ("Origin: null",), True),
        ("DELETE", (OTHER,), True),
        ("GET", (OTHER, "Sec-Fetch-Site: cross-site"), False),  # the page cannot read the answer
        ("HEAD", (OTHER,), False),
    ],
)
def test_a_page_of_another_origin_cannot_post(method: str, lines: tuple[str, ...], refusal: bool) -> None:
    assert refused(LOCAL, method, "Host: localhost:8000", *lines) is refusal


@pytest.mark.parametrize("origin", ["evil.example", "http://a/b", "http://", "://a"])
def test_an_origin_that_is_none_is_a_mistake(origin: str) -> None:
    with pytest.raises(UsageError, match="--allowed-origins"):
        BrowserPolicy.of("127.0.0.1", (), (origin,))


def test_addresses_that_only_this_machine_reaches() -> None:
    assert [is_local(each) for each in ("localhost", "127.0.0.2", "::1", "0.0.0.0", "::", "10.0.0.1")] == [
        True, True, True, False, False, False,
    ]  # fmt: skip


@pytest.fixture(scope="module")
def page() -> Iterator[int]:
    """The port of a site that is not ours; all its pages are empty."""

    class Empty(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Empty) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


@contextmanager
def started(folder: Path, **options: Any) -> Iterator[Live]:
    write_model(folder, "double", onnx_files.doubling("batch", "n"))
    with serving(folder, model_control_mode="explicit", load_model=("double",), **options) as live:
        yield live


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with started(tmp_path_factory.mktemp("models")) as live:
        yield live


@pytest.fixture(scope="module")
def open_to_page(tmp_path_factory: pytest.TempPathFactory, page: int) -> Iterator[Live]:
    """A server that pages of one site may use."""
    origin = f"http://evil.example:{page}"
    flag = "model-repository:X-Key=secret"
    options = {"allowed_origins": (origin,), "http_restricted_api": (flag,)}
    with started(tmp_path_factory.mktemp("models"), **options) as live:
        yield live


def test_refusals_come_before_the_body_and_on_the_metrics_port_too(closed: Live) -> None:
    head = f"POST {INFER} HTTP/1.1\r\nHost: localhost\r\nOrigin: http://evil.example\r\n"
    with closed.raw_http() as sock:
        sock.sendall(f"{head}Content-Length: 1000000\r\n\r\n".encode())
        assert sock.recv(1000).startswith(b"HTTP/1.1 403 ")
    for port, path in ((closed.http_port, "/v2/docs"), (closed.ports["Metrics Service"], "/metrics")):
        for host, status in (("evil.example", 403), ("localhost", 200)) * 2:  # the last are known heads
            connection = HTTPConnection("127.0.0.1", port, timeout=10)
            connection.request("GET", path, headers={"Host": host})
            answer = connection.getresponse()
            assert (answer.status, b"'evil.example'" in answer.read()) == (status, status == 403)
            connection.close()


def test_a_preflight_is_answered_only_for_pages_that_are_allowed(open_to_page: Live, page: int) -> None:
    asked = {
        "Origin": f"http://evil.example:{page}",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "content-type, x-key",
        "Access-Control-Request-Private-Network": "true",
    }
    for path in (INFER, "/v2/repository/models/m/load"):  # a preflight carries no key
        answer = open_to_page.http("OPTIONS", path, headers=asked)
        assert answer.status == 200
        told = {name: value for name, value in answer.headers.items() if name.startswith("access-control")}
        assert told == {
            "access-control-allow-origin": asked["Origin"],
            "access-control-allow-methods": "POST",
            "access-control-allow-headers": "content-type, x-key",
            "access-control-allow-private-network": "true",
            "access-control-expose-headers": "Inference-Header-Content-Length",
            "access-control-max-age": "600",
        }
    other = {**asked, "Origin": "http://other.example"}
    assert "access-control-allow-origin" not in open_to_page.http("OPTIONS", INFER, headers=other).headers
    assert open_to_page.http("OPTIONS", "/nothing", headers=asked).status == 404


def test_errors_and_repeated_answers_can_be_read_by_an_allowed_page(open_to_page: Live, page: int) -> None:
    origin = f"http://evil.example:{page}"
    for body, status in ((BODY, 200), (BODY, 200), ({}, 400)):
        answer = open_to_page.infer("double", body, Origin=origin)
        assert (answer.status, answer.headers["access-control-allow-origin"]) == (status, origin)
        assert answer.headers["vary"] == "Origin"
    assert "access-control-allow-origin" not in open_to_page.infer("double", BODY).headers


ATTACK = """
fetch({url!r}, {{method: 'POST', mode: {mode!r}, body: {body!r}, headers: {headers}}})
    .then(answer => answer.text()).then(text => 'read ' + text, error => 'failed')
"""


async def visited(address: str, url: str, script: str) -> str:
    """What a script gives in a page of this address."""
    async with aiohttp.ClientSession() as session:
        async with session.get(f"{address}/json/list") as answer:
            tabs = json.loads(await answer.text())
        tab = next(tab for tab in tabs if tab["type"] == "page")
        async with session.ws_connect(tab["webSocketDebuggerUrl"]) as socket:
            browser = Browser(socket)
            await browser.call("Page.navigate", url=url)
            await browser.until(f"document.readyState === 'complete' && location.href.startsWith({url!r})")
            return str(await browser.evaluate(script))


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="needs chromium")
def test_in_a_browser_only_allowed_pages_reach_the_server(
    closed: Live, open_to_page: Live, page: int, tmp_path: Path
) -> None:
    wrote = tmp_path / "the page's code ran"
    model = f"open({str(wrote)!r}, 'w').close()".encode()
    config = json.dumps({"backend": "python", "max_batch_size": 0})
    load = json.dumps({"parameters": {"config": config, "file:1/model.py": base64.b64encode(model).decode()}})

    def attack(live: Live, path: str, body: str, *, mode: str, headers: str = "{}") -> str:
        url = f"http://127.0.0.1:{live.http_port}{path}"
        return ATTACK.format(url=url, mode=mode, body=body, headers=headers)

    evil = f"http://evil.example:{page}/"
    infer, kind = json.dumps(BODY), "{'Content-Type': 'application/json'}"
    # the name of another site leads to this machine, too
    with chromium(tmp_path / "profile", "--host-resolver-rules=MAP *.example 127.0.0.1") as address:

        def visit(url: str, script: str) -> str:
            return asyncio.run(visited(address, url, script))

        loading = attack(closed, "/v2/repository/models/m/load", load, mode="no-cors")
        assert visit(evil, loading) == "read "  # an answer that no page can read
        assert not wrote.exists()
        assert visit(evil, attack(closed, INFER, infer, mode="cors", headers=kind)) == "failed"
        rebound = visit(f"http://evil.example:{closed.http_port}/v2", "document.body.innerText")
        assert "this server is not known by the name 'evil.example'" in rebound
        allowed = visit(evil, attack(open_to_page, INFER, infer, mode="cors", headers=kind))
        assert '"data":[4.0]' in allowed
        other = f"http://other.example:{page}/"
        assert visit(other, attack(open_to_page, INFER, infer, mode="cors", headers=kind)) == "failed"
