"""What is wrong with an ensemble's configuration, in Triton's words as a real Triton says them."""

from typing import Any

import pytest

from tpx.errors import ConfigError
from tpx.protocol import model_config
from tpx.serving.ensemble.composition import check_composition
from tpx.serving.ensemble.graph import graph_of
from tpx.serving.repository.configuration import complete_ensemble, validate_ensemble


def step(model: str = "a", given: str = "in", made: str = "out") -> str:
    return (
        f"{{ model_name: '{model}' model_version: -1 input_map {{ key: 'x' value: '{given}' }} "
        f"output_map {{ key: 'y' value: '{made}' }} }}"
    )


def ensemble(*steps: str, given: str = "in", made: str = "out", dims: str = "2", batch: int = 8) -> Any:
    """A configuration; `given` and `made` are names with commas between."""
    text = f"name: 'e' platform: 'ensemble' max_batch_size: {batch} "
    for kind, names in (("input", given), ("output", made)):
        for name in filter(None, names.split(",")):
            text += f"{kind} {{ name: '{name}' data_type: TYPE_FP32 dims: [{dims}] }} "
    return model_config.parse(text + f"ensemble_scheduling {{ step [ {', '.join(steps)} ] }}", "test")


def refused(config: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        graph_of(config)
    return caught.value.message


IN_MAP, OUT_MAP = "input_map { key: 'x' value: 'in' }", "output_map { key: 'y' value: 'out' }"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (ensemble(), "must specify 'step' for ensemble 'e'"),
        (ensemble(f"{{ {IN_MAP} {OUT_MAP} }}"), "must specify 'model_name' in step 0 of ensemble 'e'"),
        (
            ensemble(step(made="mid"), f"{{ model_name: 'b' {OUT_MAP} }}"),
            "must specify 'input_map' in step 1 of ensemble 'e'",
        ),
        (
            ensemble(step(), f"{{ model_name: 'b' {IN_MAP} }}"),
            "must specify 'output_map' in step 1 of ensemble 'e'",
        ),
        (
            ensemble(step(), step("b")),
            "ensemble tensor 'out' can appear in an output map only once for ensemble 'e' step 1",
        ),
        (ensemble(step(), given="in,more"), "ensemble input 'more' for ensemble 'e' is not used"),
        (ensemble(step(), made="out,more"), "ensemble output 'more' for ensemble 'e' is not used"),
        (ensemble(step(), step("b", made="mid")), "ensemble tensor 'mid' is unused in ensemble 'e'"),
        (
            ensemble(step("a", "nothing", "out"), step("b", "in", "m1"), step("c", "m1", "m2")),
            "output 'out' for ensemble 'e' is not written: at least one of its depending tensors, 'nothing', "
            "is not connected",
        ),
        (
            ensemble(step("a", "made_of_in", "out"), step("b", "in", "made_of_ink")),
            "output 'out' for ensemble 'e' is not written: at least one of its depending tensors, "
            "'made_of_in', is not connected (did you mean 'made_of_ink'?)",
        ),
        (
            ensemble(
                step("a", "nothing", "mid"), step("b", "mid"), step("c", "in", "other"), made="out,other"
            ),
            "output 'out' for ensemble 'e' is not written: at least one of its depending tensors, 'nothing', "
            "is not connected",
        ),
        (
            ensemble(step("a", "out2"), step("b", "out", "out2"), step("c", "in", "z"), made="out,z"),
            "output 'out' for ensemble 'e' is not written",
        ),
        (
            ensemble(step("a", "l2", "l1"), step("b", "l1", "l2"), step("c")),
            "ensemble tensor 'l1' is unused in ensemble 'e'",
        ),
        (
            ensemble(step(), given=""),
            "output 'out' for ensemble 'e' is not written: at least one of its depending tensors, 'in', is "
            "not connected",
        ),
        (ensemble(step(), made=""), "ensemble tensor 'out' is unused in ensemble 'e'"),
    ],
)
def test_steps_and_tensors_that_do_not_fit_together(config: Any, message: str) -> None:
    assert refused(config) == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "platform: 'ensemble' backend: 'python' ensemble_scheduling { }",
            "Ensemble model 'e' must have platform type 'ensemble' and empty backend type",
        ),
        (
            "backend: 'python' ensemble_scheduling { }",
            "ensemble scheduling cannot be set for model 'e' whose platform is not ensemble",
        ),
        ("platform: 'ensemble'", "ensemble scheduling must be set for ensemble e whose platform is ensemble"),
        (
            "platform: 'ensemble' ensemble_scheduling { } instance_group [{ kind: KIND_CPU }]",
            "instance group should not be specified for ensemble 'e'",
        ),
        (
            "platform: 'ensemble' ensemble_scheduling { } optimization { }",
            "optimization should not be specified for ensemble 'e'",
        ),
        (
            "platform: 'ensemble' ensemble_scheduling { } model_warmup [{ name: 'w' }]",
            "model_warmup can not be specified for ensemble 'e'",
        ),
    ],
)
def test_what_an_ensemble_cannot_have(text: str, message: str) -> None:
    config = model_config.parse(f"name: 'e' {text}", "test")
    complete_ensemble(config, auto_complete=True)
    with pytest.raises(ConfigError) as caught:
        validate_ensemble(config)
    assert caught.value.message == message


