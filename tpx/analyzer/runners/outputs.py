"""Outputs of a served model for the requests of its load, and their comparison: a variant that returns other
results than the default is no better, however fast. Answers of a language model may differ and still be good:
how many do is told.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import orjson

from tpx.errors import InvalidRequest, MeasurementError, TpxError
from tpx.perf.capture import parts_of, read_outputs
from tpx.perf.clients.base import Client, Prepared, Slot
from tpx.perf.clients.openai import INPUT, OpenAiAnswer, sent
from tpx.perf.inputs.values import bf16_floats
from tpx.perf.levels import Level
from tpx.perf.loads.senders import end_sequences
from tpx.perf.options import SessionSpec
from tpx.perf.session import Session
from tpx.protocol.tensors import Array, Tensor, encode_bytes

COMPARED, ANSWER_S = 3, 30.0
"""Number of requests whose outputs are compared, and the seconds for each."""

ANSWERS, ANSWER_TOKENS = 8, 32
"""Number of greedy answers of a language model that are compared, and their length."""
ANSWER = "answer"
"""Name of the only output of a language model that is measured through OpenAI's API."""

Outputs = Sequence[Mapping[str, Array]]
"""Values by the name of the output, one mapping per response."""


async def outputs_of(spec: SessionSpec, in_process: str = "") -> Outputs:
    """Return the outputs for a few single inferences with the data of a session, but random ones for zeros.

    Raises MeasurementError if a request fails.
    """
    spec = replace(spec, output=replace(spec.output, profile_export_file=None))
    inputs = replace(spec.inputs, batch_size=1, shared_memory="none")
    draws = [inputs]
    if not inputs.files:  # generated data has one step for each seed
        draws = [replace(inputs, input_data=("random",), seed=inputs.seed + n) for n in range(COMPARED)]
    found: list[Mapping[str, Array]] = []
    try:
        async with asyncio.timeout(COMPARED * ANSWER_S):
            for own in draws:
                async with Session(replace(spec, inputs=own), in_process=in_process) as session:
                    client, feed = session.connected.client, session.connected.requests.feed
                    (slot,) = await client.open(1)
                    feed.begin(Level("concurrency", 1))
                    source = feed.source(0)
                    for _ in range(COMPARED // len(draws)):
                        found += await _ask(client, slot, source.next())
                    await end_sequences([(slot, source)], ANSWER_S)
    except (TpxError, TimeoutError) as exc:
        why = str(exc) or f"they took more than {COMPARED * ANSWER_S:g} s"
        raise MeasurementError(
            f"the responses of '{spec.target.model}' could not be compared: {why}"
        ) from exc
    return found


async def answers_of(spec: SessionSpec) -> Outputs:
    """Return the greedy answers of a language model to a few of the load's requests.

    Raises MeasurementError if a request fails.
    """
    whole = replace(spec, wire=replace(spec.wire, streaming=False))
    try:
        async with asyncio.timeout(ANSWERS * ANSWER_S), Session(whole) as session:
            client, feed = session.connected.client, session.connected.requests.feed
            (slot,) = await client.open(1)
            feed.begin(Level("concurrency", 1))
            source, found = feed.source(0), []
            for _ in range(ANSWERS):
                body = orjson.loads(sent(source.next()))
                asked = body | {"temperature": 0, "max_tokens": ANSWER_TOKENS, "stream": False}
                tensor = Tensor(INPUT.name, "BYTES", (1,), encode_bytes([orjson.dumps(asked)]))
                found.append({ANSWER: await _ask_text(client, slot, await client.prepare([tensor]))})
            return found
    except (TpxError, TimeoutError) as exc:
        why = str(exc) or f"they took more than {ANSWERS * ANSWER_S:g} s"
        raise MeasurementError(f"the answers of '{spec.target.model}' could not be compared: {why}") from exc


async def _ask_text(client: Client, slot: Slot, request: Prepared) -> Array:
    """Return the text of a whole answer to a chat or a completion."""
    done: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def answered(response: OpenAiAnswer) -> None:
        if response.status == client.success:
            done.set_result(bytes(response.body))
        else:
            done.set_exception(MeasurementError(client.failure(response).message))

    slot.on_lost = done.set_exception
    slot.send(request, answered)
    choice = orjson.loads(await done)["choices"][0]
    return np.array([choice.get("text") or choice.get("message", {}).get("content") or ""], np.object_)


def describe_answers(reference: Outputs, outputs: Outputs) -> str:
    """Tell how many answers are those of the default; empty for outputs that are no answers."""
    pairs = list(zip(reference, outputs, strict=True))
    if not all(ANSWER in each for pair in pairs for each in pair) or not pairs:
        return ""
    same = sum(bool((wanted[ANSWER] == found[ANSWER]).all()) for wanted, found in pairs)
    return f"{same} of {len(pairs)} greedy answers are the default's"


async def _ask(client: Client, slot: Slot, request: Prepared) -> list[dict[str, Array]]:
    """Return the outputs of each response to a request."""
    done: asyncio.Future[list[dict[str, Array]]] = asyncio.get_running_loop().create_future()

    def answered(response: Any) -> None:
        # the bytes of a response are valid only during this callback
        if response.status != client.success:
            fail(MeasurementError(client.failure(response).message))
            return
        try:
            tensors = list(read_outputs(parts_of(response)))
            done.set_result([{each.name: _copy_values(each) for each in part} for part in tensors])
        except (InvalidRequest, KeyError, TypeError, ValueError) as exc:
            fail(MeasurementError(f"an output cannot be read: {exc}"))

    def fail(error: TpxError) -> None:
        if not done.done():
            done.set_exception(error)

    slot.on_lost = fail
    slot.send(request, answered)
    return await done


def _copy_values(tensor: Tensor) -> Array:
    values = tensor.numpy()
    return bf16_floats(values) if tensor.datatype == "BF16" else values.copy()


def difference(reference: Outputs, outputs: Outputs, tolerance: float) -> str:
    """Describe a difference beyond the tolerance; return an empty string if there is none."""
    for actual, expected in zip(outputs, reference, strict=True):
        missing = sorted(expected.keys() - actual.keys())
        if missing:
            return f"its responses lack output '{missing[0]}'"
        for name, wanted in expected.items():
            found = actual[name]
            if found.shape != wanted.shape:
                return f"output '{name}' has shape {list(found.shape)}, the default's {list(wanted.shape)}"
            reason = _describe_difference(wanted, found, tolerance)
            if reason:
                return f"output '{name}' {reason}"
    return ""


def _describe_difference(wanted: Array, found: Array, tolerance: float) -> str:
    if not np.issubdtype(wanted.dtype, np.floating):
        differing = int((wanted != found).sum())
        return f"differs from the default's in {differing} of {wanted.size} elements" if differing else ""
    if not wanted.size:
        return ""
    if not (np.isfinite(wanted) == np.isfinite(found)).all():
        return "is not finite where the default's is, or the other way round"
    finite = np.isfinite(wanted)
    # an all-zero output is compared by absolute difference
    scale = float(np.abs(wanted[finite]).max(initial=0.0)) or 1.0
    worst = float(np.abs(wanted[finite] - found[finite]).max(initial=0.0)) / scale
    if worst <= tolerance:
        return ""
    return f"differs from the default's by {worst:.2%} of its greatest value (allowed: {tolerance:.2%})"
