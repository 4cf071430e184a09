"""From data to requests in their final form, encoded once before the load."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from tpx.errors import UsageError
from tpx.perf.clients.base import PLAIN, Check, Prepared, RequestFields, Template, Writer
from tpx.perf.clients.model import ModelDescription, TensorDescription
from tpx.perf.clients.openai import DELAY, SESSION
from tpx.perf.inputs.base import EXACT, SequenceSpec, Tolerance
from tpx.perf.inputs.feed import Conversation, ConversationTurn, Feed, RoundRobin, batches
from tpx.perf.inputs.sequences import END, START, SequenceFeed, SequenceStream, needed_flags
from tpx.perf.inputs.shared_memory import TensorRegions
from tpx.perf.inputs.steps import DataSet, Expectation, Step, Validator, named, stacked
from tpx.perf.pace import PaceSpec
from tpx.perf.results import DataSummary
from tpx.protocol.tensors import Tensor, decode_bytes

if TYPE_CHECKING:
    from tpx.perf.capture import Capture

GIB = 1 << 30
NOTICED_BYTES = GIB
"""Total size of requests above which a notice is reported."""
ASKED_BYTES = 64 << 20
"""Total size of requests from which it is compared with the free memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedSettings:
    """How requests are made from the data.

    `sequences` is set for models that take sequences; `scheduled` steps are sent at their timestamps,
    `conversing` ones are turns of conversations. Responses are compared with the data's expected
    outputs within `tolerance`; None means exactly.
    """

    fields: RequestFields = PLAIN
    batch_size: int = 1
    sequences: SequenceSpec | None = None
    scheduled: bool = False
    conversing: bool = False
    tolerance: Tolerance | None = None
    pace: PaceSpec = field(default_factory=PaceSpec)
    """The speed of a schedule, and the pause of turns that have none of their own."""
    shared: TensorRegions | None = None
    """Regions for the tensors that the server reads or writes in shared memory."""
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    """The feed of a run, with the due times of a fixed schedule in ns from its start, or the
    conversations whose turns are the steps.
    """

    feed: Feed
    data: DataSummary
    timestamps_ns: tuple[int, ...] = ()
    conversations: tuple[Conversation, ...] = ()
    notices: tuple[str, ...] = ()


async def make_requests(
    writer: Writer,
    model: ModelDescription,
    data: DataSet,
    settings: FeedSettings,
    capture: "Capture | None" = None,
) -> Requests:
    """Encode every request that can be sent, step by step; `capture` keeps them and their responses.

    Raises UsageError if a step does not fit the model, or if the requests do not fit in memory.
    """
    maker = _RequestMaker(writer, model, settings, capture)
    maker.share_outputs(data)
    times: tuple[int, ...] = ()
    turns: tuple[Conversation, ...] = ()
    if settings.sequences is not None:
        if settings.batch_size > 1:
            raise UsageError("can not specify batch size > 1 when using a sequence model")
        streams = await maker.sequences(data, settings.sequences)
        feed: Feed = SequenceFeed(streams, settings.sequences, settings.seed, maker.check(()))
    else:
        steps = data.steps
        order: Sequence[int] = range(len(steps))
        if settings.scheduled:
            unsorted = [_require_timestamp(steps[i]) for i in order]
            order = sorted(order, key=unsorted.__getitem__)
            times = tuple(round(time_ns / settings.pace.speed) for time_ns in sorted(unsorted))
        contents = (
            maker.contents(number, [steps[order[i % len(order)]] for i in batch])
            for number, batch in enumerate(batches(len(order), settings.batch_size))
        )
        requests = [await writer.prepare(*content) for content in contents]
        feed = RoundRobin(requests, maker.check(requests))
        turns = conversations(data, requests, settings) if settings.conversing else ()
    count = sum(len(stream) for stream in data.streams)
    return Requests(
        feed=feed,
        data=DataSummary(
            streams=len(data.streams), steps=count, tensors=maker.first, made=data.made, guesses=data.guesses
        ),
        timestamps_ns=times,
        conversations=turns,
        notices=maker.notices,
    )


def _require_timestamp(step: Step) -> int:
    if step.timestamp_ns is None:
        raise UsageError(f"--fixed-schedule: {step.where}: the step has no timestamp")
    return step.timestamp_ns


