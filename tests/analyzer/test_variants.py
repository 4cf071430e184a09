"""Variants: what changes in the configuration, and what is written where."""

import json
from pathlib import Path
from typing import Any

import pytest

from tpx.analyzer.results.measurement import Configuration, Variant
from tpx.analyzer.variants import OutputRepository, configure, effective, facts_of, merge
from tpx.errors import ConfigError, UsageError
from tpx.protocol import model_config

DEFAULT: dict[str, Any] = {
    "name": "mnist",
    "platform": "onnxruntime_onnx",
    "max_batch_size": 8,
    "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [1, 8, 8]}],
    "instance_group": [{"name": "mnist", "kind": "KIND_CPU", "count": 1}],
    "dynamic_batching": {"preferred_batch_size": [4], "max_queue_delay_microseconds": 100},
}


def variant(**delta: Any) -> Variant:
    return Variant(models=("mnist",), name="mnist_config_0" if delta else "mnist_config_default", delta=delta)


def test_a_change_keeps_what_it_does_not_name() -> None:
    changed = merge(
        DEFAULT,
        {"instance_group": [{"count": 3}], "dynamic_batching": {}, "max_batch_size": 16},
    )
    assert changed["instance_group"] == [{"name": "mnist", "kind": "KIND_CPU", "count": 3}]
    assert changed["dynamic_batching"] == DEFAULT["dynamic_batching"]
    assert changed["max_batch_size"] == 16
    assert DEFAULT["instance_group"][0]["count"] == 1


def test_lists_of_plain_values_and_of_another_length_are_replaced() -> None:
    assert merge({"sizes": [1, 2]}, {"sizes": [4, 8]}) == {"sizes": [4, 8]}
    assert merge({"groups": [{"a": 1}, {"a": 2}]}, {"groups": [{"b": 3}]}) == {"groups": [{"b": 3}]}


def test_the_text_of_a_variant_parses_to_the_default_with_the_change() -> None:
    configuration = configure(variant(instance_group=[{"count": 2, "kind": "KIND_CPU"}]), DEFAULT)
    message = model_config.parse(configuration.text, "test")
    assert message.instance_group[0].count == 2
    assert message.max_batch_size == 8
    assert list(message.dynamic_batching.preferred_batch_size) == [4]
    assert message.name == ""
    assert (configuration.instance_group, configuration.instances) == ("2:CPU", 2)
    assert configuration.dynamic_batching


def test_an_empty_dynamic_batching_switches_it_on() -> None:
    plain = {key: value for key, value in DEFAULT.items() if key != "dynamic_batching"}
    assert not configure(variant(), plain).dynamic_batching
    configuration = configure(variant(dynamic_batching={}), plain)
    assert configuration.dynamic_batching
    assert model_config.parse(configuration.text, "test").HasField("dynamic_batching")


def test_instances_count_once_for_every_gpu_and_kinds_are_named() -> None:
    groups = [{"count": 2, "kind": "KIND_GPU", "gpus": [0, 1]}, {"count": 1, "kind": "KIND_CPU"}]
    configuration = configure(variant(instance_group=groups), DEFAULT)
    assert (configuration.instance_group, configuration.instances) == ("4:GPU + 1:CPU", 5)


def test_a_change_that_the_schema_does_not_know_is_refused() -> None:
    with pytest.raises(ConfigError, match="mnist_config_0"):
        configure(variant(instance_count=3), DEFAULT)


@pytest.mark.parametrize(
    ("kind", "gpu", "expected"),
    [
        ("KIND_AUTO", False, "KIND_CPU"),
        ("KIND_AUTO", True, "KIND_GPU"),
        ("KIND_CPU", True, "KIND_CPU"),
        ("KIND_GPU", True, "KIND_GPU"),
        ("KIND_MODEL", True, "KIND_MODEL"),
    ],
)
def test_variants_run_where_the_default_runs(kind: str, gpu: bool, expected: str) -> None:
    facts = facts_of("m", {"instance_group": [{"kind": kind}]}, gpu=gpu)
    assert facts.instance_kind == expected


def test_a_preference_for_the_greatest_batch_is_the_servers_and_is_taken_out() -> None:
    completed = {"max_batch_size": 8, "dynamic_batching": {"preferred_batch_size": [8], "priority_levels": 2}}
    assert effective(completed) == {"max_batch_size": 8, "dynamic_batching": {"priority_levels": 2}}
    assert effective(DEFAULT) == DEFAULT
    assert effective({"max_batch_size": 0}) == {"max_batch_size": 0}


def test_facts_come_from_the_effective_configuration() -> None:
    facts = facts_of("mnist", DEFAULT, gpu=False)
    assert (facts.max_batch_size, facts.preferred_batch_sizes) == (8, (4,))
    assert facts.can_batch_dynamically
    assert not facts_of(
        "m", {"sequence_batching": {"max_sequence_idle_microseconds": 1}}, gpu=False
    ).can_batch_dynamically


@pytest.fixture
def source(tmp_path: Path) -> Path:
    model = tmp_path / "models" / "mnist"
    (model / "1").mkdir(parents=True)
    (model / "1" / "model.onnx").write_bytes(b"weights")
    (model / "labels.txt").write_text("zero\n")
    (model / "config.pbtxt").write_text('name: "mnist"')
    return tmp_path / "models"


