"""`model_warmup`: samples that every instance computes before the model is ready."""

import logging
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tpx.errors import ConfigError, LoadError, TpxError
from tpx.protocol.datatypes import BY_NUMBER
from tpx.protocol.messages import ModelWarmup
from tpx.protocol.tensors import Buffer, Tensor, encode_bytes
from tpx.protocol.v2 import DecodedRequest
from tpx.serving.backends.contract import inside
from tpx.serving.batch import Batch
from tpx.serving.instances.base import Instance
from tpx.serving.model import ServedModel
from tpx.serving.request import InferRequest, InferResponse
from tpx.serving.scheduling.sequences import LiveSequence

log = logging.getLogger(__name__)

_SEQUENCE = {"sequence_id": 1, "sequence_start": True, "sequence_end": True}
_SEED = 0


def warm_up(model: ServedModel, instances: Sequence[Instance], directory: Path) -> None:
    """Run every sample on every instance, before it begins; `directory` is the model's.

    Raises LoadError with all that failed.
    """
    failures = []
    for sample in model.config.model_warmup:
        if not sample.batch_size:
            log.info("skipping batch 0 warmup sample '%s' of model '%s'", sample.name, model.name)
            continue
        for instance in instances:
            for iteration in range(max(1, sample.count)):
                log.info(
                    "model '%s' instance %s is running warmup sample '%s' for iteration %d",
                    model.name,
                    instance.name,
                    sample.name,
                    iteration + 1,
                )
                try:
                    error = instance.warm(_batch(model, sample, directory))
                except TpxError as exc:
                    error = exc
                if error is not None:
                    failures.append(f"failed to run warmup sample '{sample.name}': {error.message}; ")
                    break
    if failures:
        raise LoadError("".join(dict.fromkeys(failures)))


def _batch(model: ServedModel, sample: ModelWarmup, directory: Path) -> Batch:
    """As many requests of one row as the sample's batch size; a model without a batch dimension takes one."""
    rows = sample.batch_size if model.max_batch_size > 0 else 1
    if rows > max(1, model.max_batch_size):
        raise ConfigError(f"batch size {rows} is more than max_batch_size {model.max_batch_size}")
    return Batch([_request(model, sample, directory, row) for row in range(rows)])


def _request(model: ServedModel, sample: ModelWarmup, directory: Path, row: int) -> InferRequest:
    decoded = DecodedRequest(model_name=model.name, default_binary=True)
    if model.config.HasField("sequence_batching"):
        decoded.parameters = dict(_SEQUENCE)
    for name, given in sample.inputs.items():
        if given.data_type not in BY_NUMBER:
            raise ConfigError(f"warmup input '{name}' must specify 'data_type'")
        if any(size < 0 for size in given.dims):
            dims = ", ".join(map(str, given.dims))
            raise ConfigError(f"the dims of warmup input '{name}' must be fixed numbers, got [ {dims} ]")
        shape = [1, *given.dims] if model.max_batch_size > 0 else list(given.dims)
        datatype = BY_NUMBER[given.data_type]
        decoded.inputs.append(Tensor(name, datatype.name, shape, _data(given, directory)))
    head = model.bind(decoded)
    infer = InferRequest(head, [tensor.data for tensor in decoded.inputs], _ignore, None)
    infer.sequence = LiveSequence(1)
    infer.sequence.slot = row
    return infer


def _data(given: "ModelWarmup.Input", directory: Path) -> Buffer:
    datatype, count = BY_NUMBER[given.data_type], math.prod(given.dims)
    kind = given.WhichOneof("input_data_type")
    if kind == "input_data_file":
        path = inside(directory / "warmup", given.input_data_file, "model_warmup.input_data_file")
        try:
            return path.read_bytes()
        except OSError as exc:
            raise ConfigError(f"failed to read warmup data '{path}': {exc.strerror}") from exc
    if datatype.size == 0:
        return encode_bytes([b""] * count)
    if kind == "random_data":
        return _random(datatype.name, datatype.numpy, count)
    return bytes(count * datatype.size)


def _random(name: str, dtype: "np.dtype[np.generic]", count: int) -> bytes:
    generator = np.random.default_rng(_SEED)
    if dtype.kind == "f":
        return generator.random(count).astype(dtype).tobytes()
    if name == "BOOL":
        return generator.integers(0, 2, count).astype(dtype).tobytes()
    if name == "BF16":
        return (generator.random(count, np.float32).view(np.uint32) >> 16).astype(np.uint16).tobytes()
    return generator.integers(0, 127, count).astype(dtype).tobytes()


def _ignore(request: InferRequest, response: InferResponse) -> None:
    """Drop the response of a warm-up request."""
