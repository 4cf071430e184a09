"""The graph of an ensemble: steps, and the tensors between them (Triton: core/src/ensemble_scheduler/)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tpx.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One composing model; both maps are from its tensors to the ensemble's."""

    index: int
    model_name: str
    version: str
    """Empty: the latest."""
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """Steps, and what the ensemble as a whole takes and gives."""

    name: str
    steps: Sequence[Step]
    inputs: frozenset[str]
    outputs: frozenset[str]
    max_inflight: int
    """Requests that one step has under way for one request of the ensemble; 0 is no limit."""

    def needed(self, outputs: Iterable[str]) -> list[Step]:
        """The steps without which these outputs could not be made, in the order of the configuration."""
        producers = {tensor: step for step in self.steps for tensor in step.outputs.values()}
        wanted, found = list(outputs), set()
        while wanted:
            step = producers.get(wanted.pop())
            if step is not None and step.index not in found:
                found.add(step.index)
                wanted.extend(step.inputs.values())
        return [step for step in self.steps if step.index in found]


def graph_of(config: Any) -> Graph:
    """The graph in a configuration. Raises ConfigError where steps and tensors do not fit together."""
    name = config.name
    scheduling = config.ensemble_scheduling
    if not scheduling.step:
        raise ConfigError(f"must specify 'step' for ensemble '{name}'")
    steps = []
    for index, step in enumerate(scheduling.step):
        for field in ("model_name", "input_map", "output_map"):
            if not getattr(step, field):
                raise ConfigError(f"must specify '{field}' in step {index} of ensemble '{name}'")
        steps.append(
            Step(
                index=index,
                model_name=step.model_name,
                version=str(step.model_version) if step.model_version > 0 else "",
                inputs=dict(step.input_map),
                outputs=dict(step.output_map),
            )
        )
    graph = Graph(
        name=name,
        steps=tuple(steps),
        inputs=frozenset(item.name for item in config.input),
        outputs=frozenset(item.name for item in config.output),
        max_inflight=scheduling.max_inflight_requests,
    )
    _check_tensors(graph)
    _check_order(graph)
    return graph


def _check_tensors(graph: Graph) -> None:
    written: set[str] = set(graph.inputs)
    for step in graph.steps:
        for tensor in step.outputs.values():
            if tensor in written:
                raise ConfigError(
                    f"ensemble tensor '{tensor}' can appear in an output map only once for ensemble "
                    f"'{graph.name}' step {step.index}"
                )
            written.add(tensor)
    read = {tensor for step in graph.steps for tensor in step.inputs.values()}
    for tensor in sorted(graph.inputs - read):
        raise ConfigError(f"ensemble input '{tensor}' for ensemble '{graph.name}' is not used")
    for tensor in sorted(graph.outputs - written):
        raise ConfigError(f"ensemble output '{tensor}' for ensemble '{graph.name}' is not used")
    for tensor in sorted(read - written):
        raise ConfigError(f"ensemble tensor '{tensor}' is not written by any step of ensemble '{graph.name}'")
    for tensor in sorted(written - read - graph.outputs):
        raise ConfigError(f"ensemble tensor '{tensor}' is unused in ensemble '{graph.name}'")


def _check_order(graph: Graph) -> None:
    """Every step can run once the ones before it have: there is no circle."""
    known = set(graph.inputs)
    waiting = list(graph.steps)
    while waiting:
        ready = [step for step in waiting if known.issuperset(step.inputs.values())]
        if not ready:
            output = next(iter(sorted(graph.outputs - known)), "")
            missing = sorted({t for step in waiting for t in step.inputs.values()} - known)
            raise ConfigError(
                f"output '{output}' for ensemble '{graph.name}' is not written: at least one of its "
                f"depending tensors, '{missing[0]}', is not connected"
            )
        for step in ready:
            known.update(step.outputs.values())
            waiting.remove(step)