class _RequestMaker:
    def __init__(
        self, writer: Writer, model: ModelDescription, settings: FeedSettings, capture: "Capture | None"
    ) -> None:
        self._writer = writer
        self._model = model
        self._settings = settings
        self._capture = capture
        self._captured: list[tuple[Tensor, ...]] = []
        """Tensors of each request, if they are captured."""
        self._bytes = 0
        self._limit = 0
        """Maximum size of all requests in bytes; determined once they exceed ASKED_BYTES."""
        self._notices: list[str] = []
        self.first: tuple[TensorDescription, ...] = ()
        """Tensors of the first request."""
        self._expected: dict[int, Expectation] = {}
        self._outputs = settings.fields.outputs

    @property
    def notices(self) -> tuple[str, ...]:
        if self._bytes >= NOTICED_BYTES:
            taken = f"{self._bytes / GIB:.1f} GiB of memory"
            self._notices.append(f"the requests, which are encoded before the load, take {taken}")
        return tuple(self._notices)

    def share_outputs(self, data: DataSet) -> None:
        """Place outputs in shared memory unless compared: concurrent requests overwrite them there."""
        shared = self._settings.shared
        if shared is None:
            return
        if any(stream[i].expected for stream in data.streams for i in range(len(stream))):
            self._notices.append(
                "outputs are compared with validation_data, so they come in the responses; only inputs are "
                "in shared memory"
            )
            return
        self._outputs = shared.place_outputs(self._model, self._outputs, self._settings.batch_size)

    def check(self, requests: Sequence[Prepared]) -> Check | None:
        """Return the check of responses to all requests made, of which templates are not in `requests`.

        None if the data has no expected outputs and responses are not captured.
        """
        tolerance, check = self._settings.tolerance, None
        if self._expected:
            check = Validator(self._expected, tolerance or EXACT)
        elif tolerance is not None:
            raise UsageError("--tolerance: the data has no validation_data to compare responses with")
        if self._capture is None:
            return check
        return self._capture.keeping(self._captured, requests, check)

    async def sequences(self, data: DataSet, settings: SequenceSpec) -> list[SequenceStream]:
        out: list[SequenceStream] = []
        first = 0
        repeats = data.made or settings.fixed
        for stream in data.streams:
            count = len(stream)
            steps: list[dict[int, Template]] = []
            for i in range(count):
                tensors, fields = self.contents(first + i, [stream[i]])
                steps.append({})
                for flags in needed_flags(i, count, repeats=repeats):
                    start, end = bool(flags & START), bool(flags & END)
                    each = replace(fields, sequence_start=start, sequence_end=end)
                    steps[-1][flags] = await self._writer.template(tensors, each)
            out.append(SequenceStream(steps=steps, length=0 if repeats else count, first_step=first))
            first += count
        return out

    def contents(self, number: int, steps: Sequence[Step]) -> tuple[list[Tensor], RequestFields]:
        """Return the tensors of a request, and its other fields with the locations of shared tensors.

        Notes the outputs that its response is expected to have.
        """
        places = [step.where for step in steps]
        fields, shared = self._settings.fields, self._settings.shared
        if any(step.expected for step in steps):
            outputs = self._stack_tensors([step.expected for step in steps], self._model.outputs, places)
            requested = [output.name for output in fields.outputs]
            for tensor in outputs:
                if requested and tensor.name not in requested:
                    raise UsageError(
                        f"{places[0]}: validation_data has '{tensor.name}', which --output leaves out"
                    )
            self._expected[number] = Expectation(places[0], tuple(outputs))
        tensors = self._stack_tensors([step.inputs for step in steps], self._model.inputs, places)
        self.first = self.first or tuple(
            TensorDescription(name=t.name, datatype=t.datatype, shape=t.shape) for t in tensors
        )
        if self._capture is not None:
            self._captured.append(tuple(tensors))
        if shared is not None:
            fields = replace(fields, shared_inputs=shared.place_inputs(tensors), outputs=self._outputs)
        return tensors, fields

    def _stack_tensors(
        self, parts: Sequence[Sequence[Tensor]], specs: Sequence[TensorDescription], places: Sequence[str]
    ) -> list[Tensor]:
        tensors = stacked(parts, specs, places, batched=self._model.max_batch_size > 0)
        self._bytes += sum(len(tensor.data) for tensor in tensors)
        if self._bytes >= ASKED_BYTES and not self._limit:
            import psutil  # imported late: slow to import

            self._limit = psutil.virtual_memory().available // 2
        if self._limit and self._bytes > self._limit:
            raise UsageError(
                f"{places[-1]}: the requests up to here take {self._bytes / GIB:.1f} GiB, which is half of "
                "the memory that is free; use fewer steps, or split the data among several runs"
            )
        return tensors


def conversations(
    data: DataSet, requests: Sequence[Prepared], settings: FeedSettings
) -> tuple[Conversation, ...]:
    """Group requests into conversations, in order of first appearance; turns keep the data's order.

    `requests` has one entry per step. Turns without a delay have the think time. Raises UsageError if the
    data is not one stream.
    """
    think, rng = settings.pace.think_time, np.random.default_rng(settings.seed)
    if len(data.streams) != 1:
        raise UsageError(
            "Expected input data JSON to have one stream. Session concurrency mode must have an input data "
            'JSON with a single flat array for the "data" field with one element per request payload.'
        )
    (stream,) = data.streams
    sessions: dict[bytes, list[ConversationTurn]] = {}
    for number, request in enumerate(requests):
        tensors = named(stream[number].inputs)
        (session,) = decode_bytes(tensors[SESSION.name].data, 1)
        if DELAY.name in tensors:
            delay_ns = int(tensors[DELAY.name].numpy()[0]) * 1_000_000
        else:
            delay_ns = round(think.draw_s(rng) * 1e9) if think else 0
        turn = ConversationTurn(request=request, step=number, delay_ns=delay_ns)
        sessions.setdefault(session, []).append(turn)
    return tuple(tuple(turns) for turns in sessions.values())


def check_conversations(found: Sequence[Conversation], wanted: int) -> None:
    """Raise UsageError if there are fewer conversations than must run concurrently."""
    if len(found) < wanted:
        raise UsageError(
            f"The input data file contains {len(found)} unique session IDs, which is fewer than the required "
            f"session concurrency level of {wanted}. Please add more unique session IDs to the file or lower "
            "the session concurrency level."
        )
