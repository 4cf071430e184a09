"""Conversations with a service of OpenAI's API: what is said before each turn, and what is told of it."""

import json
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.perf.clients.openai_server import Script, openai_server
from tests.perf.clients.running import level
from tpx.cli.perf import main
from tpx.errors import UsageError
from tpx.perf.clients.openai import ChatTurn, streamed_message, whole_message
from tpx.perf.results import LevelResult, Sessions

CHAT = ("--service-kind", "openai", "--endpoint", "v1/chat/completions", "-m", "llm")
TALKS = {"x": ["x0", "x1", "x2"], "y": ["y0", "y1"], "z": ["z0"]}
TURNS = sum(map(len, TALKS.values()))


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def steps(talks: dict[str, list[str]] = TALKS, **more: Any) -> list[dict[str, Any]]:
    """Turns of all conversations, those of each one not beside each other."""
    return [
        {"payload": [{"messages": [user(texts[at])], **more}], "session_id": [session], "delay": [at + 1]}
        for at in range(max(map(len, talks.values())))
        for session, texts in talks.items()
        if at < len(texts)
    ]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    file = tmp_path / "turns.json"
    file.write_text(json.dumps({"data": steps(temperature=0.5)}))
    return file


def conversed(script: Script, data: Path, *words: str, at_once: int = 2) -> LevelResult:
    with openai_server(script) as url:
        load = ("--session-concurrency", str(at_once), "--input-data", str(data))
        return level(*CHAT, "-u", url, *load, *words)


def histories(script: Script) -> dict[str, list[list[str]]]:
    """By session the texts that each of its requests held."""
    found: dict[str, list[list[str]]] = {}
    for body in script.bodies:
        texts = [message["content"] for message in body["messages"]]
        found.setdefault(texts[0][0], []).append(texts)
    return found


@pytest.mark.parametrize("streaming", [False, True])
def test_every_turn_is_sent_with_all_that_was_said_before_it(data: Path, streaming: bool) -> None:
    script = Script(tokens=3, first_s=0.001, gap_s=0, replies=True)
    result = conversed(script, data, *(["--streaming"] if streaming else []))
    said = "t0t1t2" if streaming else "all"
    assert histories(script) == {
        session: [
            [text for asked in texts[:at] for text in (asked, f"to {asked}: {said}")] + [texts[at]]
            for at in range(len(texts))
        ]
        for session, texts in TALKS.items()
    }
    last = script.bodies[-1]
    assert [m["role"] for m in last["messages"]] == ["user", "assistant"] * (len(last["messages"]) // 2) + [
        "user"
    ]
    assert (last["model"], last["temperature"], last.get("stream", False)) == ("llm", 0.5, streaming)
    assert script.most_at_once <= 2
    assert (result.level.mode, result.requests, result.failed) == ("session_concurrency", TURNS, 0)
    assert result.sessions == Sessions(total=3, finished=3, unsent_turns=0)


def test_turns_are_timed_as_single_requests_are(data: Path) -> None:
    result = conversed(Script(tokens=4, first_s=0.02, gap_s=0.005), data, "--streaming")
    streaming = result.streaming
    assert streaming is not None
    assert result.latency is not None
    first, between = streaming.times("ttft"), streaming.times("icl")
    assert first is not None
    assert between is not None
    assert (streaming.responses, streaming.units) == (4 * TURNS, 8 * TURNS)
    assert first.min_ns >= 20_000_000
    assert result.latency.min_ns >= 35_000_000
    assert first.mean_ns + 3 * between.mean_ns == pytest.approx(result.latency.mean_ns, rel=0.01)


def test_a_turn_that_is_refused_ends_its_conversation_and_no_other(data: Path) -> None:
    script = Script(first_s=0.001, refuses="x1")
    result = conversed(script, data)
    (error,) = result.errors
    assert (error.code, error.count, error.message) == ("HTTP 500", 1, "cannot say x1")
    assert [len(talk) for talk in histories(script).values()] == [2, 2, 1]
    assert (result.requests, result.failed) == (TURNS - 2, 1)
    assert result.sessions == Sessions(total=3, finished=2, unsent_turns=1)


def test_an_answer_that_breaks_off_ends_its_conversation(data: Path) -> None:
    result = conversed(Script(breaks_after=1, first_s=0, gap_s=0), data, "--streaming")
    (error,) = result.errors
    assert (error.code, error.count, error.message) == ("OpenAI error", 3, "out of memory")
    assert result.sessions == Sessions(total=3, finished=0, unsent_turns=TURNS - 3)


def test_an_answer_without_a_message_has_failed(tmp_path: Path) -> None:
    """As that of a path that is no chat."""
    file = tmp_path / "turns.json"
    body = {"messages": [user("x0")], "stream": True}
    file.write_text(json.dumps({"data": [{"payload": [body], "session_id": ["x"]}]}))
    result = conversed(Script(tokens=0, first_s=0, usage=False, silent=True), file, at_once=1)
    (error,) = result.errors
    assert (error.code, error.message.partition(":")[0]) == (
        "OpenAI error",
        "the response has no message to continue the conversation with",
    )


def test_the_export_names_the_session_and_holds_what_was_sent(data: Path, tmp_path: Path) -> None:
    script = Script(first_s=0.001, replies=True)
    export = tmp_path / "export.json"
    conversed(script, data, "--profile-export-file", str(export))
    (experiment,) = json.loads(export.read_bytes())["experiments"]
    assert experiment["experiment"] == {"mode": "request_rate", "value": 0.0}
    inputs = [request["request_inputs"] for request in experiment["requests"]]
    assert all(list(i) == ["payload", "session_id", "delay"] for i in inputs)
    bodies = [json.loads(i["payload"]) for i in inputs]
    assert sorted(map(orjson.dumps, bodies)) == sorted(map(orjson.dumps, script.bodies))
    for body, told in zip(bodies, inputs, strict=True):
        assert body["messages"][0]["content"][0] == told["session_id"]
        assert told["delay"] == len(body["messages"]) // 2 + 1
    assert not any("sequence_id" in request for request in experiment["requests"])


