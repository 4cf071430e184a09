"""Files that others publish: which each is, and the requests that they become."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.perf.clients.openai_server import Script, openai_server
from tests.perf.clients.running import level
from tpx.argv import from_argv
from tpx.errors import UsageError
from tpx.perf.clients.endpoint import Endpoint, ServiceSpec
from tpx.perf.clients.model import ModelKey
from tpx.perf.clients.openai import DELAY, INPUT, SESSION
from tpx.perf.connecting import open_model
from tpx.perf.inputs.prompts import PromptSpec
from tpx.perf.inputs.steps import Step, named
from tpx.perf.inputs.texts import WordTokens
from tpx.perf.inputs.workloads import BLOCK_TOKENS, read_workload, workload_data
from tpx.perf.options import SessionSpec
from tpx.protocol.tensors import decode_bytes

CHAT = "v1/chat/completions"
WORDS = PromptSpec(word_tokens=WordTokens(1.0))
SHARE_GPT = [
    {
        "id": "a",
        "conversations": [
            {"from": "human", "value": "Who wrote Hamlet?"},
            {"from": "gpt", "value": "It was William Shakespeare"},
            {"from": "human", "value": "When?"},
            {"from": "gpt", "value": "Around 1600"},
        ],
    },
    {
        "id": "b",
        "conversations": [{"from": "system", "value": "x"}, {"from": "human", "value": "Unanswered"}],
    },
    {"id": "c", "conversations": [{"from": "human", "value": "2 + 2?"}, {"from": "gpt", "value": "4"}]},
]
MOONCAKE = [
    {"timestamp": 500, "input_length": 1100, "output_length": 5, "hash_ids": [1, 2, 3]},
    {"timestamp": 2000, "input_length": 700, "output_length": 6, "hash_ids": [1, 7]},
]
BURST_GPT = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,30,12,42,Conversation log
45.5,GPT-4,20,0,20,Conversation log
118,ChatGPT,40,13,53,API log
"""


def written(directory: Path, content: Any, name: str) -> Path:
    path = directory / name
    if name.endswith(".jsonl"):
        content = "\n".join(map(json.dumps, content))
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def steps(
    path: Path, *, conversing: bool = False, spec: PromptSpec = WORDS, most: int | None = None
) -> list[Step]:
    workload = read_workload([path], conversing=conversing, most=most)
    assert workload is not None
    service = ServiceSpec(service_kind="openai", endpoint=CHAT)
    endpoint = Endpoint(host="h", port=1, model=ModelKey("llm"), service=service, sessions=conversing)
    (stream,) = workload_data(workload, spec, 0, endpoint).streams
    return [stream[i] for i in range(len(stream))]


def body(step: Step) -> dict[str, Any]:
    (found,) = decode_bytes(named(step.inputs)[INPUT.name].data, 1)
    return dict(json.loads(found))


def prompt(step: Step) -> str:
    return str(body(step)["messages"][0]["content"])


def test_share_gpt_is_first_turns_with_outputs_as_long_as_the_replies(tmp_path: Path) -> None:
    found = steps(written(tmp_path, SHARE_GPT, "share.json"))
    assert [(prompt(s), body(s)["max_tokens"]) for s in found] == [("Who wrote Hamlet?", 4), ("2 + 2?", 1)]
    assert body(found[0])["ignore_eos"] is True
    kind = PromptSpec(word_tokens=WordTokens(1.5), ignore_eos=False)
    assert body(steps(written(tmp_path, SHARE_GPT, "share.json"), spec=kind)[0]).get("ignore_eos") is None
    assert body(steps(written(tmp_path, SHARE_GPT, "share.json"), spec=kind)[0])["max_tokens"] == 6


def test_conversations_of_share_gpt_have_all_turns(tmp_path: Path) -> None:
    found = steps(written(tmp_path, SHARE_GPT, "share.json"), conversing=True)
    sessions = [decode_bytes(named(s.inputs)[SESSION.name].data, 1) for s in found]
    assert [(prompt(s), *of) for s, of in zip(found, sessions, strict=True)] == [
        ("Who wrote Hamlet?", b"a"),
        ("When?", b"a"),
        ("2 + 2?", b"c"),
    ]


