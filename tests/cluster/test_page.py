"""The page of a cluster: what a person sees in a real browser, and who may ask for it."""

import asyncio
import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.report.browser import BROWSER, chromium, opened
from tpx.cluster.page import open_page
from tpx.errors import NotReady, UsageError
from tpx.protocol.json_values import JsonObject

SAMPLE = {"requests_per_s": 1234.0, "queue_ms": 0.5, "utilization": 0.25, "p99_ms": 7.25}
ROW = {"host": "10.0.0.1", "release": 2, "models": 3, "restarts": 0, "message": "", "sample": SAMPLE}
IDLE = {**SAMPLE, "requests_per_s": 0.0, "p99_ms": None}
LOST = {"name": "replica-2", "state": "waiting", "message": "<b>it died", "restarts": 4, "sample": IDLE}
STATUS: JsonObject = {
    "name": "vision",
    "release": 2,
    "desired": 2,
    "update": None,
    "fault": "",
    "replicas": [{**ROW, "name": "replica-1", "state": "ready"}, {**ROW, **LOST}],
    "balancers": [{"node": "10.0.0.1", "running": True}, {"node": "10.0.0.2", "running": False}],
    "events": ["10:00:00 scaled to 2 by hand", "10:00:05 replica-2 is gone: killed"],
}


@contextmanager
def serving(status: JsonObject | None = None) -> Iterator[int]:
    def read() -> JsonObject:
        if status is None:
            raise NotReady("the supervisor of 'vision' has not answered for 60 s")
        return status

    with open_page(0, read) as server:
        answering = threading.Thread(target=server.serve_forever, args=(0.01,))
        answering.start()
        yield server.server_port
        server.shutdown()
        answering.join()


def get(port: int, path: str, host: str = "localhost") -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", path, headers={"Host": f"{host}:{port}"})
    answer = connection.getresponse()
    return answer.status, answer.read()


def test_only_browsers_of_this_machine_are_answered_and_a_fault_is_told() -> None:
    with serving() as port:
        assert get(port, "/")[0] == 200
        assert get(port, "/", "evil.example")[0] == 403
        assert get(port, "/elsewhere")[0] == 404
        status, body = get(port, "/status")
        assert (status, json.loads(body)["error"]) == (
            503,
            "the supervisor of 'vision' has not answered for 60 s",
        )
        with pytest.raises(UsageError, match=f"--port {port}: Address already in use"):
            open_page(port, dict)


TEXTS = """({
  title: document.title, state: document.getElementById('cluster').innerText,
  head: document.querySelector('.top').innerText,
  charts: [...document.querySelectorAll('.chart')].map(chart => chart.innerText),
  rows: [...document.querySelectorAll('#replicas tbody tr')].map(
    row => [...row.cells].map(cell => cell.innerText)),
  events: [...document.querySelectorAll('#events li')].map(line => line.innerText),
})"""


async def look(address: str, port: int) -> tuple[dict[str, Any], list[Any]]:
    async with opened(address, f"http://127.0.0.1:{port}/") as page:
        await page.until("document.querySelectorAll('#replicas tbody tr').length === 2")
        return await page.evaluate(TEXTS), page.complaints


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="needs chromium")
def test_a_person_sees_replicas_balancers_and_events(tmp_path: Path) -> None:
    with serving(STATUS) as port, chromium(tmp_path) as address:
        shown, complaints = asyncio.run(look(address, port))
    assert complaints == []
    assert shown["title"] == "vision - tpx cluster"
    assert shown["state"] == "degraded"
    assert "vision, release 2" in shown["head"]
    assert "not running on 10.0.0.2" in shown["head"]
    ready, lost = shown["rows"]
    assert ready[:9] == ["replica-1", "10.0.0.1", "ready", "2", "3", "1,234", "7.25 ms", "500 µs", "25 %"]
    assert (lost[2], lost[6], lost[9], lost[11]) == ("waiting", "\u2013", "4", "<b>it died")
    assert shown["events"] == ["10:00:05replica-2 is gone: killed", "10:00:00scaled to 2 by hand"]
    assert any("Replicas ready" in chart and "1 of 2 desired" in chart for chart in shown["charts"])
    assert any("Requests per second" in chart and "1,234" in chart for chart in shown["charts"])
