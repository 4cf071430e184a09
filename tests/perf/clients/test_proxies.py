"""HTTP proxies: the one for a URL, and requests of both protocols through a real one."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.perf.clients.proxying import RunningProxy, proxying
from tests.perf.clients.running import level, ran
from tests.perf.servers import Behaviour, http_server
from tests.protocol.certificates import certificates, key_and_chain
from tests.serving.live import Live, serving, write_models
from tpx.analyzer.runners.servers import ServerControl
from tpx.cli.perf import main
from tpx.errors import MeasurementError, UsageError, WireError
from tpx.perf.clients.proxies import HttpProxy, environment_proxy, open_page, parse_proxy
from tpx.perf.clients.transport import choose_route
from tpx.perf.clients.wire import WireSpec

CREDENTIALS = "me:s3cret"


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the proxies of the machine that runs the tests."""
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)


FEW = ("-m", "double", "--request-count", "6", "--concurrency-range", "2")


@pytest.mark.parametrize(
    ("host", "scheme", "environ", "variable"),
    [
        ("far", "http", {"http_proxy": "p:1"}, "http_proxy"),
        ("far", "http", {"HTTP_PROXY": "p:1"}, "HTTP_PROXY"),
        ("far", "http", {"https_proxy": "p:1"}, None),
        ("far", "http", {"http_proxy": "", "ALL_PROXY": "p:1"}, "ALL_PROXY"),
        ("far", "https", {"http_proxy": "p:2", "https_proxy": "p:1", "all_proxy": "p:3"}, "https_proxy"),
        ("far", "https", {"http_proxy": "p:1"}, None),
        ("far", "grpc", {"http_proxy": "p:2", "https_proxy": "p:1"}, "https_proxy"),
        ("far", "grpc", {"http_proxy": "p:2", "grpc_proxy": "p:1"}, "grpc_proxy"),
        ("far", "http", {"http_proxy": "p:1", "no_proxy": "near,far"}, None),
        ("far", "http", {"http_proxy": "p:1", "NO_PROXY": "*"}, None),
        ("a.far", "http", {"http_proxy": "p:1", "no_proxy": ".far"}, None),
        ("a.far", "http", {"http_proxy": "p:1", "no_proxy": "near far:8000"}, None),
        ("a.far", "http", {"http_proxy": "p:1", "no_proxy": "far:9"}, "http_proxy"),
        ("nofar", "http", {"http_proxy": "p:1", "no_proxy": "far"}, "http_proxy"),
        ("10.1.2.3", "http", {"http_proxy": "p:1", "no_proxy": "10.0.0.0/8"}, None),
        ("11.1.2.3", "http", {"http_proxy": "p:1", "no_proxy": "10.0.0.0/8"}, "http_proxy"),
        ("fd00::1", "http", {"http_proxy": "p:1", "no_proxy": "[fd00::1]"}, None),
        ("far", "grpc", {"http_proxy": "p:1", "no_proxy": "far", "no_grpc_proxy": "near"}, "http_proxy"),
        ("localhost", "http", {"http_proxy": "p:1"}, None),
        ("127.8.0.1", "grpc", {"http_proxy": "p:1"}, None),
        ("::1", "https", {"all_proxy": "p:1"}, None),
    ],
)
def test_the_environment_names_a_proxy_for_a_server(
    host: str, scheme: str, environ: dict[str, str], variable: str | None
) -> None:
    found = environment_proxy(host, 8000, scheme, environ)
    assert (found and found.variable) == variable
    assert found is None or found.proxy == HttpProxy(scheme="http", host="p", port=1)


def test_a_proxys_password_is_read_and_never_shown() -> None:
    proxy = parse_proxy("https://me:p%40ss%3A@[::1]")
    assert (proxy.host, proxy.port, proxy.user, proxy.password) == ("::1", 443, "me", "p@ss:")
    assert str(proxy) == "https://me:***@[::1]:443"
    assert "p@ss" not in repr(proxy)


@pytest.mark.parametrize("text", ["socks5://p:1", "http://p:x", "http://", "http://p:1/path"])
def test_what_is_no_proxy_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="Failed to parse --proxy"):
        parse_proxy(text)


def test_a_variable_that_names_no_http_proxy_is_an_error_unless_requests_go_directly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("all_proxy", "socks5://p:1")
    with pytest.raises(UsageError, match=r"Failed to parse all_proxy\..* --client tpx connects directly"):
        choose_route("far", 1, "http", client=None, proxy=None)
    route = choose_route("far", 1, "http", client="tpx", proxy=None)
    assert (route.library, route.notice) == (None, "all_proxy is not used: --client tpx connects directly")


def test_a_proxy_over_tls_cannot_carry_grpc() -> None:
    with pytest.raises(UsageError, match="grpcio reaches proxies over http:// only"):
        choose_route("far", 1, "grpc", client=None, proxy=parse_proxy("https://p:1"))


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    repository: Path = tmp_path_factory.mktemp("models")
    write_models(repository)
    with serving(repository) as server:
        yield server


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningProxy]:
    """A proxy that asks for a password."""
    with proxying(tmp_path_factory.mktemp("proxy") / "run", CREDENTIALS.replace(":", " ")) as running:
        yield running


def at(live: Live, protocol: str) -> tuple[str, ...]:
    service = "HTTPService" if protocol == "http" else "GRPCInferenceService"
    return (*FEW, "-i", protocol, "-u", f"127.0.0.1:{live.ports[service]}")


