"""genai-perf itself with `tpx perf` in perf_analyzer's place: it ends well and says what we say."""

import csv
import json
import os
import shlex
import shutil
import string
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.perf.clients.openai_server import Script, openai_server
from tests.serving.live import serving

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

TOKENS = 6
SCRIPT = Script(tokens=TOKENS, first_s=0.02, gap_s=0.005)
REQUESTS = 20
CONFIG = """
backend: "python" instance_group { count: 1 kind: KIND_CPU }
model_transaction_policy { decoupled: true }
input { name: "text_input" data_type: TYPE_STRING dims: 1 }
input { name: "stream" data_type: TYPE_BOOL dims: 1 optional: true }
input { name: "sampling_parameters" data_type: TYPE_STRING dims: 1 optional: true }
input { name: "exclude_input_in_output" data_type: TYPE_BOOL dims: 1 optional: true }
output { name: "text_output" data_type: TYPE_STRING dims: -1 }
"""
MODEL = f"""
import time
import numpy as np
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for number in range({TOKENS}):
                time.sleep(0.005)
                text = pb_utils.Tensor("text_output", np.array([f"t{{number}}".encode()], dtype=object))
                sender.send(pb_utils.InferenceResponse([text]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


SESSIONS, SESSION_TURNS = 5, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What genai-perf found, and what the `tpx perf` that it ran did."""

    theirs: Mapping[str, Any]
    rows: Mapping[str, list[str]]
    """Of their CSV, by metric."""
    ours: Mapping[str, Any]
    """The one level."""
    words: list[str]
    """The command line that we got."""


@pytest.fixture(scope="module")
def genai_perf() -> str:
    found = os.environ.get("TPX_GENAI_PERF") or shutil.which("genai-perf")
    if found is None:
        pytest.skip("no genai-perf: set TPX_GENAI_PERF to its path, or put it on the PATH")
    return found


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a tokenizer for which every letter is a token, and every word of the servers one."""
    letters = ["<s>", *string.ascii_letters, *string.digits, *string.punctuation.replace("<", ""), "Ġ", "Ċ"]
    words = [f"t{number}" for number in range(TOKENS)]
    vocabulary = {token: number for number, token in enumerate([*letters, *words])}
    plain = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    merges = [f"t {number}" for number in range(TOKENS)]
    model = {"type": "BPE", "unk_token": "<s>", "vocab": vocabulary, "merges": merges}
    parts = {"added_tokens": [], "pre_tokenizer": plain, "decoder": plain, "model": model}
    directory = tmp_path_factory.mktemp("tokenizer")
    (directory / "tokenizer.json").write_text(json.dumps({"version": "1.0"} | parts))
    told = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "unk_token": "<s>"}
    (directory / "tokenizer_config.json").write_text(json.dumps(told))
    return directory


@pytest.fixture(scope="module")
def triton(tmp_path_factory: pytest.TempPathFactory, genai_perf: str) -> Iterator[dict[str, int]]:
    """The ports of a server whose model answers as vLLM's backend does."""
    repository = tmp_path_factory.mktemp("models")
    (repository / "llm" / "1").mkdir(parents=True)
    (repository / "llm" / "config.pbtxt").write_text(CONFIG)
    (repository / "llm" / "1" / "model.py").write_text(MODEL)
    with serving(repository) as live:
        yield live.ports


def with_our_perf_analyzer(directory: Path) -> dict[str, str]:
    """The environment in which `perf_analyzer` is `tpx perf`, and no model hub is asked."""
    directory.mkdir()
    script = directory / "perf_analyzer"
    words = shlex.quote(str(directory / "words"))
    ours = f"{shlex.quote(sys.executable)} -m tpx perf"
    script.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {words}\nexec {ours} "$@"\n')
    script.chmod(0o755)
    return os.environ | {"PATH": f"{directory}:{os.environ['PATH']}", "HF_HUB_OFFLINE": "1"}


def prompts(directory: Path, beside: str = "") -> tuple[str, ...]:
    """A file of prompts with `beside` in their JSON, as an option."""
    file = directory / "prompts.jsonl"
    file.write_text("".join(f'{{"text_input": "What is {n}?"{beside}}}\n' for n in range(8)))
    return "--input-file", str(file)


