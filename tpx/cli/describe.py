"""`tpx serve --describe`: what each model takes and gives, its complete configuration, and how to load it.

Models are loaded as for serving, but nothing listens.
"""

import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import msgspec

from tpx.errors import LoadError
from tpx.perf.clients.model import ModelDescription, TensorDescription, model_description
from tpx.perf.inputs.makers import resolve_shapes, shape_flag
from tpx.protocol import model_config
from tpx.serving.dataplane import DataPlane, RepositoryEntry
from tpx.serving.logs import LogControl
from tpx.serving.options import ServeConfig
from tpx.serving.server import InferenceServer

_READY = "READY"
_TORCHSCRIPT = """\
A TorchScript file does not tell the types and shapes of its tensors. Write them to {path}:

  backend: "pytorch"
  max_batch_size: 0  # or the largest batch, if the first dimension is a batch
  input [ { name: "INPUT__0" data_type: TYPE_FP32 dims: [ 1, 3, 224, 224 ] } ]
  output [ { name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ 1, 1000 ] } ]

Needed are one input for each argument of forward and one output for each result, in their order, with
the type and the dims of each; -1 stands for a dimension of any size. The values above are examples."""


async def describe(config: ServeConfig, logs: LogControl) -> int:
    """Load the models, print a description of each, and return 0."""
    server = InferenceServer(_without_endpoints(config), logs)
    await server.start()
    try:
        # of several ready versions the latest describes the model
        entries = {(entry.name, entry.state): entry for entry in server.status()}
        for entry in entries.values():
            ready = entry.state == _READY
            lines = _describe(server.plane, entry, config) if ready else _explain(entry, config)
            print("\n".join(lines), end="\n\n")
    finally:
        await server.stop()
    return 0


def _without_endpoints(config: ServeConfig) -> ServeConfig:
    return replace(
        config,
        repository=replace(config.repository, exit_on_error=False),
        server=replace(config.server, frontends=0, drain_secs=0),
        http=replace(config.http, allow_http=False),
        grpc=replace(config.grpc, allow_grpc=False),
        metrics=replace(config.metrics, allow_metrics=False),
        hosting=replace(config.hosting, allow_sagemaker=False, allow_vertex_ai=False),
    )


def _describe(plane: DataPlane, entry: RepositoryEntry, config: ServeConfig) -> Iterator[str]:
    message = plane.model_config(entry.name, "")
    metadata = msgspec.to_builtins(plane.model_metadata(entry.name, ""))
    model = model_description(metadata, model_config.to_json(message))
    names = _dimension_names(_file_of(entry, config, message.default_model_filename or "model.onnx"))
    batches = f", batches of up to {model.max_batch_size}" if model.max_batch_size else ""
    yield f"{model.name}: {model.platform}{batches}"
    for word, tensors in (("takes", model.inputs), ("gives", model.outputs)):
        for tensor in tensors:
            yield f"  {word} {tensor.name}: {tensor.datatype} {_format_shape(tensor, names)}"
    yield ""
    yield "config.pbtxt:"
    yield from (f"  {line}" for line in model_config.to_text(message).splitlines())
    yield ""
    yield f"tpx perf -m {shlex.join([model.name, *_shape_words(model)])}"


def _format_shape(tensor: TensorDescription, names: dict[str, list[str]]) -> str:
    """Return `[3, -1 (height), -1 (width)]`, with the names that an ONNX file gives to dynamic dimensions."""
    dims = tensor.shape
    known = names.get(tensor.name, [])[-len(dims) :] if dims else []
    known = known if len(known) == len(dims) else [""] * len(dims)
    words = [f"-1 ({name or 'dynamic'})" if d < 0 else str(d) for d, name in zip(dims, known, strict=True)]
    return f"[{', '.join(words)}]" + (", optional" if tensor.optional else "")


def _shape_words(model: ModelDescription) -> list[str]:
    """Return the flags that name the sizes of dynamic dimensions, where the model names none."""
    if not model.inputs:
        return []
    shapes = resolve_shapes(model, (), 1)
    flags = (shape_flag(spec, shapes[spec.name]) for spec in model.inputs if -1 in shapes[spec.name])
    return [word for flag in flags for word in flag.split()]


def _dimension_names(path: Path | None) -> dict[str, list[str]]:
    """Return the names of dynamic dimensions by tensor, from an ONNX file."""
    if path is None or path.suffix != ".onnx":
        return {}
    import onnxruntime  # late: only ONNX files need it

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    tensors = (*session.get_inputs(), *session.get_outputs())
    return {node.name: [d if isinstance(d, str) else "" for d in node.shape] for node in tensors}


def _explain(entry: RepositoryEntry, config: ServeConfig) -> Iterator[str]:
    yield f"{entry.model}: not loaded: {entry.reason or 'it is loaded on request only'}"
    file = _file_of(entry, config, "model.pt")
    if file is not None and _is_torchscript(file):
        given = file in config.repository.models
        place = Path("models", entry.name) if given else file.parent.parent
        if not given and (place / "config.pbtxt").exists():
            return
        yield _TORCHSCRIPT.replace("{path}", str(place / "config.pbtxt"))
        if given:
            yield f"Move the file to {place / '1' / 'model.pt'}: then `tpx serve models` serves it."


def _is_torchscript(file: Path) -> bool:
    """Return True for an archive of TorchScript, which PyTorch must be there to serve."""
    if file.suffix != ".pt" or find_spec("torch") is None:
        return False
    from tpx.serving.backends.pytorch.program import Format, detect_archive_format  # late: imports PyTorch

    with suppress(LoadError):
        return detect_archive_format(file) is Format.TORCHSCRIPT
    return False


def _file_of(entry: RepositoryEntry, config: ServeConfig, default: str) -> Path | None:
    """Return the file of a model on this machine, given by itself or in a repository."""
    places = [
        place
        for place in (*config.repository.models, *config.repository.model_repository)
        if isinstance(place, Path)
    ]
    return next((file for place in places for file in _candidates(place, entry, default)), None)


def _candidates(place: Path, entry: RepositoryEntry, default: str) -> Sequence[Path]:
    if place.is_file():
        return [place] if place.stem == entry.name else []
    found = sorted((place / entry.name).glob(f"*/{default}"))
    return [file for file in found if not entry.version or file.parent.name == entry.version]
