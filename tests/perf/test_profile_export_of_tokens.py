"""What genai-perf needs of a profile export, without genai-perf: a text for every time, and bodies that say
what was asked."""

import json
from itertools import pairwise
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from tests.perf.clients.openai_server import Script, openai_server
from tpx.cli.perf import main

CHAT = "v1/chat/completions"
COUNT = 4
ASKED = {"model": "llm", "messages": [{"role": "user", "content": "Why?"}]}


def exported(script: Script, directory: Path, *words: str, path: str = CHAT) -> dict[str, Any]:
    """The export of a run over one connection, whose own figures are in `own.json` beside it."""
    files = ("--profile-export-file", str(directory / "export.json"), "--json", str(directory / "own.json"))
    load = ("-m", "llm", "--async", "-i", "http", "--concurrency-range", "1", "--request-count", str(COUNT))
    with openai_server(script) as url:
        service = ("-u", url, "--service-kind", "openai", "--endpoint", path)
        assert main([*load, *service, *files, *words]) == 0
    document: dict[str, Any] = json.loads((directory / "export.json").read_bytes())
    return document


def requests_of(document: dict[str, Any]) -> list[dict[str, Any]]:
    (experiment,) = document["experiments"]
    requests: list[dict[str, Any]] = experiment["requests"]
    assert len(requests) == COUNT
    return requests


def told(output: dict[str, str]) -> dict[str, Any]:
    """The one event of a response."""
    assert list(output) == ["response"]
    assert output["response"].startswith("data: {")
    assert output["response"].endswith("}\n\n")
    event: dict[str, Any] = json.loads(output["response"].removeprefix("data: "))
    return event


@pytest.mark.parametrize("splits", [False, True])
@pytest.mark.parametrize(
    ("path", "kind"), [(CHAT, "chat.completion.chunk"), ("v1/completions", "text_completion")]
)
def test_every_token_has_its_time_and_its_event(tmp_path: Path, path: str, kind: str, splits: bool) -> None:
    script = Script(tokens=5, first_s=0.002, gap_s=0.001, splits=splits)
    for request in requests_of(exported(script, tmp_path, "--streaming", path=path)):
        times = [request["timestamp"], *request["response_timestamps"]]
        assert all(isinstance(time, int) for time in times)
        assert all(earlier <= later for earlier, later in pairwise(times))
        events = [told(output) for output in request["response_outputs"]]
        assert {event["object"] for event in events} == {kind}
        choices = [event["choices"][0] for event in events]
        texts = [choice["delta"]["content"] if path == CHAT else choice["text"] for choice in choices]
        assert texts == ["t0", "t1", "t2", "t3", "t4"]
        assert len(request["response_timestamps"]) == len(texts)


def test_a_stream_that_just_ends_is_exported_to_its_last_token(tmp_path: Path) -> None:
    script = Script(tokens=3, first_s=0, gap_s=0, chunked=False)
    for request in requests_of(exported(script, tmp_path, "--streaming")):
        assert len(request["response_timestamps"]) == len(request["response_outputs"]) == 3


def test_an_answer_without_a_stream_is_one_output(tmp_path: Path) -> None:
    for request in requests_of(exported(Script(first_s=0), tmp_path)):
        (output,) = request["response_outputs"]
        assert len(request["response_timestamps"]) == 1
        answer = json.loads(output["response"])
        assert (answer["object"], answer["choices"][0]["message"]["content"]) == ("chat.completion", "all")


def test_the_body_that_was_made_of_a_text_is_the_payload(tmp_path: Path) -> None:
    script = Script(first_s=0, gap_s=0)
    document = exported(script, tmp_path, "--streaming", "--string-data", "Why?")
    payloads = [json.loads(request["request_inputs"]["payload"]) for request in requests_of(document)]
    assert payloads == script.bodies[-COUNT:]
    assert payloads[0]["messages"] == ASKED["messages"]


def test_the_body_that_was_brought_is_the_payload(tmp_path: Path) -> None:
    data = tmp_path / "inputs.json"
    data.write_text(json.dumps({"data": [{"payload": [ASKED | {"stream": True}]}]}))
    script = Script(first_s=0, gap_s=0)
    for request in requests_of(exported(script, tmp_path, "--input-data", str(data))):
        assert list(request["request_inputs"]) == ["payload"]
        assert json.loads(request["request_inputs"]["payload"]) == ASKED | {"stream": True}
        assert len(request["response_outputs"]) == script.tokens


@pytest.mark.parametrize("path", [CHAT, f"/{CHAT}"])
def test_the_endpoint_is_told_as_genai_perf_knows_it(tmp_path: Path, path: str) -> None:
    document = exported(Script(first_s=0), tmp_path, path=path)
    assert (document["service_kind"], document["endpoint"]) == ("openai", CHAT)


def test_genai_perfs_figures_of_the_export_are_ours(tmp_path: Path) -> None:
    """Its time to the first token, latency and time between tokens, from the times alone."""
    script = Script(tokens=4, first_s=0.003, gap_s=0.001)
    requests = requests_of(exported(script, tmp_path, "--streaming"))
    (level,) = json.loads((tmp_path / "own.json").read_bytes())["levels"]
    first, between, whole = [], [], []
    for request in requests:
        times = request["response_timestamps"]
        first.append((times[0] - request["timestamp"]) / 1000)
        whole.append((times[-1] - request["timestamp"]) / 1000)
        between.append((whole[-1] - first[-1]) / (len(times) - 1))
    streaming = level["streaming"]
    assert mean(first) == pytest.approx(streaming["first_response_us"]["mean"], abs=0.01)
    assert mean(between) == pytest.approx(streaming["inter_response_us"]["mean"], abs=0.01)
    assert mean(whole) == pytest.approx(level["latency_us"]["mean"], abs=0.01)