def profiled(genai_perf: str, tokenizer: Path, directory: Path, *words: str) -> Outcome:
    """One `genai-perf profile`, of prompts unless other inputs are named; our figures are of the same run."""
    command = [genai_perf, "profile", "-m", "llm", "--tokenizer", str(tokenizer)]
    command += ["--artifact-dir", str(directory / "artifacts"), *words]
    if not {"--input-file", "--num-sessions"} & set(words):
        command += prompts(directory)
    command += ["--", "--json", str(directory / "own.json")]
    environment = with_our_perf_analyzer(directory / "bin")
    done = subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, timeout=150, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "NVIDIA GenAI-Perf" in done.stdout
    (artifacts,) = (directory / "artifacts").iterdir()
    (level,) = json.loads((directory / "own.json").read_bytes())["levels"]
    lines = csv.reader((artifacts / "profile_export_genai_perf.csv").read_text().splitlines())
    return Outcome(
        theirs=json.loads((artifacts / "profile_export_genai_perf.json").read_bytes()),
        rows={line[0]: line[1:] for line in lines if line},
        ours=level,
        words=(directory / "bin" / "words").read_text().splitlines(),
    )


def assert_the_same_figures(outcome: Outcome) -> None:
    """Of a stream: each is exact but for what rounding to ns leaves."""
    theirs, ours = outcome.theirs, outcome.ours
    streaming = ours["streaming"]
    pairs = {
        "request_latency": ours["latency_us"],
        "time_to_first_token": streaming["first_response_us"],
    }
    for name, mine in pairs.items():
        for their_word, word in (("avg", "mean"), ("min", "min"), ("max", "max")):
            assert theirs[name][their_word] == pytest.approx(mine[word] / 1000, abs=0.001), (name, word)
    # as many pieces as tokens, and as many in every answer: the mean of means is the mean
    gaps = streaming["inter_response_us"]
    assert theirs["inter_token_latency"]["avg"] == pytest.approx(gaps["mean"] / 1000, abs=0.001)
    assert theirs["output_sequence_length"]["avg"] == TOKENS
    assert theirs["request_count"]["avg"] == ours["requests"]
    assert streaming["responses"] == TOKENS * ours["requests"]
    # they count from the first sending to the last response, we the window around it
    assert theirs["request_throughput"]["avg"] == pytest.approx(ours["throughput"]["value"], rel=0.1)
    assert float(outcome.rows["Time To First Token (ms)"][0]) == pytest.approx(
        streaming["first_response_us"]["mean"] / 1000, abs=0.006
    )


def test_a_streamed_chat_has_our_figures_in_its_tables(
    genai_perf: str, tokenizer: Path, tmp_path: Path
) -> None:
    with openai_server(SCRIPT) as url:
        load = ("--concurrency", "2", "--request-count", str(REQUESTS), "--warmup-request-count", "3")
        words = ("-u", url, "--endpoint-type", "chat", "--streaming", *load)
        outcome = profiled(genai_perf, tokenizer, tmp_path, *words)
    assert outcome.theirs["request_count"]["avg"] == REQUESTS
    assert_the_same_figures(outcome)
    assert "--streaming" not in outcome.words  # what it sends says so


def test_completions_at_a_rate_are_read_too(genai_perf: str, tokenizer: Path, tmp_path: Path) -> None:
    with openai_server(SCRIPT) as url:
        load = ("--request-rate", str(REQUESTS), "--request-count", str(REQUESTS))
        words = ("-u", url, "--endpoint-type", "completions", "--streaming", *load)
        outcome = profiled(genai_perf, tokenizer, tmp_path, *words)
    assert (outcome.ours["mode"], outcome.ours["value"]) == ("request_rate", REQUESTS)
    assert outcome.theirs["output_sequence_length"]["avg"] == TOKENS
    assert outcome.theirs["request_count"]["avg"] == outcome.ours["requests"] == REQUESTS
    # ours counts from the time that the rate intended, theirs from the sending
    assert outcome.theirs["time_to_first_token"]["avg"] <= (
        outcome.ours["streaming"]["first_response_us"]["mean"] / 1000 + 0.001
    )


def test_a_chat_without_a_stream_has_latencies_alone(
    genai_perf: str, tokenizer: Path, tmp_path: Path
) -> None:
    with openai_server(SCRIPT) as url:
        words = ("-u", url, "--endpoint-type", "chat", "--request-count", str(REQUESTS))
        outcome = profiled(genai_perf, tokenizer, tmp_path, *words)
    theirs = outcome.theirs["request_latency"]
    assert theirs["avg"] == pytest.approx(outcome.ours["latency_us"]["mean"] / 1000, abs=0.001)
    assert outcome.theirs["output_sequence_length"]["avg"] == len("all")