def configuration() -> Configuration:
    return configure(variant(max_batch_size=4), DEFAULT)


def test_a_variant_lies_beside_links_to_the_models_files(source: Path, tmp_path: Path) -> None:
    repository = OutputRepository(tmp_path / "deep" / "output", source)
    directory = repository.write(configuration())
    assert directory == tmp_path / "deep" / "output" / "mnist_config_0"
    assert "max_batch_size: 4" in (directory / "config.pbtxt").read_text()
    assert (directory / "1" / "model.onnx").read_bytes() == b"weights"
    assert (directory / "1" / "model.onnx").samefile(source / "mnist" / "1" / "model.onnx")
    assert not (directory / "labels.txt").is_symlink()
    assert (directory / "labels.txt").read_text() == "zero\n"
    assert (source / "mnist" / "config.pbtxt").read_text() == 'name: "mnist"'


def test_a_variant_of_vllm_has_its_arguments_in_model_json(source: Path, tmp_path: Path) -> None:
    own = source / "mnist" / "1" / "model.json"
    own.write_text('{"model": "m", "max_num_seqs": 8}')
    texts = {"max_num_seqs": "64", "kv_cache_dtype": "fp8", "max_queue_size": "9"}
    changed = variant(parameters={name: {"string_value": text} for name, text in texts.items()})
    made = configure(changed, {"name": "mnist", "backend": "vllm"})
    assert "max_num_seqs" in made.text, "which is what a server of tpx is asked to load"
    directory = OutputRepository(tmp_path / "output", source).write(made)
    written = json.loads((directory / "1" / "model.json").read_text())
    assert written == {"model": "m", "max_num_seqs": 64, "kv_cache_dtype": "fp8"}
    assert "max_num_seqs" not in (directory / "config.pbtxt").read_text()
    assert "max_queue_size" in (directory / "config.pbtxt").read_text()
    assert json.loads(own.read_text())["max_num_seqs"] == 8


def test_where_there_are_no_hard_links_small_files_are_copied_and_large_ones_linked(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def another_disk(*paths: Path) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr("os.link", another_disk)
    weights = source / "mnist" / "1" / "model.onnx"
    weights.write_bytes(bytes(2 << 20))
    directory = OutputRepository(tmp_path / "output", source).write(configuration())
    assert (directory / "1" / "model.onnx").is_symlink()
    assert (directory / "1" / "model.onnx").samefile(weights)
    assert not (directory / "labels.txt").is_symlink()
    assert (directory / "labels.txt").read_text() == "zero\n"


def test_writing_a_variant_again_leaves_the_weights_alone(source: Path, tmp_path: Path) -> None:
    repository = OutputRepository(tmp_path / "output", source)
    repository.write(configuration())
    repository.write(configuration())
    assert (source / "mnist" / "1" / "model.onnx").read_bytes() == b"weights"


def test_an_output_repository_that_holds_something_is_replaced_only_on_demand(
    source: Path, tmp_path: Path
) -> None:
    OutputRepository(tmp_path / "output", source).write(configuration())
    with pytest.raises(UsageError, match="--override-output-model-repository"):
        OutputRepository(tmp_path / "output", source)
    OutputRepository(tmp_path / "output", source, override=True)
    assert list((tmp_path / "output").iterdir()) == []
    assert (source / "mnist" / "1" / "model.onnx").exists()


@pytest.mark.parametrize("entry", ["notes.txt", "my_models/config.pbtxt", "mnist_config_0/model.onnx"])
def test_nothing_but_variants_is_ever_removed(source: Path, tmp_path: Path, entry: str) -> None:
    path = tmp_path / "output" / entry
    path.parent.mkdir(parents=True)
    path.write_text("mine")
    with pytest.raises(UsageError, match="not a variant that a run wrote"):
        OutputRepository(tmp_path / "output", source, override=True)
    assert path.read_text() == "mine"


@pytest.mark.parametrize("where", ["models", "models/output", "."])
def test_an_output_repository_over_the_models_is_refused(source: Path, tmp_path: Path, where: str) -> None:
    with pytest.raises(UsageError, match="overlaps"):
        OutputRepository(tmp_path / where, source, override=True)
    assert (source / "mnist" / "1" / "model.onnx").exists()


@pytest.mark.parametrize(
    ("own", "group", "instances", "batch"),
    [
        ({}, "2:CPU; 1:CPU; 3:CPU", 6, 16),
        ({"ensemble_scheduling": {"step": [{"model_name": "a"}]}}, "1:CPU; 3:CPU", 4, 4),
    ],
)
def test_business_logic_computes_beside_its_members_and_an_ensemble_only_through_them(
    own: dict[str, Any], group: str, instances: int, batch: int
) -> None:
    one, three = ({"instance_group": [{"count": n, "kind": "KIND_CPU"}], "max_batch_size": 4} for n in (1, 3))
    members = tuple(Variant(models=(name,), name=f"{name}_config_default") for name in ("a", "b"))
    top = {**own, "max_batch_size": 16} | (
        {} if own else {"instance_group": [{"count": 2, "kind": "KIND_CPU"}]}
    )
    found = configure(
        Variant(models=("top",), name="top_config_default", members=members), top, {"a": one, "b": three}
    )
    assert (found.instance_group, found.instances, found.max_batch_size) == (
        group,
        instances,
        batch,
    )
    assert [each.variant.model for each in found.files] == ["top", "a", "b"]
