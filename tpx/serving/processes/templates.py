"""Templates of one frontend's requests and of the responses to them, in the engine."""

from collections.abc import Sequence

from tpx.protocol.tensors import Buffer, Tensor
from tpx.protocol.v2 import Parameter
from tpx.serving.inference_plane import FastPath
from tpx.serving.processes import wire
from tpx.serving.processes.wire import FrameTemplate, Templates
from tpx.serving.request import RequestHead, rendering_key


class RequestTemplate:
    """Request template: a request without tensors, with its head and fast path until a model changes."""

    __slots__ = ("fast_path", "generation", "head", "output_size", "request", "sizes", "template")

    def __init__(self, meta: Buffer) -> None:
        self.request = wire.decode(wire.Request, meta)
        self.sizes = self.request.sizes
        self.head: RequestHead | None = None
        self.generation = -1
        self.fast_path: FastPath | None = None
        self.template: FrameTemplate | None = None
        """Template of the responses on the fast path, whose outputs always have the same shapes."""
        self.output_size = 0
        """Bytes of all outputs of such a response."""

    def learn(self, head: RequestHead, generation: int, fast_path: FastPath | None) -> None:
        """Store the validated head, and the fast path if the model has one."""
        self.head, self.generation, self.fast_path, self.template = head, generation, fast_path, None


class PeerTemplates:
    """Templates in both directions of one frontend's channel."""

    def __init__(self, key: str) -> None:
        """`key` names the channel: no other one ever has it."""
        self.requests: list[RequestTemplate | None] = [None] * wire.TEMPLATES
        self.responses = Templates()
        self._key = key

    def of_response(self, head: RequestHead, outputs: Sequence[Tensor]) -> FrameTemplate | None:
        """Return the template of responses with outputs of these shapes, None if their sizes may vary."""
        key = rendering_key(self._key, outputs, None)
        known: FrameTemplate | None = head.rendered.get(key)
        if known is None and outputs and not any(tensor.datatype == "BYTES" for tensor in outputs):
            known = FrameTemplate(encode_outputs(outputs, None, None))
            head.remember_rendered(key, known)
        return known


def encode_outputs(
    outputs: Sequence[Tensor], parameters: dict[str, Parameter] | None, head: RequestHead | None
) -> bytes:
    """Return the metadata of a response; `head` describes it to a frontend that does not know the model."""
    tensors = [wire.OutputTensor(t.name, t.datatype, t.shape, len(t.data)) for t in outputs]
    described = None if head is None else wire.Described.of(head)
    return wire.encode(wire.WireResponse(tensors, parameters or None, described))
