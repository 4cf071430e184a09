"""Requests encoded as frames, with the tensors that a sequence adds, and responses decoded from them."""

import json
from collections.abc import Sequence
from typing import Any

from tpx.errors import Cancelled, Code, ExecutionError, Overloaded, TpxError
from tpx.protocol.json_values import JsonObject
from tpx.protocol.tensors import Buffer, Tensor, as_array
from tpx.serving.backends.python.worker import frames
from tpx.serving.backends.python.worker.frames import Head
from tpx.serving.request import BoundOutput, InferRequest, InferResponse, RequestHead, TensorSpec
from tpx.serving.stacking.plain import client_shape
from tpx.serving.stacking.sequences import SequenceStacking


def added_tensors(
    stacking: SequenceStacking | None, row: InferRequest | None, like: InferRequest
) -> list[Tensor]:
    """Return the controls and states for a row; an empty one is in the batch of `like`."""
    if stacking is None:
        return []
    datatypes = [control.datatype.name for control in stacking.controls]
    datatypes += [state.datatype.name for state in stacking.states]
    arrays = stacking.added([row], like)
    return [
        Tensor.from_numpy(name, array, datatype)
        for (name, array), datatype in zip(arrays.items(), datatypes, strict=True)
    ]


_OWN_PARAMETERS = frozenset(("sequence_id", "sequence_start", "sequence_end", "priority", "timeout"))
_KEY = "python"
_NULL_KEY = "python null"
_INLINE = frames.NUMBER.pack(frames.INLINE)
CODES = (
    Code.UNKNOWN,
    Code.INTERNAL,
    Code.NOT_FOUND,
    Code.INVALID_ARGUMENT,
    Code.UNAVAILABLE,
    Code.UNSUPPORTED,
    Code.ALREADY_EXISTS,
    Code.CANCELLED,
)
"""Error codes by their numbers in pb_utils."""


def code_number(error: TpxError) -> int:
    """Return the number that models see for an error's code."""
    return CODES.index(error.code) if error.code in CODES else 1


def as_json(parameters: JsonObject) -> str:
    """Return parameters as JSON, spaced and escaped as Triton does."""
    return json.dumps(parameters, separators=(",", ":"), ensure_ascii=False)


def encode_request(handle: int, request: InferRequest, added: Sequence[Tensor], parts: list[Buffer]) -> None:
    """Append a request to the parts of a frame, without the bytes of its tensors and of the `added` ones."""
    head = request.head
    context = request.trace.context if request.trace is not None else ""
    key: Any = (_KEY, *[tensor.shape for tensor in added]) if added else _KEY
    encoded: bytes | None = head.rendered.get(key) if not context else _encode_head(head, added, context)
    if encoded is None:
        encoded = _encode_head(head, added)
        head.remember_rendered(key, encoded)
    identity = head.request_id.encode()
    parts.append(frames.HANDLE.pack(handle, len(encoded), len(identity)))
    parts.append(encoded)
    if identity:
        parts.append(identity)


def encode_null(handle: int, head: RequestHead, added: Sequence[Tensor], parts: list[Buffer]) -> None:
    """Append an empty row, with inputs of the shapes of `head`, to the parts of a frame."""
    key: Any = (_NULL_KEY, *[tensor.shape for tensor in added])
    encoded: bytes | None = head.rendered.get(key)
    if encoded is None:
        encoded = frames.encode_head(_list_tensors(head, added), {"outputs": []})
        head.remember_rendered(key, encoded)
    parts += (frames.HANDLE.pack(handle, len(encoded), 0), encoded)


def _list_tensors(head: RequestHead, added: Sequence[Tensor]) -> list[tuple[str, str, Sequence[int]]]:
    tensors: list[tuple[str, str, Sequence[int]]] = [
        (bound.spec.name, bound.spec.datatype, bound.shape) for bound in head.inputs
    ]
    tensors += [(tensor.name, tensor.datatype, tensor.shape) for tensor in added]
    return tensors


def _encode_head(head: RequestHead, added: Sequence[Tensor], context: str = "") -> bytes:
    tensors = _list_tensors(head, added)
    parameters = head.parameters
    extra: JsonObject = {"outputs": [bound.spec.name for bound in head.outputs]}
    if parameters:
        extra["sequence"] = parameters.get("sequence_id", 0)
        extra["flags"] = bool(parameters.get("sequence_start")) + 2 * bool(parameters.get("sequence_end"))
        extra["timeout"] = int(parameters.get("timeout", 0))
        custom = {key: value for key, value in parameters.items() if key not in _OWN_PARAMETERS}
        if custom:
            extra["parameters"] = as_json(custom)
    if context:
        extra["context"] = context
    return frames.encode_head(tensors, extra)


