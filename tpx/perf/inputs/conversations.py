"""The steps of the data as turns of conversations: those with one `session_id` are one."""

from collections.abc import Sequence
from dataclasses import dataclass

from tpx.errors import UsageError
from tpx.perf.clients.base import Prepared
from tpx.perf.clients.openai import DELAY, SESSION
from tpx.perf.inputs.dataset import DataSet
from tpx.perf.inputs.steps import named
from tpx.protocol.tensors import decode_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One request of a conversation; `delay_ns` passes between its answer and the turn after it."""

    request: Prepared
    step: int
    delay_ns: int = 0


Conversation = tuple[Turn, ...]


def conversations(data: DataSet, requests: Sequence[Prepared]) -> tuple[Conversation, ...]:
    """The conversations in the order in which the data begins them, each one's turns in the data's order;
    `requests` are those of the steps.

    Raises UsageError where the data is not one stream.
    """
    if len(data.streams) != 1:
        raise UsageError(
            "Expected input data JSON to have one stream. Session concurrency mode must have an input data "
            'JSON with a single flat array for the "data" field with one element per request payload.'
        )
    (stream,) = data.streams
    sessions: dict[bytes, list[Turn]] = {}
    for number, request in enumerate(requests):
        tensors = named(stream[number].inputs)
        (session,) = decode_bytes(tensors[SESSION.name].data, 1)
        delay_ms = int(tensors[DELAY.name].numpy()[0]) if DELAY.name in tensors else 0
        turn = Turn(request=request, step=number, delay_ns=delay_ms * 1_000_000)
        sessions.setdefault(session, []).append(turn)
    return tuple(tuple(turns) for turns in sessions.values())


def check_conversations(found: Sequence[Conversation], wanted: int) -> None:
    """Raise UsageError where there are fewer than are to run at the same time."""
    if len(found) < wanted:
        raise UsageError(
            f"The input data file contains {len(found)} unique session IDs, which is fewer than the required "
            f"session concurrency level of {wanted}. Please add more unique session IDs to the file or lower "
            "the session concurrency level."
        )