def test_a_warm_up_begins_the_conversations_and_the_level_begins_them_anew(data: Path) -> None:
    script = Script(first_s=0.001, replies=True)
    result = conversed(script, data, "--warmup-request-count", "3", at_once=1)
    assert len(script.bodies) == TURNS + 3
    assert (result.requests, result.sessions) == (TURNS, Sessions(total=3, finished=3, unsent_turns=0))
    assert script.bodies[:3] == script.bodies[3:6]


def test_a_rehearsal_tells_the_conversations_and_sends_a_first_turn(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = Script(first_s=0)
    with openai_server(script) as url:
        words = [*CHAT, "-u", url, "--session-concurrency", "2", "--input-data", str(data), "--dry-run"]
        assert main(words) == 0
    told = capsys.readouterr().out
    for line in ("Conversations: 3, each sent once", "Load: session_concurrency 2", f"{TURNS} requests in"):
        assert line in told
    assert [[m["content"] for m in body["messages"]] for body in script.bodies] == [["x0"]]


def test_what_became_of_the_conversations_is_told(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    own, table = tmp_path / "own.json", tmp_path / "own.csv"
    with openai_server(Script(first_s=0, refuses="x1")) as url:
        load = ["--session-concurrency", "2", "--input-data", str(data), "--request-count", "1"]
        assert main([*CHAT, "-u", url, *load, "--json", str(own), "-f", str(table)]) == 0
    out, err = capfd.readouterr()
    assert "  Sending every conversation of the input data once\n" in out
    assert "Session concurrency: 2\n" in out
    assert "Conversations: 2 of 3 finished, 1 turns not sent" in out
    assert "--request-count has no effect" in err
    (figures,) = json.loads(own.read_bytes())["levels"]
    assert figures["sessions"] == {"total": 3, "finished": 2, "unsent_turns": 1}
    assert table.read_text().startswith("Session Concurrency,")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--session-concurrency", "4"), "contains 3 unique session IDs"),
        (
            ("--session-concurrency", "2", "--workers", "2"),
            "--workers 2: one process begins the next conversation",
        ),
        (("--session-concurrency", "2", "-b", "2"), "can not specify batch size > 1"),
        (("--session-concurrency", "2", "--warmup-seconds", "1"), "session concurrency is sent once"),
    ],
)
def test_what_does_not_fit_is_refused(data: Path, words: tuple[str, ...], text: str) -> None:
    with openai_server(Script()) as url, pytest.raises(UsageError) as caught:
        level(*CHAT, "-u", url, "--input-data", str(data), *words)
    assert text in caught.value.message


@pytest.mark.parametrize("body", [{"prompt": "x"}, {"messages": "x"}])
def test_a_turn_without_messages_is_refused(body: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"must have a 'messages' field that is an array, got \{"):
        ChatTurn(body, [], bytes)


def test_turns_can_be_sent_again_from_the_first() -> None:
    session: list[ChatTurn] = []
    turns = [ChatTurn({"messages": [user(text)]}, session, bytes) for text in ("a", "b", "c")]
    for answer in ("first", "second"):
        for turn in turns:
            assert turn.encoded == turn.body
            assert turn.answered(
                orjson.dumps({"choices": [{"message": {"content": answer}}]}), streamed=False
            )
        texts = [message["content"] for message in orjson.loads(turns[2].body)["messages"]]
        assert texts == ["a", answer, "b", answer, "c"]


def test_a_whole_message_goes_on_as_it_came() -> None:
    message = {"role": "assistant", "content": None, "reasoning_content": "so", "tool_calls": [{"id": "1"}]}
    assert whole_message(orjson.dumps({"choices": [{"message": message}, {"message": {}}]})) == message
    assert whole_message(b'{"choices": [{"message": {"content": "x"}}]}') == {
        "role": "assistant",
        "content": "x",
    }


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"choices": []}', b'{"choices": [{"message": "x"}]}'])
def test_an_answer_of_another_form_has_no_message(body: bytes) -> None:
    assert whole_message(body) is None


def events(*deltas: Any) -> bytes:
    made = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    return b"".join(b"data: " + orjson.dumps(event) + b"\n\n" for event in made) + b"data: [DONE]"


@pytest.mark.parametrize(
    ("deltas", "message"),
    [
        ([{"role": "assistant", "content": ""}, {"content": "a"}, {"content": "b"}, {}], {"content": "ab"}),
        ([{"role": "assistant"}, {"content": None}, {"content": "a"}], {"content": "a"}),
        ([{"role": "assistant"}], {"content": ""}),
        (
            [{"reasoning_content": "s"}, {"reasoning_content": "o"}, {"content": "a"}],
            {"content": "a", "reasoning_content": "so"},
        ),
    ],
)
def test_a_streamed_message_is_its_pieces_joined(deltas: list[Any], message: dict[str, str]) -> None:
    assert streamed_message(events(*deltas)) == {"role": "assistant", **message}


def test_other_choices_and_events_without_one_are_passed_over() -> None:
    other = b'data: {"choices": [{"index": 1, "delta": {"content": "no"}}]}\n\n'
    usage = b'data: {"choices": [], "usage": {"completion_tokens": 1}}\n\n: a comment\n\ndata: 5\n\n'
    assert streamed_message(other + usage + events({"content": "a"})) == {"role": "assistant", "content": "a"}
    assert streamed_message(other + usage) is None
