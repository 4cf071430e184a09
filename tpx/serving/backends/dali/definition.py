"""Definitions of DALI pipelines, read from serialized ones: inputs, outputs and batch size.

The format is DALI's (dali/pipeline/dali.proto); only the required fields are declared here.
"""

import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from tpx.errors import LoadError

_DATATYPES = (
    *("UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64"),
    *("FP16", "FP32", "FP64", "BOOL"),
)
"""Datatypes by DALI's numbers; other types can only occur inside a pipeline."""
_INT, _STRING, _MESSAGE = 3, 9, 11  # FieldDescriptorProto.Type
_MESSAGES: Mapping[str, tuple[tuple[str, int, int, str], ...]] = {
    # name, number, type, message; fields with a message are repeated
    "Pipeline": (
        ("num_threads", 1, _INT, ""),
        ("batch_size", 2, _INT, ""),
        ("op", 5, _MESSAGE, "Operator"),
        ("output", 7, _MESSAGE, "Edge"),
    ),
    "Operator": (
        ("schema", 1, _STRING, ""),
        ("output", 3, _MESSAGE, "Edge"),
        ("args", 4, _MESSAGE, "Argument"),
    ),
    "Edge": (("name", 1, _STRING, ""), ("dtype", 5, _INT, ""), ("ndim", 6, _INT, "")),
    "Argument": (("name", 1, _STRING, ""), ("value", 4, _INT, "")),
}
_INPUT_SCHEMAS = ("ExternalSource", "inputs__")
_AUTOSERIALIZE = """
import importlib.util, sys
from nvidia.dali._utils.autoserialize import invoke_autoserialize
spec = importlib.util.spec_from_file_location("dali_model", sys.argv[1])
module = sys.modules["dali_model"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
invoke_autoserialize(module, sys.argv[2])
"""
_SERIALIZE_TIMEOUT_S = 120
_ERROR_LINES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineTensor:
    """An input or output of a pipeline; an undeclared property is "" or None."""

    name: str
    datatype: str = ""
    ndim: int | None = None
    """Number of dimensions of a sample."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineDefinition:
    """A serialized pipeline and the properties read from it."""

    serialized: bytes
    batch_size: int
    inputs: tuple[PipelineTensor, ...]
    outputs: tuple[PipelineTensor, ...]


def read_definition(path: Path) -> PipelineDefinition:
    """Read a serialized pipeline. Raises LoadError."""
    try:
        serialized = path.read_bytes()
        pipeline = _make_pipeline_class().FromString(serialized)
    except OSError as exc:
        raise LoadError(f"cannot read '{path}': {exc.strerror}") from exc
    except DecodeError as exc:
        raise LoadError(f"'{path}' is not a serialized DALI pipeline") from exc
    if not pipeline.op or not pipeline.output:
        raise LoadError(f"'{path}' is not a serialized DALI pipeline: it has no operators or no outputs")
    return PipelineDefinition(
        serialized=serialized,
        batch_size=pipeline.batch_size,
        inputs=tuple(_iter_inputs(pipeline)),
        outputs=tuple(_make_tensor(edge.name, edge.dtype, edge.ndim) for edge in pipeline.output),
    )


def serialize(module: Path, target: Path) -> None:
    """Serialize the `@autoserialize` pipeline of a file in a process. Raises LoadError with its stderr."""
    words = [sys.executable, "-c", _AUTOSERIALIZE, str(module.absolute()), str(target.absolute())]
    try:
        done = subprocess.run(
            words,
            capture_output=True,
            text=True,
            timeout=_SERIALIZE_TIMEOUT_S,
            check=False,
            cwd=module.parent,
        )
    except subprocess.TimeoutExpired as exc:
        raise LoadError(f"'{module}' was not serialized within {_SERIALIZE_TIMEOUT_S} s") from exc
    if done.returncode or not target.exists():
        message = " ".join(done.stderr.strip().splitlines()[-_ERROR_LINES:])
        raise LoadError(f"'{module}' cannot be serialized: {message or f'exit status {done.returncode}'}")


def _iter_inputs(pipeline: Any) -> Iterator[PipelineTensor]:
    for operator in pipeline.op:
        if operator.schema.startswith(_INPUT_SCHEMAS):
            declared = {argument.name: argument.value for argument in operator.args}
            for edge in operator.output:
                yield _make_tensor(edge.name, declared.get("dtype", -1), declared.get("ndim", -1))


def _make_tensor(name: str, dtype: int, ndim: int) -> PipelineTensor:
    if dtype >= len(_DATATYPES):
        raise LoadError(f"'{name}' has DALI's type {dtype}, which tpx does not support")
    return PipelineTensor(
        name=name, datatype=_DATATYPES[dtype] if dtype >= 0 else "", ndim=ndim if ndim >= 0 else None
    )


@cache
def _make_pipeline_class() -> Any:
    """Return the message class of a serialized pipeline, in its own descriptor pool."""
    file = descriptor_pb2.FileDescriptorProto(name="pipeline.proto", package="dali", syntax="proto2")
    for message, fields in _MESSAGES.items():
        described = file.message_type.add(name=message)
        for name, number, kind, of in fields:
            label = descriptor_pb2.FieldDescriptorProto.Label.Value(
                "LABEL_REPEATED" if of else "LABEL_OPTIONAL"
            )
            field = described.field.add(name=name, number=number, label=label)
            field.type = descriptor_pb2.FieldDescriptorProto.Type.ValueType(kind)
            if of:
                field.type_name = f".dali.{of}"
            elif name in ("dtype", "ndim"):
                field.default_value = "-1"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("dali.Pipeline"))
