"""The states that sequences begin with: zeros, or files in the model's `initial_state/`."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tpx.errors import ConfigError, InvalidRequest
from tpx.protocol.datatypes import BY_NUMBER, DataType
from tpx.protocol.tensors import as_array
from tpx.serving.backends.base import inside
from tpx.serving.stacking.sequences import State


def states_of(config: Any, directory: Path) -> list[State]:
    """The states of a validated configuration; `directory` is the model's, with `initial_state/` in it.

    Raises ConfigError.
    """
    states = []
    for state in config.sequence_batching.state:
        datatype = BY_NUMBER[state.data_type]
        shape = tuple(1 if dim < 0 else dim for dim in state.dims)
        initial = _zeros(datatype, shape)
        for given in state.initial_state:
            initial = _initial(config.name, given, datatype, directory)
        states.append(
            State(
                input_name=state.input_name,
                output_name=state.output_name,
                datatype=datatype,
                initial=initial,
            )
        )
    return states


def _initial(model: str, given: Any, datatype: DataType, directory: Path) -> npt.NDArray[Any]:
    shape = tuple(given.dims)
    if given.data_type != datatype.number or any(dim < 1 for dim in shape):
        raise ConfigError(
            f"initial state '{given.name}' of model '{model}' must have data type {datatype.config_name} and "
            f"dims of at least 1"
        )
    if given.WhichOneof("state_data") == "zero_data":
        return _zeros(datatype, shape)
    path = inside(directory / "initial_state", given.data_file, "initial_state.data_file")
    try:
        data = path.read_bytes()
    except OSError as exc:
        raise ConfigError(f"initial state '{given.name}' of model '{model}': {exc}") from exc
    try:
        if datatype.size and len(data) != datatype.size * math.prod(shape):
            raise ConfigError(
                f"initial state '{given.name}' of model '{model}' needs {datatype.size * math.prod(shape)} "
                f"bytes, '{path}' has {len(data)}"
            )
        return as_array(data, datatype.name, shape).copy()
    except InvalidRequest as exc:
        raise ConfigError(f"initial state '{given.name}' of model '{model}': {exc.message}") from exc


def _zeros(datatype: DataType, shape: Sequence[int]) -> npt.NDArray[Any]:
    return np.full(shape, 0 if datatype.size else b"", datatype.numpy)
