"""Load in response headers (ORCA), for load balancers that ask for it."""

import json
from typing import Any

import pytest

from tests.protocol.v2_requests import encode_infer_request
from tests.serving.live import Live, floats
from tpx.protocol.tensors import Tensor
from tpx.serving.frontends.load_report import LoadReport, format_of
from tpx.serving.inference_plane import ServerLoad

ASKED = "endpoint-load-metrics-format"


class Clock:
    """A clock that a test sets."""

    now_ns = 0

    def __call__(self) -> int:
        return self.now_ns


def test_a_report_has_the_machine_and_the_requests_of_the_server() -> None:
    report = LoadReport(lambda: ServerLoad(4, 2))
    name, _, document = report.line(b"json").decode().rstrip("\r\n").partition(": JSON ")
    figures = json.loads(document)
    assert name == "endpoint-load-metrics"
    assert figures.pop("named_metrics") == {"requests_in_flight": 4, "pending_requests": 2}
    assert 0 < figures["mem_utilization"] < 1
    assert 0 <= figures.get("cpu_utilization", 0) <= 1
    text = report.line(b"text").decode()
    assert text.startswith("endpoint-load-metrics: TEXT ")
    assert text.endswith("named_metrics.requests_in_flight=4, named_metrics.pending_requests=2\r\n")
    assert report.line(b"") == b""


def test_a_report_is_used_again_for_half_a_second() -> None:
    clock, loads = Clock(), [ServerLoad(9, 0), ServerLoad(1, 0)]
    report = LoadReport(loads.pop, clock)
    first = report.line(b"text")
    clock.now_ns = 400_000_000
    assert report.line(b"text") == first
    clock.now_ns = 600_000_000
    assert b"requests_in_flight=9" in report.line(b"text")


@pytest.mark.parametrize(
    ("word", "form"), [(b"TEXT", b"text"), (b" json", b"json"), (b"bin", b""), (b"", b"")]
)
def test_the_format_is_text_or_json(word: bytes, form: bytes) -> None:
    assert format_of({ASKED.encode(): word}) == form


@pytest.mark.parametrize("form", ["text", "json"])
def test_responses_have_the_header_if_it_is_asked_for(live: Live, form: str) -> None:
    head, tail = encode_infer_request([Tensor.from_numpy("x", floats([1, 2]))])
    asked: Any = {ASKED: form}
    size = {"Inference-Header-Content-Length": str(len(head))}
    for _ in range(4):  # the first is decoded, the others are answered by the fast path
        answer = live.infer("double", head, b"".join(tail), **size, **asked)
        assert answer.headers["endpoint-load-metrics"].startswith(form.upper())
        assert "endpoint-load-metrics" not in live.infer("double", head, b"".join(tail), **size).headers
    for verb in ("generate", "generate_stream"):
        path, body = f"/v2/models/double/{verb}", b'{"x": 1}'
        assert "requests_in_flight" in live.http("POST", path, body, asked).headers["endpoint-load-metrics"]
        assert "endpoint-load-metrics" not in live.http("POST", path, body).headers
