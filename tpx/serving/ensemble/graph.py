"""The graph of an ensemble: steps, and the tensors between them (Triton: core/src/model_config_utils.cc)."""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from tpx.errors import ConfigError
from tpx.options import nearest
from tpx.protocol.messages import ModelConfig
from tpx.serving.model_id import ModelId


class EnsembleStep(msgspec.Struct, frozen=True, kw_only=True):
    """One call of a composing model; both maps lead from its tensors to the ensemble's."""

    index: int
    model: ModelId
    """The model named in the configuration, until `compose` resolves it."""
    version: str
    """Version; empty for the latest."""
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    decoupled: bool = False
    """True if its model is decoupled; like `ranks`, set by `compose`."""
    ranks: Mapping[str, int] = msgspec.field(default_factory=dict)
    """Ranks of its model's inputs, including the batch dimension if there is one."""


class Graph(msgspec.Struct, frozen=True, kw_only=True):
    """Steps in topological order, and the ensemble's inputs and outputs."""

    model: ModelId
    """The ensemble."""
    steps: Sequence[EnsembleStep]
    inputs: frozenset[str]
    outputs: frozenset[str]
    max_inflight: int
    """Maximum requests in flight of one step per request of the ensemble; 0 = unlimited."""

    @property
    def name(self) -> str:
        return self.model.name

    @property
    def models(self) -> frozenset[ModelId]:
        """The composing models."""
        return frozenset(step.model for step in self.steps)

    def needed(self, outputs: Iterable[str]) -> list[EnsembleStep]:
        """Return the steps needed for these outputs, in order."""
        producers = {tensor: step for step in self.steps for tensor in step.outputs.values()}
        wanted, found = list(outputs), set()
        while wanted:
            step = producers.get(wanted.pop())
            if step is not None and step.index not in found:
                found.add(step.index)
                wanted.extend(step.inputs.values())
        return [step for step in self.steps if step.index in found]


def graph_of(config: ModelConfig, namespace: str = "") -> Graph:
    """Return the graph of a configuration. Raises ConfigError if steps and tensors do not fit together."""
    steps = _parse_steps(config)
    inputs, outputs = [item.name for item in config.input], [item.name for item in config.output]
    written = {tensor for step in steps for tensor in step.outputs.values()}
    read = {tensor for step in steps for tensor in step.inputs.values()}
    for index, name in enumerate(inputs):
        if name not in read | written:
            raise ConfigError(
                f"ensemble input '{name}' for ensemble '{config.name}' is not used", field=f"input[{index}]"
            )
    ordered, known = _sort_steps(steps, inputs)
    for index, name in enumerate(outputs):
        if name not in read | written:
            raise ConfigError(
                f"ensemble output '{name}' for ensemble '{config.name}' is not used", field=f"output[{index}]"
            )
        if name not in known:
            raise ConfigError(
                f"output '{name}' for ensemble '{config.name}' is not written"
                + _explain_unconnected(name, steps, known, written),
                field=f"output[{index}]",
            )
    for tensor in sorted((read | written) - set(outputs)):
        if tensor not in known or tensor not in read:
            raise ConfigError(
                f"ensemble tensor '{tensor}' is unused in ensemble '{config.name}'",
                field=_find_mapping(steps, tensor),
            )
    return Graph(
        model=ModelId(config.name, namespace),
        steps=tuple(ordered),
        inputs=frozenset(inputs),
        outputs=frozenset(outputs),
        max_inflight=config.ensemble_scheduling.max_inflight_requests,
    )


def _find_mapping(steps: Sequence[EnsembleStep], tensor: str) -> str:
    """Return the path of the first mapping of a tensor of the ensemble."""
    for step in steps:
        for kind, tensors in (("input_map", step.inputs), ("output_map", step.outputs)):
            for name, mapped in tensors.items():
                if mapped == tensor:
                    return field_of(step, kind, name)
    return ""


def field_of(step: EnsembleStep, kind: str, name: str | None = None) -> str:
    """Return the path of a step's `input_map` or `output_map`, or of the entry for a tensor."""
    entry = "" if name is None else f"[{name}]"
    return f"ensemble_scheduling.step[{step.index}].{kind}{entry}"


def _parse_steps(config: ModelConfig) -> list[EnsembleStep]:
    steps: list[EnsembleStep] = []
    seen = {item.name for item in config.input}
    for index, step in enumerate(config.ensemble_scheduling.step):
        field = f"ensemble_scheduling.step[{index}]"
        for required in ("model_name", "input_map", "output_map"):
            if not getattr(step, required):
                raise ConfigError(
                    f"must specify '{required}' in step {index} of ensemble '{config.name}'",
                    field=f"{field}.{required}",
                )
        for name, tensor in sorted(step.output_map.items()):
            if tensor in seen:
                raise ConfigError(
                    f"ensemble tensor '{tensor}' can appear in an output map only once for ensemble "
                    f"'{config.name}' step {index}",
                    field=f"{field}.output_map[{name}]",
                )
            seen.add(tensor)
        steps.append(
            EnsembleStep(
                index=index,
                model=ModelId(step.model_name, step.model_namespace),
                version=str(step.model_version) if step.model_version > 0 else "",
                inputs=dict(sorted(step.input_map.items())),
                outputs=dict(sorted(step.output_map.items())),
            )
        )
    if not steps:
        raise ConfigError(f"must specify 'step' for ensemble '{config.name}'", field="ensemble_scheduling")
    return steps


def _sort_steps(steps: Sequence[EnsembleStep], inputs: Iterable[str]) -> tuple[list[EnsembleStep], set[str]]:
    """Return the steps that can run, in an order in which their inputs are known, and all known tensors."""
    known, waiting = set(inputs), list(steps)
    ordered: list[EnsembleStep] = []
    while True:
        ready = [step for step in waiting if known.issuperset(step.inputs.values())]
        if not ready:
            return ordered, known
        for step in ready:
            known.update(step.outputs.values())
        ordered += ready
        waiting = [step for step in waiting if step not in ready]


def _explain_unconnected(
    output: str, steps: Sequence[EnsembleStep], known: set[str], written: set[str]
) -> str:
    """Name the tensor that an output depends on and that no step produces; empty for a cycle."""
    producers = {tensor: step for step in steps for tensor in step.outputs.values()}
    wanted, seen = [output], set()
    while wanted:
        tensor = wanted.pop()
        if tensor in seen or tensor in known:
            continue
        seen.add(tensor)
        if tensor not in written:
            if tensor == output:
                break
            meant = nearest(tensor, sorted(known | written))
            return f": at least one of its depending tensors, '{tensor}', is not connected{meant}"
        wanted.extend(producers[tensor].inputs.values())
    return ""
