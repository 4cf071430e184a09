"""The dimensions of a model's search space, each a set of changes to its configuration.

They are instances, batch sizes, batching, threads, execution provider, graph level and precision, or
fields that the user listed.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tpx.analyzer.config_sweep import ConfigAxis, ConfigSweep, delta_of
from tpx.analyzer.search.engines import engine_dimensions
from tpx.analyzer.search.space import CLIENT_BATCH, Choice, Dimension, SearchGrid, loads_of
from tpx.analyzer.search.spec import SearchSpace, SearchSpec
from tpx.analyzer.variants import ModelFacts, automatic_delta, instance_count
from tpx.errors import UsageError
from tpx.report.digits import MICROSECONDS

_THREADS: Mapping[str, str] = {
    "onnxruntime": "intra_op_thread_count",
    "pytorch": "INTRA_OP_THREAD_COUNT",
    "tensorflow": "TF_NUM_INTRA_THREADS",
    "openvino": "INFERENCE_NUM_THREADS",
}
"""Parameter that sets the compute threads per instance, by backend."""

_PRECISION_PARAMETER: Mapping[str, str] = {"tensorrt": "precision_mode", "openvino": "precision"}
_ON_GPU = ("cuda", "tensorrt")


def open_grid(spec: SearchSpec) -> SearchGrid:
    """Return the grid over the model or its members. Raises UsageError for an axis its backend lacks."""
    if spec.deltas is not None:  # the user's own list as one unordered dimension, after the default
        listed = [Choice(label=str(n), delta=d) for n, d in enumerate(spec.deltas, 1)]
        choices: tuple[Choice, ...] = (Choice(label="default"), *listed)
        dimensions = [Dimension(name="listed", choices=choices, ordered=False)]
    elif not spec.members:
        dimensions = _list_dimensions(spec, spec.facts, spec.sweep)
    else:
        dimensions = [
            replace(dimension, model=member.facts.model)
            for member in spec.members
            for dimension in _list_dimensions(spec, member.facts, member.sweep)
        ]
        own = listed_dimensions(spec.facts, spec.sweep)
        dimensions += [replace(dimension, model=spec.facts.model) for dimension in own]
    for model, loads in loads_of(spec).items():
        choices = tuple(Choice(label=str(size), amount=size) for size in loads.batch_sizes)
        if len(choices) > 1:
            dimensions.append(Dimension(name=CLIENT_BATCH, choices=choices, model=model))
    return SearchGrid(spec, dimensions)


def _list_dimensions(spec: SearchSpec, facts: ModelFacts, sweep: ConfigSweep) -> list[Dimension]:
    """Return the dimensions of one model; values that the user listed replace a range."""
    listed = listed_dimensions(facts, sweep)
    if spec.space.strategy.run_config_search_disable:
        return listed
    ranges = _list_range_dimensions(facts, spec.space)
    names = {dimension.name.partition(".")[0] for dimension in listed}
    if "dynamic_batching" in names:
        names.add("batching")
    chosen = {dimension.name: dimension for dimension in listed}
    order = [chosen.pop(each.name, each) for each in ranges if each.name in chosen or each.name not in names]
    return [*order, *chosen.values()]


def _list_range_dimensions(facts: ModelFacts, space: SearchSpace) -> list[Dimension]:
    extras, strategy = space.extras, space.strategy
    # one engine of vLLM fills its GPU
    instances = strategy.instances if facts.backend != "vllm" else (facts.instances,)
    counts = [Choice(label=str(n), delta=automatic_delta(facts, n, None), amount=n) for n in instances]
    found = [Dimension(name="instances", choices=tuple(counts))]
    if facts.max_batch_size > 0:
        sizes = tuple(_build_batch_choice(size, facts) for size in strategy.max_batch_sizes)
        found.append(Dimension(name="max_batch_size", choices=sizes))
        if facts.can_batch_dynamically:
            # the batcher as in the default (or plain), with each delay, and off
            batching = [Choice(label="on", amount=0)]
            for delay in sorted(set(extras.queue_delays)):
                batcher = {"dynamic_batching": {"max_queue_delay_microseconds": delay}}
                batching.append(
                    Choice(label=f"on, delay {delay} {MICROSECONDS}", delta=batcher, amount=delay + 1)
                )
            if extras.search_without_batching:
                batching.append(Choice(label="off", delta={"dynamic_batching": None}, amount=-1))
            found.append(Dimension(name="batching", choices=tuple(batching), ordered=False))
    engine = engine_dimensions(facts, extras.processors)
    found += engine
    if extras.search_threads and not engine:
        found.append(_build_thread_dimension(facts, extras.processors))
    if extras.execution_providers or extras.precisions:
        found.append(_build_provider_dimension(facts, extras.execution_providers, extras.precisions))
    if extras.graph_levels:
        _require_onnx(facts, "--graph-levels")
        levels = [
            Choice(label=str(n), delta={"optimization": {"graph": {"level": n}}}, amount=n)
            for n in extras.graph_levels
        ]
        choices = (Choice(label="default"), *levels)
        found.append(Dimension(name="graph level", choices=choices, ordered=False))
    return [dimension for dimension in found if len(dimension.choices) > 1 or dimension.choices[0].delta]


def _build_thread_dimension(facts: ModelFacts, cores: int) -> Dimension:
    """Return thread counts 1, 2, 4 ... below the number of cores, and that number."""
    parameter = _THREADS.get(facts.backend)
    if parameter is None:
        raise UsageError(
            f"--search-threads: the number of threads of backend '{facts.backend}' of model "
            f"'{facts.model}' cannot be set in its configuration (it can for: {', '.join(_THREADS)})"
        )
    doublings = itertools.takewhile(lambda n: n < cores, (2**i for i in itertools.count()))
    choices = tuple(
        Choice(label=str(n), delta={"parameters": {parameter: {"string_value": str(n)}}}, amount=n)
        for n in (*doublings, cores)
    )
    return Dimension(name="threads", choices=choices)


def _build_provider_dimension(
    facts: ModelFacts, providers: Sequence[str], precisions: Sequence[str]
) -> Dimension:
    """Return the default's provider, and each other provider with each precision that it supports."""
    _require_onnx(facts, "--execution-providers")
    if precisions and not any(provider in _PRECISION_PARAMETER for provider in providers):
        raise UsageError("--precisions requires openvino or tensorrt in --execution-providers")
    choices = [Choice(label="default")]
    for provider in providers:
        kind = "gpu" if provider in _ON_GPU else "cpu"
        if (kind == "gpu") != (facts.instance_kind == "KIND_GPU"):
            raise UsageError(
                f"--execution-providers {provider} is for instances on the {kind.upper()}, model "
                f"'{facts.model}' has {facts.instance_kind}"
            )
        key = _PRECISION_PARAMETER.get(provider)
        for precision in ("", *(precisions if key else ())):
            item: dict[str, object] = {"name": provider}
            if key and precision:
                item["parameters"] = {key: precision}
            delta = {"optimization": {"execution_accelerators": {f"{kind}_execution_accelerator": [item]}}}
            choices.append(Choice(label=f"{provider} {precision}".rstrip(), delta=delta))
    return Dimension(name="provider", choices=tuple(choices), ordered=False)


