"""Workloads of language models in files: ShareGPT's conversations, traces of Mooncake and BurstGPT, and lines
with bodies or texts of requests, as OpenAI's batches and aiperf have them.

The content of a file says which it is. Traces have lengths instead of texts: prompts are made of words, and
those of Mooncake share the blocks that its hashes name.
"""

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from pathlib import Path
from statistics import fmean

import numpy as np
import orjson

from tpx.errors import UsageError
from tpx.perf.clients.endpoint import Endpoint
from tpx.perf.clients.openai import DELAY, INPUT, SESSION, text_body
from tpx.perf.inputs.dataset import LINES
from tpx.perf.inputs.prompts import PromptSpec, bound_output, choose_maker
from tpx.perf.inputs.steps import DataSet, DataStream, Step
from tpx.perf.inputs.texts import TextMaker, text_tensor
from tpx.protocol.json_values import JsonObject, JsonValue
from tpx.protocol.tensors import Tensor

BLOCK_TOKENS = 512
"""Tokens of each block that a Mooncake trace names by a hash."""
SHARE_GPT = "ShareGPT"
HUMANS = ("human", "user")
BODY = ("messages", "prompt", "input")
"""Members of which a line that is a request's body has one."""
TIMES = ("timestamp", "session_id", "delay")
"""Members of a line beside a body."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadRequest:
    """One request of a workload: its body, its text, or the number of its tokens."""

    where: str
    body: JsonObject | None = None
    text: str = ""
    input_tokens: int = 0
    blocks: tuple[int, ...] = ()
    """Hashes of the blocks of its prompt, each of BLOCK_TOKENS, that other prompts may share."""
    output_tokens: int = 0
    reply: str = ""
    """The text that answered it; the output is to have its length."""
    timestamp_ns: int | None = None
    session: str = ""
    delay_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Requests of some files in order; `name` is that of the form."""

    name: str
    requests: tuple[WorkloadRequest, ...]

    @property
    def counts(self) -> bool:
        """True if prompts have to be made, or replies counted."""
        return any(r.input_tokens or r.reply for r in self.requests)

    @property
    def mean_tokens(self) -> int:
        """Mean length of the prompts that are to be made; 1 if there are none."""
        return round(fmean([r.input_tokens for r in self.requests if r.input_tokens] or [1]))


def read_workload(paths: Sequence[Path], *, conversing: bool, most: int | None = None) -> Workload | None:
    """Read the first `most` requests of files that are workloads; None if they are not.

    Without conversations, those of ShareGPT consist of their first turn. Raises UsageError naming the line.
    """
    found: list[WorkloadRequest] = []
    names = []
    for path in paths:
        read = _choose_form(path) if path.is_file() else None
        if read is None:
            return None
        name, requests = read
        names.append(name)
        for request in requests:
            same = found and request.session and found[-1].session == request.session
            if name == SHARE_GPT and same and not conversing:
                continue
            if most is not None and len(found) == most:
                break
            found.append(request)
    if not found:
        return None
    begin_ns = min((r.timestamp_ns for r in found if r.timestamp_ns is not None), default=0)
    moved = (
        r if r.timestamp_ns is None else replace(r, timestamp_ns=r.timestamp_ns - begin_ns) for r in found
    )
    return Workload(name=", ".join(dict.fromkeys(names)), requests=tuple(moved))


def _choose_form(path: Path) -> tuple[str, Iterator[WorkloadRequest]] | None:
    """Return the name of a file's form and its requests; None for perf_analyzer's form of data."""
    if path.suffix == ".csv":
        rows = csv.DictReader(io.StringIO(path.read_text(encoding="utf-8")))
        if not {"Timestamp", "Request tokens", "Response tokens"} <= set(rows.fieldnames or ()):
            return None
        return "BurstGPT", _read_each(path, rows, _read_burst_row)
    items = _read_items(path)
    first = next(items, None)
    if not isinstance(first, dict) or INPUT.name in first:
        return None
    items = chain([first], items)
    names = set(first)
    if "conversations" in names:
        return SHARE_GPT, _read_each(path, items, _read_conversation)
    if "input_length" in names:
        return "Mooncake", _read_each(path, items, _read_trace_line)
    if names & {*BODY, "body", "text", "turns"}:
        return "requests", _read_each(path, items, _read_request_line)
    return None


def _read_items(path: Path) -> Iterator[JsonValue]:
    """Yield the items of a JSON array, or of lines of JSON; none if the file is neither.

    Raises UsageError naming a line that is not JSON.
    """
    text = path.read_bytes()
    if path.suffix in LINES:
        for number, line in enumerate(text.splitlines(), 1):
            try:
                if line.strip():
                    yield orjson.loads(line)
            except orjson.JSONDecodeError as exc:
                raise UsageError(f"{path}: line {number}: {exc}") from exc
    elif text.lstrip().startswith(b"["):
        with suppress(orjson.JSONDecodeError):  # the reader of perf_analyzer's form tells what is wrong
            yield from orjson.loads(text)