class AnswerDecoder:
    """Decodes the answers of one model; caches how equal response heads map to a request head."""

    def __init__(self, stacking: SequenceStacking | None) -> None:
        """`stacking` is that of a model of sequences, whose states the answers contain."""
        self._heads = frames.Heads()
        self._stacking = stacking
        self._states = {state.output_name for state in stacking.states} if stacking is not None else set()

    def take(
        self, request: InferRequest, body: Buffer, at: int, views: frames.Views
    ) -> tuple[InferResponse | int, int]:
        """Return an entry and the position of the next one; a status if there is no response."""
        status, size = frames.STATUS.unpack_from(body, at)
        at += frames.STATUS.size
        if status == frames.TENSORS:
            encoded = bytes(body[at : at + size])
            plan = request.head.rendered.get(encoded)
            if plan is None:
                plan = _Plan(request.head, self._heads[encoded])
                request.head.remember_rendered(encoded, plan)
            buffers, at = frames.take_tensors(body, at + size, plan.count, views)
            if self._stacking is not None and self._states:
                heads = self._heads[encoded].tensors
                arrays = {
                    head.name: as_array(data, head.datatype, head.shape)
                    for head, data in zip(heads, buffers, strict=True)
                    if head.name in self._states
                }
                try:
                    self._stacking.keep_states(self._stacking.check_states(arrays, 1), [request])
                except ExecutionError as exc:
                    return InferResponse([], exc), at
            return plan.response(request, buffers), at
        if status == frames.ERROR:
            code, message = body[at], bytes(body[at + 1 : at + 1 + size]).decode(errors="replace")
            return InferResponse([], _make_error(message, code)), at + 1 + size
        return int(status), at

    def start_of_piece(self, response: InferResponse, body: bytes, at: int) -> bytes:
        """Return how an entry of one small tensor begins, up to the tensor's size; empty for others."""
        if response.error is not None or response.parameters or not response.outputs or self._states:
            return b""
        head_at = at + frames.STATUS.size
        head_ends = head_at + frames.STATUS.unpack_from(body, at)[1]
        start = body[at : head_ends + frames.NUMBER.size]
        one = len(self._heads[body[head_at:head_ends]].tensors) == 1
        return start if one and start.endswith(_INLINE) else b""

    def skip(self, body: Buffer, at: int, views: frames.Views) -> tuple[int, int]:
        """Skip the entry of a cancelled request; return the size of its tensors and the position of the next
        entry.

        The tensors are viewed once, because a block of shared memory is freed when its last view is gone.
        """
        status, size = frames.STATUS.unpack_from(body, at)
        at += frames.STATUS.size
        if status == frames.ERROR:
            return 0, at + 1 + size
        if status != frames.TENSORS:
            return 0, at
        count = len(self._heads[bytes(body[at : at + size])].tensors)
        buffers, at = frames.take_tensors(body, at + size, count, views)
        return sum(len(data) for data in buffers), at


def _make_error(message: str, number: int) -> TpxError:
    if number == frames.OVERLOADED:
        return Overloaded(message)
    code = CODES[number] if number < len(CODES) else Code.INTERNAL
    if code is Code.CANCELLED:
        return Cancelled(message)
    return ExecutionError(message, code=code)


class _Plan:
    """Which tensors of a response a request receives, and in which order."""

    __slots__ = ("_fault", "_head", "_parameters", "_tensors", "count")

    def __init__(self, head: RequestHead, answer: Head) -> None:
        self.count = len(answer.tensors)
        self._fault: ExecutionError | None = None
        text = answer.extra.get("parameters")
        self._parameters: JsonObject | None = json.loads(text) if text else None
        given = {tensor.name: index for index, tensor in enumerate(answer.tensors)}
        chosen = [bound for bound in head.outputs if bound.spec.name in given]
        bounds: list[BoundOutput] = []
        self._tensors: list[tuple[int, str, str, tuple[int, ...]]] = []
        for bound in chosen:
            index = given[bound.spec.name]
            tensor = answer.tensors[index]
            shape = tensor.shape
            if bound.spec.model_dims is not bound.spec.dims:
                try:
                    shape = client_shape(bound.spec, shape, batched=head.model.max_batch_size > 0)
                except ExecutionError as exc:
                    self._fault = exc
            self._tensors.append((index, tensor.name, tensor.datatype, shape))
            bounds.append(_replace_datatype(bound, tensor.datatype))
        same = len(bounds) == len(head.outputs) and all(
            a is b for a, b in zip(bounds, head.outputs, strict=True)
        )
        self._head = None if same else head.with_outputs(tuple(bounds))

    def response(self, request: InferRequest, buffers: Sequence[Buffer]) -> InferResponse:
        if self._fault is not None:
            return InferResponse([], self._fault)
        if self._head is not None:
            request.head = self._head
        outputs = []
        for index, name, datatype, shape in self._tensors:
            outputs.append(Tensor(name, datatype, shape, buffers[index]))
        response = InferResponse(outputs)
        response.parameters = self._parameters
        return response


def _replace_datatype(bound: BoundOutput, datatype: str) -> BoundOutput:
    """Describe the output with the datatype that the model returned, which may differ from its own."""
    if bound.spec.datatype == datatype:
        return bound
    spec = bound.spec
    other = TensorSpec(spec.name, datatype, spec.dims, model_dims=spec.model_dims, labels=spec.labels)
    made = BoundOutput(other, binary=bound.binary, classification=bound.classification)
    made.placement = bound.placement
    return made