@pytest.mark.parametrize("kind", ["embeddings", "multimodal"])
def test_bodies_of_other_kinds_are_read_too(
    genai_perf: str, tokenizer: Path, tmp_path: Path, kind: str
) -> None:
    script = Script(first_s=0.005)
    image = ', "image": "http://nowhere.test/a.png"' if kind == "multimodal" else ""
    with openai_server(script) as url:
        words = ("-u", url, "--endpoint-type", kind, "--request-count", str(REQUESTS))
        outcome = profiled(genai_perf, tokenizer, tmp_path, *words, *prompts(tmp_path, image))
    assert ("nowhere.test" in json.dumps(script.bodies[-1])) is bool(image)
    theirs = outcome.theirs["request_latency"]
    assert theirs["avg"] == pytest.approx(outcome.ours["latency_us"]["mean"] / 1000, abs=0.001)


def test_a_model_with_text_outputs_is_measured_over_a_grpc_stream(
    genai_perf: str, tokenizer: Path, tmp_path: Path, triton: dict[str, int]
) -> None:
    where = ("-u", f"127.0.0.1:{triton['GRPCInferenceService']}")
    words = (*where, "--endpoint-type", "kserve", "--backend", "vllm", "--streaming")
    outcome = profiled(genai_perf, tokenizer, tmp_path, *words, "--request-count", str(REQUESTS))
    assert_the_same_figures(outcome)
    at = outcome.words.index("--streaming")
    assert outcome.words[at - 2 : at] == ["-i", "grpc"]


def test_generate_stream_is_measured_as_a_service_of_text(
    genai_perf: str, tokenizer: Path, tmp_path: Path, triton: dict[str, int]
) -> None:
    where = ("-u", f"127.0.0.1:{triton['HTTPService']}", "--endpoint", "v2/models/llm/generate_stream")
    words = (*where, "--endpoint-type", "generate", "--streaming", "--request-count", str(REQUESTS))
    assert_the_same_figures(profiled(genai_perf, tokenizer, tmp_path, *words))


def assert_conversations_were_held(script: Script, outcome: Outcome) -> None:
    """Every turn was asked once behind the turns before it, and each session has its own figures."""
    turns = [len(body["messages"]) // 2 for body in script.bodies]
    assert sorted(turns) == sorted(list(range(SESSION_TURNS)) * SESSIONS)
    assert outcome.ours["sessions"] == {"total": SESSIONS, "finished": SESSIONS, "unsent_turns": 0}
    assert outcome.theirs["request_count"]["avg"] == outcome.ours["requests"] == SESSIONS * SESSION_TURNS
    sessions = outcome.theirs["sessions"].values()
    assert len(sessions) == SESSIONS
    means = [session["request_latency"]["avg"] for session in sessions]
    assert sum(means) / SESSIONS == pytest.approx(outcome.ours["latency_us"]["mean"] / 1000, abs=0.001)
    at = outcome.words.index("--session-concurrency")
    assert outcome.words[at + 1] == "2"
    assert script.most_at_once <= 2


def test_sessions_that_it_makes_up_are_conversations(
    genai_perf: str, tokenizer: Path, tmp_path: Path
) -> None:
    script = replace(SCRIPT, bodies=[], replies=True)
    length = ("--synthetic-input-tokens-mean", "20", "--session-turns-mean", str(SESSION_TURNS))
    delay = ("--session-turn-delay-mean", "20", "--session-turns-stddev", "0")
    with openai_server(script) as url:
        words = ("-u", url, "--endpoint-type", "chat", "--session-concurrency", "2")
        sessions = ("--num-sessions", str(SESSIONS), *length, *delay)
        outcome = profiled(genai_perf, tokenizer, tmp_path, *words, *sessions)
    assert_conversations_were_held(script, outcome)


def test_sessions_of_a_file_are_streamed_conversations(
    genai_perf: str, tokenizer: Path, tmp_path: Path
) -> None:
    script = replace(SCRIPT, bodies=[])
    file = tmp_path / "sessions.jsonl"
    turns = [
        {"text": f"What of {n}?", "session_id": f"session {n}"} | ({} if last else {"delay": 10})
        for last in (False, False, True)
        for n in range(SESSIONS)
    ]
    file.write_text("\n".join(map(json.dumps, turns)))
    with openai_server(script) as url:
        words = ("-u", url, "--endpoint-type", "chat", "--streaming", "--session-concurrency", "2")
        outcome = profiled(genai_perf, tokenizer, tmp_path, *words, "--input-file", f"payload:{file}")
    assert_conversations_were_held(script, outcome)
    assert_the_same_figures(outcome)
    assert set(outcome.theirs["sessions"]) == {f"session {n}" for n in range(SESSIONS)}
