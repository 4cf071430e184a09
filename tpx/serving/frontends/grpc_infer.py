"""Inference over gRPC.

A client that repeats a request sends the same protobuf bytes in front of different tensors. The bytes
before the tensors are decoded and validated once; later requests look them up, and the tensors are then
cut out at known lengths.
"""

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from tpx.errors import TpxError, Unsupported
from tpx.protocol import messages
from tpx.protocol.grpc.server_call import Method, ServerCall
from tpx.protocol.protobuf_contents import RAW_INPUT_TAG, encode_varint, split_raw_inputs
from tpx.protocol.tensors import Buffer, Tensor
from tpx.protocol.v2 import DecodedRequest, Parameter
from tpx.protocol.v2_protobuf import (
    RAW_OUTPUT_TAG,
    decode_infer_request,
    set_parameters,
)
from tpx.serving.dataplane import InferencePlane, RemotePath, RemoteResponse, UnscheduledPath
from tpx.serving.frontends.forwarding import HeaderForwarding
from tpx.serving.frontends.grpc_verbs import SERVICE, Rpc, fail, fail_internally, when_loaded
from tpx.serving.frontends.outputs import put_into_place, takes_long, with_classes
from tpx.serving.frontends.traced import trace_grpc
from tpx.serving.offload import LONG_BYTES, Postponed
from tpx.serving.repository.coordinator import NotLoaded
from tpx.serving.request import InferRequest, InferResponse, RequestHead, rendering_key

_REMEMBERED_HEADS = 1024
_REMEMBERED_HEAD_BYTES = 16 << 10
_REMEMBERED_SIZES = 4
_RAW_OUTPUT = bytes((RAW_OUTPUT_TAG,))
FINAL: Mapping[str, Parameter] = MappingProxyType({"triton_final_response": True})
NOT_FINAL: Mapping[str, Parameter] = MappingProxyType({"triton_final_response": False})
"""Parameters of every response of a stream but the last."""
_NO_PARAMETERS: Mapping[str, Parameter] = MappingProxyType({})

Reply = Callable[[InferRequest, InferResponse], None]


class _KnownGrpcHead:
    """A remembered message head: its decoded form, and the bytes expected before each tensor.

    Implements RemoteAnswers.
    """

    __slots__ = ("_bound", "_reply", "_starts", "fast", "frames", "head", "remote", "size")

    def __init__(
        self, head: RequestHead, fast: UnscheduledPath | None, remote: RemotePath | None, reply: Reply
    ) -> None:
        self.head = head
        self.fast = fast
        """Fast path for requests with this head; like `remote` only for a single input tensor."""
        self.remote = remote
        self._reply = reply
        self._bound: object = None
        self._starts: list[bytes] = []
        if head.shared is not None:
            self.frames, self.size = [], 0
            return
        self.frames = [bytes((RAW_INPUT_TAG,)) + encode_varint(bound.size) for bound in head.inputs]
        self.size = sum(len(frame) for frame in self.frames) + head.total_size

    def answer(self, fast: UnscheduledPath, outputs: list[bytes]) -> list[Buffer]:
        """Return the response for outputs computed on the fast path."""
        if not self._starts:
            self._starts = _render_starts(self.head, fast.outputs(), _NO_PARAMETERS)
        parts: list[Buffer] = []
        for start, data in zip(self._starts, outputs, strict=True):
            parts += (start, data)
        return parts

    def request(self, context: ServerCall) -> InferRequest:
        """Return a request that was sent to another process."""
        return InferRequest(self.head, [], self._reply, context)

    def answered(self, context: ServerCall, response: RemoteResponse, payload: Buffer) -> None:
        """Respond with the outputs in `payload`."""
        if self._bound is not response:
            self._bound = response
            self._starts = _render_starts(self.head, response.tensors(payload), _NO_PARAMETERS)
        if len(self._starts) == 1:
            context.respond((self._starts[0], payload))
            return
        outputs = response.tensors(payload)
        context.respond(
            [part for start, t in zip(self._starts, outputs, strict=True) for part in (start, t.data)]
        )


