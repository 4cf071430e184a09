"""Steps that become turns of conversations."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.perf.clients.openai_server import Script, openai_server
from tests.perf.clients.running import level
from tpx.errors import UsageError
from tpx.perf.clients.endpoint import Endpoint, ServiceSpec
from tpx.perf.clients.model import ModelDescription, ModelKey
from tpx.perf.clients.openai import DELAY, INPUT, SESSION, connect
from tpx.perf.inputs.base import InputSpec
from tpx.perf.inputs.dataset import open_data
from tpx.perf.inputs.feed import Conversation
from tpx.perf.inputs.requests import FeedSettings, check_conversations, conversations
from tpx.perf.pace import PaceSpec, ThinkTime

MODEL = ModelDescription(name="llm", inputs=(INPUT, SESSION, DELAY))
PLAIN = FeedSettings()
BODY = {"messages": [{"role": "user", "content": "Why?"}]}


def step(session: Any, **more: Any) -> dict[str, Any]:
    return {"payload": [BODY], "session_id": [session], **more}


def grouped(directory: Path, *steps: Any, settings: FeedSettings = PLAIN) -> tuple[Conversation, ...]:
    file = directory / "data.json"
    file.write_text(json.dumps({"data": steps}))
    data = open_data(MODEL, InputSpec(input_data=(str(file),)))
    return conversations(data, [f"request {i}" for i in range(len(data.steps))], settings)


def test_steps_of_one_session_are_turns_in_the_datas_order(tmp_path: Path) -> None:
    found = grouped(tmp_path, step("x", delay=[20]), step("y"), step("x", delay=[0]), step("x"))
    assert [[(t.step, t.request, t.delay_ns) for t in turns] for turns in found] == [
        [(0, "request 0", 20_000_000), (2, "request 2", 0), (3, "request 3", 0)],
        [(1, "request 1", 0)],
    ]


def test_turns_without_a_delay_have_the_think_time(tmp_path: Path) -> None:
    settings = FeedSettings(pace=PaceSpec(think_time=ThinkTime(2.0)))
    (turns,) = grouped(tmp_path, step("x"), step("x", delay=[0]), step("x", delay=[20]), settings=settings)
    assert [turn.delay_ns for turn in turns] == [2_000_000_000, 0, 20_000_000]


def test_streams_of_steps_are_no_conversations(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Expected input data JSON to have one stream"):
        grouped(tmp_path, [step("x")], [step("y")])


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"payload": [BODY]}, "stream 0, step 0: missing tensor session_id"),
        (step("x", delay=[-1]), "tensor 'delay'"),
        (step("x", delay=[1.5]), "tensor 'delay'"),
        (step("x", pause=[1]), "The input or output 'pause' is not found"),
    ],
)
def test_a_step_that_is_no_turn_is_refused(tmp_path: Path, wrong: Any, text: str) -> None:
    with pytest.raises(UsageError) as caught:
        grouped(tmp_path, wrong)
    assert text in caught.value.message


def test_there_have_to_be_as_many_conversations_as_are_to_run(tmp_path: Path) -> None:
    found = grouped(tmp_path, step("x"), step("y"), step("x"))
    check_conversations(found, 2)
    with pytest.raises(UsageError, match="contains 2 unique session IDs, which is fewer than the required"):
        check_conversations(found, 3)


@pytest.mark.parametrize("field", ["session_id", "delay"])
def test_a_turn_without_the_mode_is_told_of_it(tmp_path: Path, field: str) -> None:
    file = tmp_path / "data.json"
    file.write_text(json.dumps({"data": [{"payload": [BODY], field: [1]}]}))
    words = ("--service-kind", "openai", "--endpoint", "v1/chat/completions", "-m", "llm")
    with (
        openai_server(Script()) as url,
        pytest.raises(UsageError, match=rf"step 0: '{field}' belongs to a turn .*\(--session-concurrency\)"),
    ):
        level(*words, "-u", url, "--input-data", str(file))


def test_only_the_service_of_conversations_has_their_inputs() -> None:
    for sessions, inputs in ((False, (INPUT,)), (True, (INPUT, SESSION, DELAY))):
        service = ServiceSpec(service_kind="openai", endpoint="v1/chat/completions")
        endpoint = Endpoint(
            host="localhost", port=1, model=ModelKey("llm"), service=service, sessions=sessions
        )
        described = connect(endpoint).control.model(ModelKey("llm"))
        assert asyncio.run(described).inputs == inputs
