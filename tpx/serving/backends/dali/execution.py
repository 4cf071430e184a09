"""An instance of a DALI model: one pipeline that runs a batch at a time."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import nvidia.dali as dali

from tpx.errors import ExecutionError, LoadError
from tpx.serving.backends.contract import Arrays

# DALI raises plain RuntimeErrors, its binding what Python's conversions raise
ERRORS = (RuntimeError, TypeError, ValueError, KeyError, OverflowError)
_SAID = re.compile(r"^(Error in .*|.*[Aa]ssert.*|encountered:)$")


class PipelineExecutor:
    """A pipeline, built for up to `batch_size` samples on one device.

    A pipeline is of no more use after an error, so that a new one is built then.
    """

    def __init__(
        self,
        serialized: bytes,
        outputs: Sequence[str],
        *,
        batch_size: int,
        device_id: int | None,
        threads: int,
    ) -> None:
        """`outputs` name the outputs in the pipeline's order; `threads` 0 are as many as it was serialized
        with. Raises LoadError."""
        self._outputs = outputs
        self._serialized = serialized
        # one batch is fed, computed and read before the next: nothing is computed ahead
        self._settings: dict[str, Any] = {
            "batch_size": batch_size,
            "device_id": device_id,
            "prefetch_queue_depth": 1,
            "exec_pipelined": False,
            "exec_async": False,
        }
        if threads:
            self._settings["num_threads"] = threads
        self._pipeline = self._build()

    def execute(self, inputs: Arrays) -> Arrays:
        """Run one batch: arrays [n, *dims], or object arrays with one array per sample."""
        pipeline = self._pipeline
        try:
            for name, array in inputs.items():
                pipeline.feed_input(name, array if array.dtype != np.object_ else list(array))
            results = pipeline.run()
            return {name: _to_host(result) for name, result in zip(self._outputs, results, strict=True)}
        except ERRORS as exc:
            self._pipeline = self._build()
            raise ExecutionError(f"dali error: {reason(exc)}") from exc

    def close(self) -> None:
        del self._pipeline

    def _build(self) -> Any:
        try:
            pipeline = dali.Pipeline.deserialize(self._serialized, **self._settings)
            pipeline.build()
        except ERRORS as exc:
            raise LoadError(f"dali cannot build the pipeline: {reason(exc)}") from exc
        return pipeline


def _to_host(result: Any) -> Any:
    """A copy of an output, since the pipeline writes the next batch to the same memory."""
    samples = result.as_cpu()
    if samples.is_dense_tensor():
        return np.array(samples.as_array())
    found = np.empty(len(samples), np.object_)
    for index in range(len(samples)):
        found[index] = np.array(samples.at(index))
    return found


def reason(exc: Exception) -> str:
    """What DALI says: the operator and its error, without tracebacks and addresses."""
    lines = [line.strip() for line in str(exc).splitlines()]
    operator = next((line.rstrip(",") for line in lines if line.startswith("Error in ")), "")
    after = lines[lines.index("encountered:") + 1 :] if "encountered:" in lines else lines
    said = next((line for line in after if line and line != "Critical error in pipeline:"), "")
    return ": ".join(filter(None, (operator, said))) or type(exc).__name__