@pytest.mark.parametrize("auto_complete", [True, False])
def test_the_platform_is_told_from_the_steps(auto_complete: bool) -> None:
    config = model_config.parse("name: 'e' ensemble_scheduling { }", "test")
    complete_ensemble(config, auto_complete=auto_complete)
    assert config.platform == ("ensemble" if auto_complete else "")
    assert config.version_policy.latest.num_versions == 1
    assert not config.instance_group


def model(
    name: str,
    datatype: str = "FP32",
    dims: str = "2",
    batch: int = 8,
    *,
    decoupled: bool = False,
    more: str = "",
) -> Any:
    """The configuration of a composing model."""
    tensor = f"data_type: TYPE_{datatype} dims: [{dims}]"
    return model_config.parse(
        f"name: '{name}' max_batch_size: {batch} "
        f"input {{ name: 'x' {tensor} }} output {{ name: 'y' {tensor} }} "
        f"model_transaction_policy {{ decoupled: {str(decoupled).lower()} }} {more}",
        "test",
    )


CHAIN = (step("a", "in", "mid"), step("b", "mid", "out"))
FORK = (step("a", "in", "l"), step("b", "in", "r"))
JOIN = (
    "{ model_name: 'c' input_map [{ key: 'x' value: 'l' }, { key: 'z' value: 'r' }] "
    "output_map { key: 'y' value: 'out' } }"
)
Z = "input { name: 'z' data_type: TYPE_FP32 dims: [2] }"
WRONG_ORIGINS = "receives inputs originated from different decoupled models"


@pytest.mark.parametrize(
    ("config", "models", "message", "field"),
    [
        (
            ensemble(*CHAIN),
            [model("a"), model("b", "INT32")],
            "in ensemble e, ensemble tensor mid: inconsistent data type: TYPE_FP32 is inferred from model a "
            "while TYPE_INT32 is inferred from model b",
            "ensemble_scheduling.step[1].input_map[x]",
        ),
        (
            ensemble(*CHAIN),
            [model("a"), model("b", dims="16, 16")],
            "in ensemble e, ensemble tensor mid: inconsistent shape: [-1,2] is inferred from model a while "
            "[-1,16,16] is inferred from model b",
            "ensemble_scheduling.step[1].input_map[x]",
        ),
        (
            ensemble(*CHAIN),
            [model("a"), model("b", batch=2)],
            "ensemble e allows maximum batch size 8, but it contains model b which only allows maximum "
            "batch size to be 2",
            "max_batch_size",
        ),
        (
            ensemble(step().replace("'x'", "'q'")),
            [model("a")],
            "in ensemble e, ensemble tensor in is mapping to non-existing input q in model a",
            "ensemble_scheduling.step[0].input_map[q]",
        ),
        (
            ensemble(step().replace("'y'", "'q'")),
            [model("a")],
            "in ensemble e, ensemble tensor out is mapped from non-existing output q in model a",
            "ensemble_scheduling.step[0].output_map[q]",
        ),
        (
            ensemble(step()),
            [model("a", more=Z)],
            "in ensemble e, input z in model a is not mapped to any ensemble tensors",
            "ensemble_scheduling.step[0].input_map",
        ),
        (
            ensemble(step(), dims="3"),
            [model("a")],
            "in ensemble e, ensemble tensor in: inconsistent shape: [-1,3] is inferred from model e while "
            "[-1,2] is inferred from model a",
            "ensemble_scheduling.step[0].input_map[x]",
        ),
        (
            ensemble(*FORK, JOIN),
            [model("a", decoupled=True), model("b", decoupled=True), model("c", more=Z)],
            f"in ensemble e, step of model 'c' {WRONG_ORIGINS}",
            "ensemble_scheduling.step[2].input_map",
        ),
        (
            ensemble(*FORK, made="l,r"),
            [model("a", decoupled=True), model("b", decoupled=True)],
            f"in ensemble e, step of model 'e' {WRONG_ORIGINS}",
            "output",
        ),
    ],
)
def test_models_that_do_not_fit_together(config: Any, models: list[Any], message: str, field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_composition(config, graph_of(config), models)
    assert (caught.value.message, caught.value.field) == (message, field)


@pytest.mark.parametrize(
    ("config", "models"),
    [
        (ensemble(*CHAIN), [model("a"), model("b", dims="-1, 2", batch=0)]),
        (ensemble(*CHAIN, dims="-1, 2", batch=0), [model("a"), model("b")]),
        (ensemble(*CHAIN), [model("a"), model("b", batch=0)]),
        (ensemble(*CHAIN, dims="-1"), [model("a"), model("b", batch=16)]),
        (ensemble(step()), [model("a", more=Z.replace("name", "optional: true name"))]),
        (ensemble(*FORK, JOIN), [model("a", decoupled=True), model("b"), model("c", more=Z)]),
        (ensemble(*CHAIN), [model("a", decoupled=True), model("b", decoupled=True)]),
    ],
)
def test_models_that_fit_together(config: Any, models: list[Any]) -> None:
    check_composition(config, graph_of(config), models)


def test_steps_are_ordered_by_what_they_need() -> None:
    config = ensemble(step("c", "m2", "out"), step("b", "m1", "m2"), step("a", "in", "m1"))
    graph = graph_of(config)
    assert [step.model.name for step in graph.steps] == ["a", "b", "c"]
    assert [step.index for step in graph.steps] == [2, 1, 0]