def _require_onnx(facts: ModelFacts, flag: str) -> None:
    if facts.backend != "onnxruntime":
        raise UsageError(
            f"{flag} vary models of backend onnxruntime; model '{facts.model}' has '{facts.backend}'"
        )


def listed_dimensions(facts: ModelFacts, sweep: ConfigSweep) -> list[Dimension]:
    """Return one dimension per field; fields within one list vary together, as items depend on each other."""
    groups: dict[str, list[ConfigAxis]] = {}
    for axis in sweep.axes:
        in_list = any(isinstance(part, int) for part in axis.path)
        groups.setdefault(str(axis.path[0]) if in_list else axis.label, []).append(axis)
    found = [_build_dimension(name, axes, facts) for name, axes in groups.items()]
    return sorted(found, key=lambda dimension: dimension.name not in ("instances", "max_batch_size"))


def _build_dimension(name: str, axes: Sequence[ConfigAxis], facts: ModelFacts) -> Dimension:
    paths = [axis.path for axis in axes]
    alternatives = list(itertools.product(*(axis.values for axis in axes)))
    if name == "instance_group":
        choices = [_build_group_choice(delta_of(paths, values), facts) for values in alternatives]
        return Dimension(name="instances", choices=_sort_by_amount(choices))
    if name == "max_batch_size":
        return Dimension(
            name=name, choices=_sort_by_amount([_build_batch_choice(size, facts) for (size,) in alternatives])
        )
    labels = [", ".join("as it is" if value == {} else str(value) for value in each) for each in alternatives]
    pairs = zip(labels, alternatives, strict=True)
    choices = [Choice(label=label, delta=delta_of(paths, values)) for label, values in pairs]
    ordered = len(axes) == 1 and all(type(value) in (int, float) for (value,) in alternatives)
    if ordered:
        choices = [
            choice for _, choice in sorted(zip(alternatives, choices, strict=True), key=lambda p: p[0])
        ]
    return Dimension(name=name, choices=tuple(choices), ordered=ordered)


def _build_group_choice(delta: Mapping[str, Any], facts: ModelFacts) -> Choice:
    """Return a choice of instance groups; those without a kind get the model's."""
    groups = [{"kind": facts.instance_kind, **group} for group in delta["instance_group"]]
    amount = instance_count(groups)
    label = " + ".join(
        f"{group.get('count', 1)}:{str(group['kind']).removeprefix('KIND_')}" for group in groups
    )
    return Choice(label=label, delta={"instance_group": groups}, amount=amount)


def _build_batch_choice(size: int, facts: ModelFacts) -> Choice:
    delta = automatic_delta(facts, 1, size)
    del delta["instance_group"]
    return Choice(label=str(size), delta=delta, amount=max(1, size))


def _sort_by_amount(choices: Sequence[Choice]) -> tuple[Choice, ...]:
    return tuple(sorted(choices, key=lambda choice: choice.amount))