def test_prompts_of_mooncake_share_the_blocks_that_have_the_same_hash(tmp_path: Path) -> None:
    found = steps(written(tmp_path, MOONCAKE, "trace.jsonl"))
    first, second = (prompt(step).split() for step in found)
    assert (len(first), len(second)) == (1100, 700)
    assert first[:BLOCK_TOKENS] == second[:BLOCK_TOKENS]
    assert first[BLOCK_TOKENS:600] != second[BLOCK_TOKENS:600]
    assert [body(step)["max_tokens"] for step in found] == [5, 6]
    # a schedule begins with the first request that is taken
    assert [step.timestamp_ns for step in found] == [0, 1_500_000_000]
    assert [prompt(step) for step in steps(tmp_path / "trace.jsonl")] == [prompt(step) for step in found]


def test_failed_requests_of_burst_gpt_are_left_out(tmp_path: Path) -> None:
    found = steps(written(tmp_path, BURST_GPT, "burst.csv"))
    assert [len(prompt(step).split()) for step in found] == [30, 40]
    assert [step.timestamp_ns for step in found] == [0, 113_000_000_000]
    assert prompt(found[0]).split()[:8] != prompt(found[1]).split()[:8]


def test_lines_are_bodies_texts_or_turns(tmp_path: Path) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    chat = {"messages": [{"role": "user", "content": [image]}], "tools": tools, "tool_choice": "auto"}
    lines = [
        {**chat, "timestamp": 3},
        {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": chat},
        {"text": "Why?", "output_length": 9, "session_id": "s"},
        {"session_id": "t", "turns": [{"text": "One"}, {"text": "Two", "delay": 40}]},
    ]
    found = steps(written(tmp_path, lines, "lines.jsonl"), conversing=True)
    assert [body(step) for step in found[:2]] == [chat, chat]
    assert (found[0].timestamp_ns, found[1].timestamp_ns) == (0, None)
    assert (prompt(found[2]), body(found[2])["max_tokens"]) == ("Why?", 9)
    assert [prompt(step) for step in found[3:]] == ["One", "Two"]
    assert named(found[4].inputs)[DELAY.name].numpy().tolist() == [40]
    assert DELAY.name not in named(found[3].inputs)


def test_as_many_are_read_as_prompts_are_wanted(tmp_path: Path) -> None:
    assert len(steps(written(tmp_path, MOONCAKE, "trace.jsonl"), most=1)) == 1


@pytest.mark.parametrize(
    ("content", "name"),
    [
        ({"data": [{"payload": [{"messages": []}]}]}, "data.json"),
        ([{"payload": [{"messages": []}]}], "data.jsonl"),
        ("a,b\n1,2\n", "other.csv"),
        ("[broken", "broken.json"),
        ([], "empty.json"),
    ],
)
def test_other_files_are_no_workloads(tmp_path: Path, content: Any, name: str) -> None:
    assert read_workload([written(tmp_path, content, name)], conversing=False) is None


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ({"input_length": 5, "timestamp": 1}, "request 1: it has no 'output_length'"),
        ({"input_length": "x", "output_length": 5}, "request 1: invalid literal"),
    ],
)
def test_a_line_that_is_wrong_is_named(tmp_path: Path, line: Any, said: str) -> None:
    path = written(tmp_path, [MOONCAKE[0], line], "trace.jsonl")
    with pytest.raises(UsageError, match=said):
        read_workload([path], conversing=False)


def test_a_line_that_is_no_json_is_named(tmp_path: Path) -> None:
    path = written(tmp_path, json.dumps(MOONCAKE[0]) + "\n\n{", "trace.ndjson")
    with pytest.raises(UsageError, match="line 3: "):
        read_workload([path], conversing=False)


def test_a_trace_is_due_sooner_at_a_higher_speed(tmp_path: Path) -> None:
    script = Script(first_s=0, per_word=1)
    words = "--fixed-schedule --speed 20x --word-tokens 1,12 --input-data"
    path = written(tmp_path, MOONCAKE, "trace.jsonl")

    async def times(url: str) -> tuple[int, ...]:
        service = f"--service-kind openai --endpoint {CHAT} -m llm -u {url}"
        spec = from_argv(SessionSpec, [*service.split(), *words.split(), str(path)])
        async with open_model(spec) as connected:
            return connected.requests.timestamps_ns

    with openai_server(script) as url:
        assert asyncio.run(times(url)) == (0, 75_000_000)


def test_options_of_workloads_need_one(tmp_path: Path) -> None:
    data = written(tmp_path, {"data": [{"payload": [{"messages": []}]}]}, "data.json")
    service = ("--service-kind", "openai", "--endpoint", CHAT, "-m", "llm", "--input-data", str(data))
    with (
        openai_server(Script()) as url,
        pytest.raises(UsageError, match="--prompts requires --input-tokens, or a workload in --input-data"),
    ):
        level(*service, "-u", url, "--prompts", "3")
