"""Conversion of arrays to tensors and back, without copies if possible."""

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from tpx.errors import ExecutionError
from tpx.protocol.datatypes import BY_NAME
from tpx.protocol.json_values import JsonObject
from tpx.protocol.tensors import Array
from tpx.serving.backends.contract import Arrays
from tpx.serving.backends.model_tensors import decode_strings
from tpx.serving.backends.pytorch.naming import beyond
from tpx.serving.backends.pytorch.program import DTYPES, Interface, Value

log = logging.getLogger(__name__)

_COPY_BELOW_BYTES = 64 << 10  # below this, checking for writes costs more than copying


class _Window:
    """A writable view that keeps a read-only array alive; PyTorch has no read-only tensors."""

    __slots__ = ("__array_interface__", "array")

    def __init__(self, array: Array) -> None:
        interface = array.__array_interface__
        interface["data"] = (interface["data"][0], False)
        self.__array_interface__ = interface
        self.array = array


class Lender:
    """Creates tensors from arrays that the model does not own.

    Small arrays are copied. Larger ones are passed without a copy to models that do not write into
    their inputs. That is known after the first run, because in-place operations increment a tensor's
    version.
    """

    def __init__(self, model: str, *, writes: bool | None) -> None:
        self._model = model
        self._copies = writes is not False
        self._watches = writes is None
        self._lent: list[torch.Tensor] = []

    def tensor(self, array: Array) -> torch.Tensor:
        if array.nbytes < _COPY_BELOW_BYTES:
            return torch.from_numpy(array.copy())
        flags = array.flags
        if self._copies or not flags.aligned:
            tensor = torch.from_numpy(array.copy())
        else:
            tensor = torch.from_numpy(array if flags.writeable else np.asarray(_Window(array)))
        if self._watches:
            self._lent.append(tensor)
        return tensor

    def settle(self) -> None:
        """Stop copying inputs if the run that has just ended did not write into them."""
        if not self._lent:
            return
        written = any(tensor._version for tensor in self._lent)
        self._lent.clear()
        if written:
            log.warning(
                "model '%s' modifies its inputs: it receives copies from now on, which takes time",
                self._model,
            )
            self._watches = False
        self._copies = written


class Inputs:
    """Converts the arrays of a batch to the values that forward takes."""

    def __init__(
        self, positions: Mapping[str, int], datatypes: Mapping[str, str], interface: Interface
    ) -> None:
        arguments = interface.arguments or ()
        # an input without dimensions has one element for clients
        scalars = {position for position, slot in enumerate(arguments) if slot.shape == ()}
        self._slots = [
            (name, position, datatypes.get(name, ""), position in scalars)
            for name, position in positions.items()
        ]
        count = len(arguments) if interface.arguments is not None else max(positions.values(), default=-1) + 1
        self._defaults = [arguments[position].default if arguments else None for position in range(count)]
        self._takes_dict = interface.takes_dict

    def arranged(self, values: list[Value]) -> list[Value]:
        """Return the values as forward takes them: a model that takes a dict gets those of the request."""
        if not self._takes_dict:
            return values
        slots = self._slots
        return [{name: values[position] for name, position, _, _ in slots if values[position] is not None}]

    def values(self, arrays: Arrays, lender: Any) -> list[Value]:
        """Return a tensor, a list of strings, or the default for each argument. Raises InvalidRequest."""
        values = self._defaults.copy()
        for name, position, datatype, scalar in self._slots:
            array = arrays.get(name)
            if array is None:
                continue
            if datatype == "BYTES":
                values[position] = decode_strings(name, array, "PyTorch")
                continue
            tensor = lender.tensor(array)
            if datatype == "BF16":
                tensor = tensor.view(torch.bfloat16)
            values[position] = tensor.reshape(()) if scalar else tensor
        return values


class Outputs:
    """Converts forward's results to the arrays that the server needs."""

    def __init__(
        self, positions: Mapping[str, int], datatypes: Mapping[str, str], storages: frozenset[int]
    ) -> None:
        self._wanted = [(name, position, datatypes.get(name, "")) for name, position in positions.items()]
        self._storages = storages

    def tensors(self, raw: Value) -> JsonObject:
        """Return the results by name, after checking their types. Raises ExecutionError."""
        if isinstance(raw, list) and not raw and len(self._wanted) == 1:
            raw = [raw]  # an empty list of strings, for the only output
        results = _arrange_results(raw, [name for name, _, _ in self._wanted])
        if isinstance(results, Mapping):
            found = {name: results[name] for name, _, _ in self._wanted}
        else:
            found = {}
            for name, position, _ in self._wanted:
                if position >= len(results):
                    raise ExecutionError(beyond(name, len(results)))
                found[name] = results[position]
        for name, _, datatype in self._wanted:
            _check_result(name, found[name], datatype)
        return found

    def array(self, value: Value) -> Array:
        """Return a result as an array, a view unless it is in the weights' memory. Raises ExecutionError."""
        if isinstance(value, list):
            return np.array([text.encode() for text in value], dtype=np.object_)
        tensor: torch.Tensor = value.detach() if value.requires_grad else value
        try:
            tensor = tensor.contiguous()
            if tensor.untyped_storage().data_ptr() in self._storages:
                tensor = tensor.clone()
            if tensor.dtype is torch.bfloat16:
                tensor = tensor.view(torch.uint16)
            array: Array = tensor.numpy()
        except (RuntimeError, TypeError) as exc:  # for example a sparse or meta tensor
            raise ExecutionError(
                f"the model returned a tensor ({tensor.layout}, on {tensor.device}) that cannot be "
                f"sent: {exc}"
            ) from exc
        return array if array.shape else array.reshape(1)


def _arrange_results(raw: Value, names: list[str]) -> Value:
    """Return the results as a sequence in order, or as a mapping by key."""
    if isinstance(raw, torch.Tensor) or _is_string_list(raw):
        return [raw]
    if isinstance(raw, Mapping):
        missing = [name for name in names if name not in raw]
        if missing and len(missing) < len(names):
            gave = ", ".join(map(str, raw))
            raise ExecutionError(f"the model returned no output '{missing[0]}' (it returned: {gave})")
        # if no name is a key, outputs are matched by index or order
        return list(raw.values()) if missing else raw
    if isinstance(raw, (list, tuple)):
        return raw
    raise ExecutionError(
        f"output must be of type Tensor, List[str], or a list, tuple or dict of these, received "
        f"{type(raw).__name__}"
    )


def _is_string_list(value: Value) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(each, str) for each in value)


def _check_result(name: str, value: Value, datatype: str) -> None:
    if isinstance(value, torch.Tensor):
        wanted = DTYPES.get(datatype)
        if value.dtype is not wanted:
            expected = BY_NAME[datatype].config_name if datatype else "nothing"
            raise ExecutionError(f"output '{name}' has type {value.dtype}, the configuration says {expected}")
    elif datatype != "BYTES" or not (value == [] or _is_string_list(value)):
        raise ExecutionError(
            f"output '{name}' must be of type Tensor or List[str], received {type(value).__name__}"
        )