def check_composition(config: Any, graph: Graph, configs: Mapping[str, Any]) -> bool:
    """Check types and shapes along the graph against the composing models' configurations, by name.

    Returns whether the ensemble is decoupled. Raises ConfigError.
    """
    tensors = {item.name: _Origin(graph.name, item, config) for item in (*config.input, *config.output)}
    ancestors: dict[str, str] = {}
    decoupled = False
    for step in _in_order(graph):
        model = configs[step.model_name]
        if 0 < model.max_batch_size < config.max_batch_size:
            raise ConfigError(
                f"ensemble {graph.name} allows maximum batch size {config.max_batch_size}, but it contains "
                f"model {model.name} which only allows maximum batch size to be {model.max_batch_size}"
            )
        _check_step(graph, step, model, tensors)
        sources = {ancestors[t] for t in step.inputs.values() if t in ancestors}
        if len(sources) > 1:
            raise ConfigError(
                f"in ensemble {graph.name}, step of model '{model.name}' receives inputs originated from "
                "different decoupled models"
            )
        origin = next(iter(sources), "")
        if model.model_transaction_policy.decoupled:
            origin = f"{model.name} in step {step.index}"
            decoupled = True
        if origin:
            ancestors.update(dict.fromkeys(step.outputs.values(), origin))
    return decoupled


def _in_order(graph: Graph) -> list[Step]:
    known, waiting, ordered = set(graph.inputs), list(graph.steps), []
    while waiting:
        step = next(s for s in waiting if known.issuperset(s.inputs.values()))
        ordered.append(step)
        known.update(step.outputs.values())
        waiting.remove(step)
    return ordered


class _Origin:
    """A tensor as the model it was first seen in says it is."""

    def __init__(self, model: str, item: Any, config: Any) -> None:
        self.model = model
        self.item = item
        self.shape = _full_shape(item, config)

    @property
    def type_name(self) -> str:
        field = self.item.DESCRIPTOR.fields_by_name["data_type"]
        name: str = field.enum_type.values_by_number[self.item.data_type].name
        return name


def _full_shape(item: Any, config: Any) -> list[int]:
    return [-1, *item.dims] if config.max_batch_size > 0 else list(item.dims)


def _check_step(graph: Graph, step: Step, model: Any, tensors: dict[str, _Origin]) -> None:
    inputs = {item.name: item for item in model.input}
    outputs = {item.name: item for item in model.output}
    for name, tensor in step.inputs.items():
        if name not in inputs:
            raise ConfigError(
                f"in ensemble {graph.name}, ensemble tensor {tensor} is mapping to non-existing input {name} "
                f"in model {model.name}"
            )
    for name, item in inputs.items():
        if name not in step.inputs and not item.optional:
            raise ConfigError(
                f"in ensemble {graph.name}, input {name} in model {model.name} is not mapped to any ensemble "
                "tensors"
            )
    for name, tensor in step.outputs.items():
        if name not in outputs:
            raise ConfigError(
                f"in ensemble {graph.name}, ensemble tensor {tensor} is mapped from non-existing output "
                f"{name} in model {model.name}"
            )
    mapped = [(tensor, inputs[name]) for name, tensor in step.inputs.items()]
    mapped += [(tensor, outputs[name]) for name, tensor in step.outputs.items()]
    for tensor, item in mapped:
        seen = _Origin(model.name, item, model)
        _check_same(graph, tensor, tensors.setdefault(tensor, seen), seen)


def _check_same(graph: Graph, tensor: str, first: _Origin, second: _Origin) -> None:
    where = f"in ensemble {graph.name}, ensemble tensor {tensor}: inconsistent"
    if first.item.data_type != second.item.data_type:
        raise ConfigError(
            f"{where} data type: {first.type_name} is inferred from model {first.model} while "
            f"{second.type_name} is inferred from model {second.model}"
        )
    fits = len(first.shape) == len(second.shape) and all(
        a == b or -1 in (a, b) for a, b in zip(first.shape, second.shape, strict=True)
    )
    if not fits:
        raise ConfigError(
            f"{where} shape: {_brackets(first.shape)} is inferred from model {first.model} while "
            f"{_brackets(second.shape)} is inferred from model {second.model}"
        )


def _brackets(shape: Sequence[int]) -> str:
    return "[" + ",".join(map(str, shape)) + "]"