def _read_each(
    path: Path, items: Iterable[JsonValue], read: Callable[[JsonValue, str], Iterator[WorkloadRequest]]
) -> Iterator[WorkloadRequest]:
    for number, item in enumerate(items):
        where = f"{path}: request {number}"
        try:
            yield from read(item, where)
        except (KeyError, TypeError, ValueError, AttributeError) as exc:
            missing = f"it has no {exc}" if isinstance(exc, KeyError) else str(exc)
            raise UsageError(f"{where}: {missing}") from exc


def _read_burst_row(row: dict[str, str], where: str) -> Iterator[WorkloadRequest]:
    """Yield a row of BurstGPT, unless the service failed: it then has no response."""
    if int(row["Response tokens"]) > 0:
        yield WorkloadRequest(
            where=where,
            input_tokens=int(row["Request tokens"]),
            output_tokens=int(row["Response tokens"]),
            timestamp_ns=round(float(row["Timestamp"]) * 1e9),
        )


def _read_trace_line(line: JsonObject, where: str) -> Iterator[WorkloadRequest]:
    yield WorkloadRequest(
        where=where,
        text=line.get("text_input", ""),
        input_tokens=0 if line.get("text_input") else int(line["input_length"]),
        blocks=tuple(line.get("hash_ids") or ()),
        output_tokens=int(line["output_length"]),
        **_read_times(line),
    )


def _read_conversation(item: JsonObject, where: str) -> Iterator[WorkloadRequest]:
    """Yield the turns of people, with the replies to them."""
    turns = [(turn["from"] in HUMANS, str(turn["value"])) for turn in item["conversations"]]
    for (human, text), (answers, reply) in pairwise(turns):
        if human and not answers and text:
            yield WorkloadRequest(where=where, text=text, reply=reply, session=str(item.get("id") or where))


def _read_request_line(line: JsonObject, where: str) -> Iterator[WorkloadRequest]:
    """Yield a request of a line: a body, a body of OpenAI's batches, a text, or several turns of one user."""
    if "turns" in line:
        for turn in line["turns"]:
            yield from _read_request_line({"session_id": line.get("session_id") or where, **turn}, where)
    elif "text" in line:
        yield WorkloadRequest(
            where=where, text=line["text"], output_tokens=line.get("output_length") or 0, **_read_times(line)
        )
    else:
        body = line.get("body") or {name: value for name, value in line.items() if name not in TIMES}
        yield WorkloadRequest(where=where, body=dict(body), **_read_times(line))


def _read_times(line: JsonObject) -> JsonObject:
    """Return when a request is due, in ms, and its place in a conversation, as aiperf's lines have them."""
    timestamp, delay = line.get("timestamp"), line.get("delay")
    return {
        "timestamp_ns": None if timestamp is None else round(float(timestamp) * 1e6),
        "session": str(line.get("session_id") or ""),
        "delay_ms": None if delay is None else round(float(delay)),
    }


def workload_data(workload: Workload, spec: PromptSpec, seed: int, endpoint: Endpoint) -> DataSet:
    """Return the requests of a workload; each is made when it is read, so that texts need no memory."""
    maker, counted = choose_maker(spec) if workload.counts else (None, "")
    requests = workload.requests

    def make(index: int) -> Step:
        request = requests[index]
        body = request.body
        if body is None:
            text = request.text or _make_text(maker, request, seed, index)
            body = text_body(text, endpoint)
            tokens = request.output_tokens or (maker.count(request.reply) if maker and request.reply else 0)
            body |= bound_output(spec, tokens) if tokens else {}
        inputs = [text_tensor(INPUT.name, orjson.dumps(body))]
        if endpoint.sessions:
            session = (request.session or str(index)).encode()
            inputs.append(text_tensor(SESSION.name, session))
            if request.delay_ms is not None:
                delay = np.array([request.delay_ms], np.uint64)
                inputs.append(Tensor(DELAY.name, "UINT64", (1,), delay.tobytes()))
        return Step(where=request.where, inputs=tuple(inputs), timestamp_ns=request.timestamp_ns)

    said = f"{len(requests):,} requests of the form {workload.name}"
    return DataSet(
        streams=(DataStream(len(requests), make),), made=False, notices=tuple(filter(None, (said, counted)))
    )


def _make_text(maker: TextMaker | None, request: WorkloadRequest, seed: int, index: int) -> str:
    """Return a prompt of a request's length; its blocks are the same texts in every prompt."""
    if maker is None:
        return ""
    left, pieces = request.input_tokens, list[str]()
    for block in request.blocks:
        tokens = min(left, BLOCK_TOKENS)
        if tokens > 0:
            pieces.append(maker.make(np.random.default_rng([seed, block]), tokens, first=not pieces))
        left -= tokens
    if left > 0:
        pieces.append(maker.make(np.random.default_rng([seed, 0, index]), left, first=not pieces))
    return " ".join(pieces)