@pytest.mark.parametrize(
    ("protocol", "words", "line"),
    [
        ("http", (), "POST http://{url}/v2/models/double/infer HTTP/1.1"),
        ("grpc", (), "CONNECT {url} HTTP/1.1"),
        ("grpc", ("--streaming",), "CONNECT {url} HTTP/1.1"),
    ],
)
def test_load_and_control_go_through_the_proxy(
    live: Live,
    proxy: RunningProxy,
    monkeypatch: pytest.MonkeyPatch,
    protocol: str,
    words: tuple[str, ...],
    line: str,
) -> None:
    # an explicit proxy has precedence over the exceptions of the environment
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    before = len(proxy.forwarded())
    target = at(live, protocol)
    result = level(*target, *words, "--proxy", f"http://{CREDENTIALS}@{proxy.address}")
    assert (result.requests, result.failed) == (6, 0)
    forwarded = proxy.forwarded()[before:]
    assert line.format(url=target[-1]) in forwarded
    if protocol == "http":
        assert f"GET http://{target[-1]}/v2/models/double/stats HTTP/1.1" in forwarded
        assert sum(word.startswith("POST") for word in forwarded) == 6


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_wrong_password_is_refused_by_the_proxy(live: Live, proxy: RunningProxy, protocol: str) -> None:
    with pytest.raises((MeasurementError, WireError), match="401"):
        ran(*at(live, protocol), "--proxy", f"me:wrong@{proxy.address}")


def test_the_password_is_in_no_file(live: Live, proxy: RunningProxy, tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("run.json", "run.html")]
    words = ("--assume-shapes", "--proxy", f"http://{CREDENTIALS}@{proxy.address}", "--json", str(files[0]))
    assert main((*at(live, "http"), *words, "--html", str(files[1]))) == 0
    for file in files:
        text = file.read_text("utf-8")
        assert f"http://me:***@{proxy.address}" in text
        assert "s3cret" not in text


def test_a_page_is_opened_through_the_proxy_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, proxy: RunningProxy
) -> None:
    monkeypatch.setenv("http_proxy", f"http://{CREDENTIALS}@{proxy.address}")
    before = len(proxy.forwarded())
    with pytest.raises(OSError, match="HTTP Error 5"):
        open_page("http://server.invalid:8002/metrics", 10)
    assert "GET http://server.invalid:8002/metrics HTTP/1.1" in proxy.forwarded()[before:]


def test_the_metrics_page_is_read_through_the_proxy(proxy: RunningProxy) -> None:
    with http_server(Behaviour()) as url:
        before = len(proxy.forwarded())
        words = ("--collect-metrics", "--metrics-url", f"{url}/metrics", "--request-count", "3")
        level("-m", "net", "-u", url, *words, "--proxy", f"{CREDENTIALS}@{proxy.address}")
        assert f"GET http://{url}/metrics HTTP/1.1" in proxy.forwarded()[before:]


@pytest.mark.slow
def test_tls_goes_through_a_tunnel_of_the_proxy(tmp_path: Path, proxy: RunningProxy) -> None:
    repository = tmp_path / "models"
    repository.mkdir()
    write_models(repository)
    key, chain = key_and_chain(certificates().server)
    files = {"key": key, "cert": chain, "root": certificates().authority_pem}
    paths = {name: tmp_path / f"{name}.pem" for name in files}
    for name, content in files.items():
        paths[name].write_bytes(content)
    secured = {
        "http_use_ssl": True,
        "http_server_cert": paths["cert"],
        "http_server_key": paths["key"],
        "grpc_use_ssl": True,
        "grpc_server_cert": paths["cert"],
        "grpc_server_key": paths["key"],
    }
    with serving(repository, **secured) as live:
        through = ("--proxy", f"http://{CREDENTIALS}@{proxy.address}")
        for protocol, trusting in (
            ("http", ("--ssl-https-ca-certificates-file", str(paths["root"]))),
            ("grpc", ("--ssl-grpc-root-certifications-file", str(paths["root"]))),
        ):
            *words, url = at(live, protocol)
            before = len(proxy.forwarded())
            result = level(*words, f"https://{url}", *trusting, *through)
            assert (result.requests, result.failed) == (6, 0)
            forwarded = proxy.forwarded()[before:]
            assert set(forwarded) == {f"CONNECT {url} HTTP/1.1"}


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_models_are_loaded_through_the_proxy_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, proxy: RunningProxy, protocol: str
) -> None:
    monkeypatch.setenv("all_proxy", f"http://{CREDENTIALS}@{proxy.address}")
    control = ServerControl("server.invalid:8000", "grpc" if protocol == "grpc" else "http")
    before = len(proxy.forwarded())
    with asyncio.Runner() as runner:
        assert not runner.run(control.live())
    assert any("server.invalid:8000" in line for line in proxy.forwarded()[before:])


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_models_are_listed_through_the_proxy_of_the_options(
    live: Live, proxy: RunningProxy, protocol: str
) -> None:
    address = at(live, protocol)[-1]
    wire = WireSpec(proxy=parse_proxy(f"{CREDENTIALS}@{proxy.address}"))
    control = ServerControl(address, "grpc" if protocol == "grpc" else "http", wire)
    before = len(proxy.forwarded())
    with asyncio.Runner() as runner:
        assert "double" in {entry.name for entry in runner.run(control.index())}
    assert any(address in line for line in proxy.forwarded()[before:])
