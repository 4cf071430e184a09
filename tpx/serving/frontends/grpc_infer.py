"""Inference over gRPC.

A remembered head is the protobuf bytes before the tensors, which are then cut out at known lengths.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from types import MappingProxyType

from tpx.errors import TpxError, Unsupported
from tpx.protocol import messages
from tpx.protocol.grpc.repeated import RepeatedCalls
from tpx.protocol.grpc.server_call import Method, ServerCall
from tpx.protocol.protobuf_contents import RAW_INPUT_TAG, encode_varint, split_raw_inputs
from tpx.protocol.tensors import Buffer, Tensor
from tpx.protocol.v2 import DecodedRequest, Parameter
from tpx.protocol.v2_protobuf import RAW_OUTPUT_TAG, decode_infer_request, set_parameters
from tpx.serving.deferred import NotLoaded
from tpx.serving.frontends.forwarding import HeaderForwarding
from tpx.serving.frontends.grpc_verbs import SERVICE, Rpc, fail, fail_internally, when_loaded
from tpx.serving.frontends.inference import CachedHead, Replies
from tpx.serving.frontends.outputs import put_into_place, with_classes
from tpx.serving.frontends.traced import trace_grpc
from tpx.serving.inference_plane import FastPath, InferencePlane, RemoteResponse, split_outputs
from tpx.serving.offload import LONG_BYTES, Postponed
from tpx.serving.request import InferRequest, InferResponse, RequestHead, rendering_key
from tpx.serving.turn import Turn

_REMEMBERED_HEADS = 1024
_REMEMBERED_HEAD_BYTES = 16 << 10
_REMEMBERED_SIZES = 4
RAW_OUTPUT = bytes((RAW_OUTPUT_TAG,))
FINAL: Mapping[str, Parameter] = MappingProxyType({"triton_final_response": True})
NOT_FINAL: Mapping[str, Parameter] = MappingProxyType({"triton_final_response": False})
"""Parameters of every response of a stream but the last."""
_NO_PARAMETERS: Mapping[str, Parameter] = MappingProxyType({})

Reply = Callable[[InferRequest, InferResponse], None]


class _KnownGrpcHead(CachedHead[ServerCall, list[Buffer]]):
    """A remembered message head, and the bytes expected before each tensor of requests and responses."""

    __slots__ = ("_generation", "_outputs", "_repeated", "_start", "_starts", "size", "tensors")

    def __init__(
        self, head: RequestHead, replies: Replies[ServerCall, list[Buffer]], start: bytes, *, repeats: bool
    ) -> None:
        """`start` are the bytes of the head. With `repeats`, repeated calls may be answered by a template."""
        plain = head.shared is None
        super().__init__(head, replies, contiguous=not plain or len(head.inputs) == 1)
        self._outputs: object = None
        """Identity of the shapes that `_starts` belongs to."""
        self._starts: list[bytes] = []
        self.tensors: list[tuple[bytes, int]] = []
        """Bytes expected before each tensor of a request, and its size."""
        self.size = 0
        if plain:
            tag = bytes((RAW_INPUT_TAG,))
            self.tensors = [(tag + encode_varint(bound.size), bound.size) for bound in head.inputs]
            self.size = sum(len(start) for start, _ in self.tensors) + head.total_size
        fast, one = self.fast, len(self.tensors) == 1
        self._start = start if repeats and one and fast is not None else b""
        """Bytes of the head if repeated calls may be answered by a template."""
        self._repeated: RepeatedCalls | None = None
        self._generation = replies.plane.generation

    def answer(self, exchange: ServerCall, fast: FastPath, outputs: Sequence[Buffer]) -> None:
        if self._outputs is not fast:
            self._learn_outputs(fast, fast.outputs())
        self._respond(exchange, outputs)
        if self._start and not (self._repeated is not None and exchange.repeat(self._repeated)):
            (before, tail), size = self.tensors[0], sum(map(len, [*self._starts, *outputs]))
            # fewer than a batch are computed with those of other connections
            self._repeated = exchange.repeat_with(
                self._answer_repeated, self._start + before, tail, size, together=fast.most
            )

    def _answer_repeated(self, tensors: Sequence[bytes]) -> list[bytes]:
        """Return the response messages to the first of these requests that the fast path takes."""
        plane, fast = self._replies.plane, self.fast
        messages: list[bytes] = []
        if fast is None or plane.generation != self._generation or plane.stopping or plane.tracer.on:
            return messages
        try:
            if len(tensors) > 1:
                self._answer_together(fast, tensors, messages)
            elif outputs := fast.compute_one(tensors[0]):
                messages.append(b"".join(chain.from_iterable(zip(self._starts, outputs, strict=True))))
        except Exception:  # noqa: BLE001 (computed again like any other, a request that fails is reported)
            return messages
        return messages

    def _answer_together(self, fast: FastPath, tensors: Sequence[bytes], messages: list[bytes]) -> None:
        """Append the response message of each request that is computed."""
        starts = self._starts

        def answer(outputs: Sequence[memoryview], _: int, count: int, __: int) -> None:
            if len(starts) == count == 1:
                messages.append(starts[0] + outputs[0])
                return
            messages.extend(
                b"".join(chain.from_iterable(zip(starts, each, strict=True)))
                for each in split_outputs(outputs, count)
            )

        now_ns = time.perf_counter_ns()
        fast.compute(tensors, now_ns, Turn(now_ns), answer)

    def answered(self, context: ServerCall, response: RemoteResponse, payload: Buffer) -> None:
        if self._outputs is not response:
            self._learn_outputs(response, response.tensors(payload))
        one = len(self._starts) == 1
        self._respond(context, (payload,) if one else [part.data for part in response.tensors(payload)])

    def _respond(self, call: ServerCall, outputs: Sequence[Buffer]) -> None:
        starts = self._starts
        if len(starts) == 1:  # without zip(), which takes longer than the rest
            call.respond((starts[0], outputs[0]))
        else:
            call.respond([part for pair in zip(starts, outputs, strict=True) for part in pair])

    def _learn_outputs(self, identity: object, outputs: list[Tensor]) -> None:
        self._outputs, self._starts = identity, _render_starts(self.head, outputs, _NO_PARAMETERS)


class GrpcInference:
    """Serves ModelInfer, and decodes the requests of ModelStreamInfer."""

    def __init__(self, plane: InferencePlane, forwarding: HeaderForwarding | None = None) -> None:
        self._plane = plane
        self._replies = Replies(
            plane, encode_response, ServerCall.respond, fail, partial(fail_internally, what="ModelInfer")
        )
        self._forwarding = forwarding
        self._heads: dict[bytes, _KnownGrpcHead] = {}
        self._sizes: list[int] = []  # lengths of recently remembered heads, to cut messages at for the lookup
        self._generation = -1

    def rpcs(self) -> list[Rpc]:
        return [Rpc(category="inference", method=Method(SERVICE + "ModelInfer", unary=self.serve))]

    def serve(
        self, call: ServerCall, message: Buffer, decoded: DecodedRequest | None = None, *, waits: bool = True
    ) -> None:
        """Handle one request. Every error is answered; nothing is raised."""
        try:
            infer = self._build_or_answer(call, message, decoded)
            if infer is None:
                return
            if infer.head.model.decoupled:
                raise Unsupported("ModelInfer RPC doesn't support models with decoupled transaction policy")
            call.on_gone = infer.cancel
            if self._plane.tracer.on:
                trace_grpc(self._plane.tracer, infer, call)
            self._plane.infer(infer)
        except Postponed as exc:
            call.on_gone = exc.then(partial(self.serve, call, message, waits=waits), partial(fail, call))
        except NotLoaded as exc:
            if waits:
                when_loaded(call, exc, partial(self.serve, call, message, decoded, waits=False))
            else:
                fail(call, exc)
        except TpxError as exc:
            fail(call, exc)
        except Exception as exc:  # noqa: BLE001 (one request's boundary)
            fail_internally(call, exc, "ModelInfer")

    def _build_or_answer(
        self, call: ServerCall, message: Buffer, decoded: DecodedRequest | None
    ) -> InferRequest | None:
        """Return the request of a unary call; None: the fast path has answered it. Raises as `request`."""
        if decoded is None and self._forwarding is None:
            found = self._find_known(message)
            if found is not None:
                known, tensors = found
                if known.quick and known.start(call, tensors[0] if tensors else b""):
                    return None
                infer = known.head.repeat(tensors, self._replies.reply, call)
                if infer is not None:
                    return infer
        return self.request(message, call, self._replies.reply, call, decoded)

    def request(
        self,
        message: Buffer,
        call: ServerCall,
        reply: Reply,
        context: object,
        decoded: DecodedRequest | None = None,
    ) -> InferRequest:
        """Build the request in a message, or `decoded`. Raises RequestError; Postponed if that takes long."""
        forwarded = None
        if self._forwarding is not None:
            forwarded = self._forwarding.of_metadata(call.head.metadata)
        # metadata adds parameters that the message bytes do not show: skip the lookup
        if decoded is None and not forwarded:
            found = self._find_known(message)
            if found is not None:
                infer = found[0].head.repeat(found[1], reply, context)
                if infer is not None:
                    return infer
        if decoded is None:
            decoded = self._decode_request(message)
        if forwarded:
            decoded.parameters.update(forwarded)
        bound = self._plane.bind(decoded)
        head, size = bound.head, decoded.tensor_offset
        if (
            0 <= size <= _REMEMBERED_HEAD_BYTES
            and head.total_size >= 0
            and not (head.request_id or head.placed or forwarded)
        ):
            self._remember_head(bytes(message[:size]), head, call.method)
        elif (
            head.shared is not None
            and not (head.request_id or forwarded)
            and len(message) <= _REMEMBERED_HEAD_BYTES
        ):
            self._remember_head(bytes(message), head, call.method)
        return bound.request(reply, context)

    def _decode_request(self, message: Buffer) -> DecodedRequest:
        """Decode a message. Raises Postponed if it has explicit contents that take long to decode."""
        split = split_raw_inputs(message)
        decode = partial(decode_infer_request, message, split, self._plane.max_string_elements)
        if split[0] > LONG_BYTES:
            raise Postponed.for_decoding(self._plane.offload, split[0], decode)
        return decode()

    def _find_known(self, message: Buffer) -> tuple[_KnownGrpcHead, list[Buffer]] | None:
        """Return the remembered head and the tensors of a message whose start and size match one, or None.

        Tensors in shared memory are not in the message.
        """
        if self._generation != self._plane.generation:
            # models changed: the remembered heads may be stale
            self._heads.clear()
            self._generation = self._plane.generation
        heads = self._heads
        for size in self._sizes:
            known = heads.get(bytes(message[:size]))
            if known is not None:
                break
        else:
            return None
        if len(message) != size + known.size:
            return None
        if known.head.shared is not None:
            return known, []
        view = memoryview(message)
        buffers: list[Buffer] = []
        for expected, length in known.tensors:
            start = size + len(expected)
            if message[size:start] != expected:
                return None
            size = start + length
            buffers.append(view[start:size])
        return known, buffers

    def _remember_head(self, start: bytes, head: RequestHead, method: Method) -> None:
        if len(self._heads) >= _REMEMBERED_HEADS:
            self._heads.clear()
        known = self._heads[start] = _KnownGrpcHead(
            head, self._replies, start, repeats=self._forwarding is None
        )
        size = len(start)
        if size not in self._sizes:
            self._sizes = [size, *self._sizes][:_REMEMBERED_SIZES]
        if known.tensors:
            method.tensor_offset = size + len(known.tensors[0][0])


def encode_response(
    infer: InferRequest, outputs: list[Tensor], parameters: Mapping[str, Parameter] | None = None
) -> list[Buffer]:
    """Return a ModelInferResponse in parts, without copying the tensors."""
    head, parameters = infer.head, parameters or _NO_PARAMETERS
    if head.placed:
        outputs = put_into_place(outputs, infer)
    key = rendering_key("grpc", outputs, parameters)
    starts = head.rendered.get(key)
    if starts is None:
        outputs = with_classes(outputs, head)
        starts = _render_starts(head, outputs, parameters)
        # the size of BYTES outputs varies with their values, not only with their shape
        if not any(tensor.datatype == "BYTES" for tensor in outputs):
            head.remember_rendered(key, starts)
    if not outputs:
        return list(starts)
    parts: list[Buffer] = []
    for start, tensor in zip(starts, outputs, strict=True):
        parts.append(start)
        parts.append(tensor.data)
    return parts


def _render_starts(
    head: RequestHead, outputs: list[Tensor], parameters: Mapping[str, Parameter]
) -> list[bytes]:
    """Return the bytes before each tensor; the first item includes all other fields of the message."""
    fields = render_fields(head, outputs, parameters)
    if not outputs:
        return [fields]
    starts = [RAW_OUTPUT + encode_varint(len(tensor.data)) for tensor in outputs]
    starts[0] = fields + starts[0]
    return starts


def render_fields(head: RequestHead, outputs: list[Tensor], parameters: Mapping[str, Parameter]) -> bytes:
    """Return a ModelInferResponse without the data of its tensors."""
    message = messages.ModelInferResponse(
        model_name=head.model.name, model_version=str(head.model.version), id=head.request_id
    )
    for tensor in outputs:
        message.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
    set_parameters(message.parameters, parameters)
    return message.SerializeToString()
