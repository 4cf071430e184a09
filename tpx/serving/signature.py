"""The tensors of a model, and the validation of requests (Triton: core/src/infer_request.cc)."""

from collections.abc import Mapping, Sequence

from tpx.errors import InvalidRequest
from tpx.options import nearest_for_client
from tpx.protocol.datatypes import BY_NAME, BY_NUMBER
from tpx.protocol.messages import ModelConfig
from tpx.protocol.model_config import TensorConfig
from tpx.protocol.tensors import Tensor
from tpx.protocol.v2 import DecodedRequest, Parameter
from tpx.protocol.v2_json import element_count
from tpx.serving.request import (
    CHECKED_AT_ONCE_BYTES,
    BoundInput,
    BoundOutput,
    RequestHead,
    RequestTarget,
    TensorSpec,
    elements_of,
    with_request_id,
)

_BATCH_NOTE = (
    "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be "
    "prepended to each input shape. If you want to specify the full shape including the batch dim in "
    "your input dims config, try setting max_batch_size to zero. See the model configuration docs for "
    "more info on max_batch_size."
)


_PLAIN_HEADS = 256


class _Nameless(InvalidRequest):
    """Raised for an error found before the request id is known: as in Triton, the message has no id."""


class Signature:
    """Tensors of a model and its batch dimension."""

    def __init__(
        self, name: str, max_batch_size: int, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]
    ) -> None:
        self.name = name
        self.max_batch_size = max_batch_size
        self.inputs = {spec.name: spec for spec in inputs}
        self.outputs = {spec.name: spec for spec in outputs}
        self._plain_heads: dict[tuple[object, ...], RequestHead] = {}
        self._required = [spec.name for spec in inputs if not spec.optional]

    @classmethod
    def of(cls, config: ModelConfig, labels: dict[str, tuple[str, ...]]) -> "Signature":
        """Return the signature of a complete ModelConfig; `labels` by output name."""
        inputs = [
            _make_spec(item, optional=item.optional, ragged=item.allow_ragged_batch) for item in config.input
        ]
        outputs = [_make_spec(item, labels=labels.get(item.name, ())) for item in config.output]
        return cls(config.name, config.max_batch_size, inputs, outputs)

    def wire_shape(self, spec: TensorSpec) -> list[int]:
        """Return a tensor's shape in the metadata, including the batch dimension if there is one."""
        return [-1, *spec.dims] if self.max_batch_size > 0 else list(spec.dims)

    def bind(self, model: RequestTarget, request: DecodedRequest) -> RequestHead:
        """Return the head of a request. Raises InvalidRequest with Triton's wording and the request id."""
        if request.request_id or request.parameters or request.outputs or request.empty_final_response:
            return self._bind(model, request)
        # requests without id and parameters: the same names, types and shapes share a head
        tensors = request.inputs
        key = (request.default_binary, *[(t.name, t.datatype, t.shape) for t in tensors])
        known = self._plain_heads.get(key)
        if known is not None and [b.size for b in known.inputs] == [len(t.data) for t in tensors]:
            return known
        head = self._bind(model, request)
        if head.total_size >= 0:
            if len(self._plain_heads) >= _PLAIN_HEADS:
                self._plain_heads.clear()
            self._plain_heads[key] = head
        return head

    def forget_heads(self) -> None:
        """Drop cached heads, which reference the model."""
        self._plain_heads.clear()

    def _bind(self, model: RequestTarget, request: DecodedRequest) -> RequestHead:
        try:
            parameters = _check_parameters(request.parameters)
            by_name = self._index_by_name(request.inputs)
            inputs, batch_size = self._bind_inputs(by_name)
            outputs = self._bind_outputs(request)
        except _Nameless:
            raise
        except InvalidRequest as exc:
            raise with_request_id(exc, request.request_id) from exc
        # raw bytes follow the order of the request, which may differ from the model's
        head = RequestHead(model, request.request_id, inputs, outputs, batch_size, parameters)
        head.empty_final_response = request.empty_final_response
        return head

    def _index_by_name(self, tensors: Sequence[Tensor]) -> dict[str, Tensor]:
        given: dict[str, Tensor] = {}
        for tensor in tensors:
            if tensor.name in given:
                raise InvalidRequest(f"input '{tensor.name}' already exists in request")
            given[tensor.name] = tensor
        low, high = len(self._required), len(self.inputs)
        missing = sorted(name for name in self._required if name not in given)
        if not low <= len(given) <= high:
            count = f"{high} inputs" if low == high else f"number of inputs between {low} and {high}"
            raise self._make_incomplete_error(count, given, missing)
        for name in given:
            if name not in self.inputs:
                near = nearest_for_client(name, self.inputs)
                raise _Nameless(f"unexpected inference input '{name}' for model '{self.name}'{near}")
        if missing:
            first = next(name for name in self._required if name in missing)
            raise self._make_incomplete_error(f"{high} inputs", given, [first])
        return given

    def _make_incomplete_error(
        self, count: str, given: Mapping[str, Tensor], missing: Sequence[str]
    ) -> InvalidRequest:
        unknown = sorted(name for name in given if name not in self.inputs)
        # after Triton's words, which end with the request to provide all inputs
        told = f" Unknown input(s): {_format_names(unknown)}." if unknown else ""
        return InvalidRequest(
            f"expected {count} but got {len(given)} inputs for model '{self.name}'. Got input(s) "
            f"{_format_names(sorted(given))}, but missing required input(s) {_format_names(missing)}. "
            f"Please provide all required input(s).{told}"
        )

    def _bind_inputs(self, given: dict[str, Tensor]) -> tuple[tuple[BoundInput, ...], int]:
        batch_size = 0
        bound = []
        for name, tensor in given.items():
            spec = self.inputs[name]
            if tensor.datatype != spec.datatype:
                raise InvalidRequest(
                    f"inference input '{name}' data-type is '{tensor.datatype}', but model '{self.name}' "
                    f"expects '{spec.datatype}'"
                )
            element_count(name, tensor.shape)
            self._check_shape(spec, tensor.shape)
            if self.max_batch_size > 0:
                if batch_size and tensor.shape[0] != batch_size:
                    raise InvalidRequest(
                        f"input '{name}' batch size does not match other inputs for '{self.name}'"
                    )
                batch_size = tensor.shape[0]
            shape, size = self._reshape_for_model(spec, tensor.shape), self._compute_size(tensor)
            bound.append(BoundInput(spec, shape, size, data_size=len(tensor.data)))
        if batch_size > self.max_batch_size:
            raise InvalidRequest(
                f"inference request batch-size must be <= {self.max_batch_size} for '{self.name}'"
            )
        return tuple(bound), max(1, batch_size)

    def _check_shape(self, spec: TensorSpec, shape: Sequence[int]) -> None:
        dims = shape
        if self.max_batch_size > 0:
            if not shape:
                raise InvalidRequest(
                    f"input '{spec.name}' has no shape but model requires batch dimension for '{self.name}'"
                )
            if shape[0] < 1:
                raise InvalidRequest(f"inference request batch-size must be >= 1 for '{self.name}'")
            dims = shape[1:]
        fits = len(dims) == len(spec.dims) and all(
            want in (-1, got) for want, got in zip(spec.dims, dims, strict=True)
        )
        if not fits:
            expected = ",".join(map(str, self.wire_shape(spec)))
            got, note = ",".join(map(str, shape)), _BATCH_NOTE if self.max_batch_size > 0 else ""
            raise InvalidRequest(
                f"unexpected shape for input '{spec.name}' for model '{self.name}'. Expected [{expected}], "
                f"got [{got}]. {note}"
            )

    def _reshape_for_model(self, spec: TensorSpec, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape after `reshape`; variable dimensions take the client's values in order."""
        if spec.model_dims is spec.dims:
            return tuple(shape)
        batch = shape[:1] if self.max_batch_size > 0 else []
        free = iter([got for want, got in zip(spec.dims, shape[len(batch) :], strict=True) if want == -1])
        return (*batch, *(next(free) if dim == -1 else dim for dim in spec.model_dims))

    def _compute_size(self, tensor: Tensor) -> int:
        """Return the size of a tensor in bytes, after checking it against its data."""
        count = element_count(tensor.name, tensor.shape)
        size = BY_NAME[tensor.datatype].size
        if size == 0:
            if len(tensor.data) <= CHECKED_AT_ONCE_BYTES:
                elements_of(self.name, tensor.name, tensor.data, count)
            return -1
        if count * size != len(tensor.data):
            raise InvalidRequest(
                f"input byte size mismatch for input '{tensor.name}' for model '{self.name}'. "
                f"Expected {count * size}, got {len(tensor.data)}"
            )
        return count * size

    def _bind_outputs(self, request: DecodedRequest) -> tuple[BoundOutput, ...]:
        if not request.outputs:
            return tuple(
                BoundOutput(spec, binary=request.default_binary, classification=0)
                for spec in self.outputs.values()
            )
        bound: dict[str, BoundOutput] = {}
        for output in request.outputs:
            if output.name in bound:
                raise InvalidRequest(f"output '{output.name}' already exists in request")
            if output.name not in self.outputs:
                raise _Nameless(f"unexpected inference output '{output.name}' for model '{self.name}'")
            spec = self.outputs[output.name]
            if output.classification and spec.datatype in ("BYTES", "BOOL", "FP16", "BF16"):
                raise _Nameless(
                    f"class result not available for output due to unsupported type '{spec.datatype}'"
                )
            bound[output.name] = BoundOutput(spec, binary=output.binary, classification=output.classification)
        return tuple(bound.values())


def _make_spec(
    item: TensorConfig, *, optional: bool = False, ragged: bool = False, labels: tuple[str, ...] = ()
) -> TensorSpec:
    reshaped = tuple(item.reshape.shape) if item.HasField("reshape") else None
    return TensorSpec(
        item.name,
        BY_NUMBER[item.data_type].name,
        tuple(item.dims),
        model_dims=reshaped,
        optional=optional,
        ragged=ragged,
        labels=labels,
    )


def _format_names(names: Sequence[str]) -> str:
    return "[" + ",".join(f"'{name}'" for name in names) + "]"


_WHOLE = {
    "priority": "int64_param or uint64_param",
    "timeout": "int64_param",
    "sequence_id": "int64_param or string_param",
}


def _check_parameters(parameters: dict[str, Parameter]) -> dict[str, Parameter]:
    """Return the request parameters, after checking those with a defined meaning."""
    for key, value in parameters.items():
        if key.startswith("triton_"):
            raise _Nameless(
                "parameter keys starting with 'triton_' are reserved for Triton usage and should not be "
                "specified."
            )
        if key in _WHOLE and not (key == "sequence_id" and isinstance(value, str)):
            if isinstance(value, bool) or not isinstance(value, int):
                raise _Nameless(f"invalid value type for '{key}' parameter, expected {_WHOLE[key]}.")
            if value < 0:
                raise _Nameless(f"invalid value for '{key}', expected value >= 0.")
            if value >= 2**64:
                raise _Nameless(f"invalid value for '{key}', expected value < 2^64.")
        if key in ("sequence_start", "sequence_end") and not isinstance(value, bool):
            raise _Nameless(f"invalid value type for '{key}' parameter, expected bool_param.")
    return parameters