class GrpcInference:
    """Serves ModelInfer, and decodes the requests of ModelStreamInfer."""

    def __init__(self, plane: InferencePlane, forwarding: HeaderForwarding | None = None) -> None:
        self._plane = plane
        self._forwarding = forwarding
        self._heads: dict[bytes, _KnownGrpcHead] = {}
        self._sizes: list[int] = []  # lengths of recently remembered heads, to cut messages at for the lookup
        self._generation = -1

    def rpcs(self) -> list[Rpc]:
        return [Rpc(category="inference", method=Method(SERVICE + "ModelInfer", unary=self.serve))]

    def serve(
        self,
        call: ServerCall,
        message: Buffer,
        decoded: DecodedRequest | None = None,
        *,
        waits: bool = True,
    ) -> None:
        """Handle one request. Every error is answered; nothing is raised."""
        try:
            infer = self._build_or_answer(call, message, decoded)
            if infer is None:
                return
            if infer.head.model.decoupled:
                raise Unsupported("ModelInfer RPC doesn't support models with decoupled transaction policy")
            call.when_gone(infer.cancel)
            if self._plane.tracer.on:
                trace_grpc(self._plane.tracer, infer, call)
            self._plane.infer(infer)
        except Postponed as exc:
            call.when_gone(exc.then(partial(self.serve, call, message, waits=waits), partial(fail, call)))
        except NotLoaded as exc:
            if waits:
                when_loaded(call, exc, partial(self.serve, call, message, decoded, waits=False))
            else:
                fail(call, exc)
        except TpxError as exc:
            fail(call, exc)
        except Exception as exc:  # noqa: BLE001 (one request's boundary)
            fail_internally(call, "ModelInfer", exc)

    def _build_or_answer(
        self, call: ServerCall, message: Buffer, decoded: DecodedRequest | None
    ) -> InferRequest | None:
        """Return the request of a unary call; None: the fast path has answered it. Raises as `request`."""
        if decoded is None and self._forwarding is None:
            found = self._find_known(message)
            if found is not None:
                if self._start_fast(call, *found):
                    return None
                return InferRequest(found[0].head, found[1], self._reply, call)
        return self.request(message, call, self._reply, call, decoded)

    def request(
        self,
        message: Buffer,
        call: ServerCall,
        reply: Reply,
        context: Any,
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
                return InferRequest(found[0].head, found[1], reply, context)
        if decoded is None:
            decoded = self._decode_request(message)
        if forwarded:
            decoded.parameters.update(forwarded)
        head = self._plane.bind(decoded)
        size = decoded.tensor_offset
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
        return InferRequest(head, [tensor.data for tensor in decoded.inputs], reply, context)

    def _start_fast(self, call: ServerCall, known: _KnownGrpcHead, tensors: list[Buffer]) -> bool:
        """Answer a request on the fast path, or send it on the remote one. Return False if neither is
        possible.
        """
        fast, remote, plane = known.fast, known.remote, self._plane
        if (fast is None and remote is None) or plane.stopping or plane.tracer.on:
            return False
        if remote is not None:
            call_off = remote.send(tensors[0], known, call)
            if call_off is not None:
                call.when_gone(call_off)
            return call_off is not None
        assert fast is not None
        if fast.gathers:
            return fast.gather(tensors[0], partial(self._reply_gathered, call, known, fast, tensors))
        outputs = fast.compute_one(tensors[0])
        if outputs is not None:
            call.respond(known.answer(fast, outputs))
        return outputs is not None

    def _reply_gathered(
        self,
        call: ServerCall,
        known: _KnownGrpcHead,
        fast: UnscheduledPath,
        tensors: list[Buffer],
        outputs: list[bytes] | None,
    ) -> None:
        if outputs is not None:
            call.respond(known.answer(fast, outputs))
            return
        infer = InferRequest(known.head, tensors, self._reply, call)
        call.when_gone(infer.cancel)
        try:
            self._plane.infer(infer)
        except TpxError as exc:
            fail(call, exc)

    def _decode_request(self, message: Buffer) -> DecodedRequest:
        """Decode a message. Raises Postponed if it has explicit contents that take long to decode."""
        split = split_raw_inputs(message, 0)
        decode = partial(decode_infer_request, message, split, self._plane.max_string_elements)
        if split[0] > LONG_BYTES:
            raise Postponed(self._plane.offload, split[0], decode)
        return decode()

    def _find_known(self, message: Buffer) -> tuple[_KnownGrpcHead, list[Buffer]] | None:
        """Return the remembered head and the tensors of a message whose start and size match one, or None."""
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
            shared = known.head.shared.again(known.head)
            return None if shared is None else (known, shared)
        view = memoryview(message)
        buffers: list[Buffer] = []
        for frame, bound in zip(known.frames, known.head.inputs, strict=True):
            start = size + len(frame)
            if view[size:start] != frame:
                return None
            size = start + bound.size
            buffers.append(view[start:size])
        return known, buffers

    def _remember_head(self, start: bytes, head: RequestHead, method: Method) -> None:
        if len(self._heads) >= _REMEMBERED_HEADS:
            self._heads.clear()
        plain = len(head.inputs) == 1 and head.shared is None
        plane = self._plane
        known = self._heads[start] = _KnownGrpcHead(
            head,
            plane.fast_path(head) if plain else None,
            plane.remote_path(head) if plain else None,
            self._reply,
        )
        size = len(start)
        if size not in self._sizes:
            self._sizes = [size, *self._sizes][:_REMEMBERED_SIZES]
        if known.frames:
            method.tensor_offset = size + len(known.frames[0])

    def _reply(self, infer: InferRequest, response: InferResponse) -> None:
        call: ServerCall = infer.context
        if response.error is not None:
            fail(call, response.error)
            return
        parameters = response.parameters or _NO_PARAMETERS
        if infer.head.converted and takes_long(infer.head, response.outputs):
            work = partial(encode_response, infer, response.outputs, parameters)
            self._plane.offload.encode(work, call.respond, partial(fail, call))
            return
        try:
            parts = encode_response(infer, response.outputs, parameters)
        except TpxError as exc:
            fail(call, exc)
            return
        except Exception as exc:  # noqa: BLE001 (one request's boundary)
            fail_internally(call, "encoding an answer", exc)
            return
        call.respond(parts)


def encode_response(
    infer: InferRequest, outputs: list[Tensor], parameters: Mapping[str, Parameter] = _NO_PARAMETERS
) -> list[Buffer]:
    """Return a ModelInferResponse in parts, without copying the tensors."""
    head = infer.head
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
    message = messages.ModelInferResponse(
        model_name=head.model.name, model_version=str(head.model.version), id=head.request_id
    )
    for tensor in outputs:
        message.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
    set_parameters(message.parameters, parameters)
    if not outputs:
        return [message.SerializeToString()]
    starts = [_RAW_OUTPUT + encode_varint(len(tensor.data)) for tensor in outputs]
    starts[0] = message.SerializeToString() + starts[0]
    return starts
