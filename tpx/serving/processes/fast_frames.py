"""The engine's fast path: plain frames of one template, computed together and answered without metadata."""

import time
from collections.abc import Callable, Sequence
from functools import partial

from tpx.serving.dataplane import DataPlane
from tpx.serving.inference_plane import split_outputs
from tpx.serving.processes.channel import HEAD_BYTES, Arrived, Fields, FrameChannel, ReceivedFrame
from tpx.serving.processes.templates import PeerTemplates, RequestTemplate
from tpx.serving.processes.wire import NO_TEMPLATE, TEMPLATES, Flag, FrameKind, FrameTemplate
from tpx.serving.turn import Turn

_clock = time.perf_counter_ns
_PUBLISH_NS = 30_000
"""Time after which responses are published, without waiting for the others of the run: to wake the
frontend takes 5 to 25 us, and this is time for several responses.
"""
_INFER, _RESPONSE, _FINAL = int(FrameKind.INFER), int(FrameKind.RESPONSE), int(Flag.FINAL)


class FastFrames:
    """Computes and answers the plain frames of one frontend."""

    def __init__(
        self,
        plane: DataPlane,
        channel: FrameChannel,
        templates: PeerTemplates,
        start: Callable[[ReceivedFrame, RequestTemplate], None],
    ) -> None:
        """`start` begins a request that the fast path refuses."""
        self._plane = plane
        self._channel = channel
        self._templates = templates
        self._start = start

    def find(self, fields: Fields) -> RequestTemplate | None:
        """Return the template of a request that can take the fast path, otherwise None."""
        length, kind, flags, _, template, generation, meta_size = fields
        # flags mean a trace, a stream, a new template or a payload in shared memory
        if kind != _INFER or flags or meta_size or template >= TEMPLATES:
            return None
        size = length - HEAD_BYTES
        known = self._templates.requests[template]
        if known is None or known.fast_path is None or known.head is None or known.head.total_size != size:
            return None
        plane = self._plane
        # a frontend that does not know of changed models needs a response that describes its outputs
        if not known.generation == plane.generation == generation or plane.stopping:
            return None
        return known

    def compute(self, known: RequestTemplate, arrived: Arrived, turn: Turn) -> int:
        """Compute requests on the fast path and answer them; those that it refuses take the regular path.

        Returns the number of requests left when the turn is over.
        """
        assert known.fast_path is not None
        _, numbers, tensors = arrived
        arrived_ns = _clock()
        self._channel.begin_turn(arrived_ns)
        done = known.fast_path.compute(tensors, arrived_ns, turn, partial(self._answer, known, numbers))
        for index in range(done, len(numbers)):
            if turn.is_over(_clock()):
                return len(numbers) - index
            self._start(
                ReceivedFrame(_INFER, 0, numbers[index], NO_TEMPLATE, known.generation, b"", tensors[index]),
                known,
            )
        return 0

    def _answer(
        self,
        known: RequestTemplate,
        numbers: Sequence[int],
        outputs: Sequence[memoryview],
        first: int,
        count: int,
        now_ns: int,
    ) -> None:
        """Send the responses to requests that were computed in one run."""
        channel, responses = self._channel, self._templates.responses
        template = known.template or self._learn_outputs(known)
        plain = template.plain_in(responses, _RESPONSE, _FINAL, 0, known.output_size)
        if count == len(outputs) == 1 and plain is not None:  # the common case, without slicing
            channel.post_plain(plain, numbers[first], bytes(outputs[0]))
            count = 0
        for index, parts in enumerate(split_outputs(outputs, count) if count else (), first):
            if plain is None:
                defined = template.define_in(responses)
                head = _RESPONSE, Flag.FINAL | Flag.DEFINES, numbers[index], defined, 0
                channel.post(head, template.meta, parts)
                plain = template.plain_in(responses, _RESPONSE, _FINAL, 0, known.output_size)
            else:
                channel.post_plain(plain, numbers[index], b"".join(parts))
        channel.publish_late(now_ns, _PUBLISH_NS)

    def _learn_outputs(self, known: RequestTemplate) -> FrameTemplate:
        assert known.fast_path is not None
        assert known.head is not None
        outputs = known.fast_path.outputs()
        template = self._templates.of_response(known.head, outputs)
        assert template is not None
        known.template, known.output_size = template, sum(len(tensor.data) for tensor in outputs)
        return template
