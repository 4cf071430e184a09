"""Checks that an ensemble's models fit together (Triton: core/src/ensemble_scheduler/ensemble_utils.cc)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from tpx.errors import ConfigError
from tpx.protocol.datatypes import BY_NUMBER
from tpx.protocol.messages import ModelConfig
from tpx.protocol.model_config import TensorConfig, inputs_and_outputs
from tpx.serving.backends.model_tensors import agree, brackets
from tpx.serving.ensemble.graph import EnsembleStep, Graph, field_of
from tpx.serving.model_id import ModelId
from tpx.serving.served import Served


@dataclass(frozen=True, slots=True, kw_only=True)
class Composition:
    """A graph of models that serve, and the properties that the ensemble has from them."""

    graph: Graph
    models: frozenset[ModelId]
    """All models below, including those of nested ensembles."""
    levels: int
    """Nesting depth of ensembles: 1 without a nested one."""
    labels: Mapping[str, tuple[str, ...]]
    """Labels of outputs, from the models that produce them."""

    @property
    def decoupled(self) -> bool:
        return any(step.decoupled for step in self.graph.steps)


def compose(config: ModelConfig, graph: Graph, models: Sequence[Served]) -> Composition:
    """Compose models, one per step. Raises ConfigError if types or shapes do not fit."""
    check_composition(config, graph, [model.config for model in models])
    steps = tuple(
        replace(
            step,
            model=model.model_id,
            decoupled=model.decoupled,
            ranks={
                spec.name: len(spec.dims) + (model.max_batch_size > 0)
                for spec in model.signature.inputs.values()
            },
        )
        for step, model in zip(graph.steps, models, strict=True)
    )
    return Composition(
        graph=replace(graph, steps=steps),
        models=frozenset(step.model for step in steps).union(*(model.composed_of for model in models)),
        levels=1 + max(model.levels for model in models),
        labels={
            tensor: model.signature.outputs[name].labels
            for step, model in zip(steps, models, strict=True)
            for name, tensor in step.outputs.items()
            if tensor in graph.outputs
        },
    )


def check_composition(config: ModelConfig, graph: Graph, models: Sequence[ModelConfig]) -> None:
    """Check types and shapes along the graph against the models, one per step. Raises ConfigError."""
    tensors = {item.name: _TensorOrigin(graph.name, item, config) for item in inputs_and_outputs(config)}
    origins: dict[str, int] = {}
    for step, model in zip(graph.steps, models, strict=True):
        if 0 < model.max_batch_size < config.max_batch_size:
            raise ConfigError(
                f"ensemble {graph.name} allows maximum batch size {config.max_batch_size}, but it contains "
                f"model {model.name} which only allows maximum batch size to be {model.max_batch_size}",
                field="max_batch_size",
            )
        for tensor, item, field in _match_tensors(graph, step, model):
            seen = _TensorOrigin(model.name, item, model, inner=True)
            _check_same(graph, tensor, tensors.setdefault(tensor, seen), seen, field)
        # the step that each tensor with several iterations comes from
        origin = _find_common_origin(
            graph, model.name, step.inputs.values(), origins, field_of(step, "input_map")
        )
        if model.model_transaction_policy.decoupled:
            origin = step.index
        if origin is not None:
            origins.update(dict.fromkeys(step.outputs.values(), origin))
    _find_common_origin(graph, graph.name, graph.outputs, origins, "output")


def _match_tensors(
    graph: Graph, step: EnsembleStep, model: ModelConfig
) -> list[tuple[str, TensorConfig, str]]:
    """Return the ensemble's tensors that a step maps, each with the model's, and the field that maps it.
    Raises ConfigError.
    """
    inputs = {item.name: item for item in model.input}
    outputs = {item.name: item for item in model.output}
    for name, tensor in step.inputs.items():
        if name not in inputs:
            raise ConfigError(
                f"in ensemble {graph.name}, ensemble tensor {tensor} is mapping to non-existing input {name} "
                f"in model {model.name}",
                field=field_of(step, "input_map", name),
            )
    for name, item in inputs.items():
        if name not in step.inputs and not item.optional:
            raise ConfigError(
                f"in ensemble {graph.name}, input {name} in model {model.name} is not mapped to any ensemble "
                "tensors",
                field=field_of(step, "input_map"),
            )
    for name, tensor in step.outputs.items():
        if name not in outputs:
            raise ConfigError(
                f"in ensemble {graph.name}, ensemble tensor {tensor} is mapped from non-existing output "
                f"{name} in model {model.name}",
                field=field_of(step, "output_map", name),
            )
    mapped: list[tuple[str, TensorConfig, str]] = [
        (tensor, inputs[name], field_of(step, "input_map", name)) for name, tensor in step.inputs.items()
    ]
    return mapped + [
        (tensor, outputs[name], field_of(step, "output_map", name)) for name, tensor in step.outputs.items()
    ]


def _find_common_origin(
    graph: Graph, where: str, tensors: Iterable[str], origins: Mapping[str, int], field: str
) -> int | None:
    """Return the common origin of a step's inputs. Iterations of two decoupled steps cannot be paired,
    but can be combined with tensors that come once.
    """
    sources = {origins[tensor] for tensor in tensors if tensor in origins}
    if len(sources) > 1:
        raise ConfigError(
            f"in ensemble {graph.name}, step of model '{where}' receives inputs originated from different "
            "decoupled models",
            field=field,
        )
    return next(iter(sources), None)


class _TensorOrigin:
    """A tensor as described by the model that mentions it first."""

    def __init__(self, model: str, item: TensorConfig, config: ModelConfig, *, inner: bool = False) -> None:
        self.model = model
        self.item = item
        reshaped = item.HasField("reshape") and not inner
        self.dims = list(item.reshape.shape if reshaped else item.dims)
        self.shape = [-1, *self.dims] if config.max_batch_size > 0 else self.dims


def _check_same(graph: Graph, tensor: str, first: _TensorOrigin, second: _TensorOrigin, field: str) -> None:
    where = f"in ensemble {graph.name}, ensemble tensor {tensor}: inconsistent"
    if first.item.data_type != second.item.data_type:
        types = [BY_NUMBER[origin.item.data_type].config_name for origin in (first, second)]
        raise ConfigError(
            f"{where} data type: {types[0]} is inferred from model {first.model} while {types[1]} is "
            f"inferred from model {second.model}",
            field=field,
        )
    # without the batch dimension, which is added to and removed from a request of one row; or with it, if a
    # model declares the others' batch dimension as its own
    if not agree(first.dims, second.dims) and not agree(first.shape, second.shape):
        raise ConfigError(
            f"{where} shape: {brackets(first.shape)} is inferred from model {first.model} while "
            f"{brackets(second.shape)} is inferred from model {second.model}",
            field=field,
        )
