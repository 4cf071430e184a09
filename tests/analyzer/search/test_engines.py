"""Axes of the engines of language models."""

from typing import Any

import pytest

from tpx.analyzer.options import ProfileSpec
from tpx.analyzer.options.models import ModelToProfile
from tpx.analyzer.options.spec import groups_of, spec_of
from tpx.analyzer.search.axes import open_grid
from tpx.analyzer.search.explorer import Explorer
from tpx.analyzer.search.history import History
from tpx.analyzer.search.spec import Mode, SearchSpec
from tpx.analyzer.variants import facts_of
from tpx.options import build


def searched(default: dict[str, Any], **options: Any) -> tuple[Mode, SearchSpec]:
    config = build(
        ProfileSpec,
        {"profile_models": (ModelToProfile(name="llm"),), "cores": 4, "model_type": "LLM", **options},
    )
    (group,) = groups_of(config)
    return spec_of(config, group, {"llm": (facts_of("llm", default, gpu=False), default)})


def parameters(**values: object) -> dict[str, Any]:
    texts = {key: {"string_value": str(value)} for key, value in values.items()}
    return {"backend": "llamacpp", "max_batch_size": 0, "parameters": texts}


@pytest.mark.parametrize("backend", ["llamacpp", "openvino_genai"])
def test_an_engine_has_axes_without_being_told(backend: str) -> None:
    mode, spec = searched({"backend": backend, "max_batch_size": 0})
    assert mode == "budgeted"
    names = {d.name: [c.label for c in d.choices] for d in open_grid(spec).dimensions}
    assert names == {
        "instances": ["1", "2", "3", "4", "5"],
        "n_parallel": ["1", "2", "4", "8", "16", "32", "64"],
        "n_batch": ["512", "2048"],
        "threads": ["1", "2", "4"],
    }


@pytest.mark.parametrize("by_tpx", [True, False])
def test_arguments_of_vllm_are_axes_of_the_server_that_reads_them(by_tpx: bool) -> None:
    inputs = [{"name": "text_input"}, *([{"name": "openai_request"}] if by_tpx else [])]
    mode, spec = searched({"backend": "vllm", "max_batch_size": 0, "input": inputs})
    names = {d.name: [c.label for c in d.choices] for d in open_grid(spec).dimensions}
    assert mode == ("budgeted" if by_tpx else "brute")
    assert names.pop("instances") == ["1"], "one engine fills a GPU"
    axes = {
        "max_num_seqs": ["16", "32", "64", "128", "256"],
        "max_num_batched_tokens": ["2048", "4096", "8192", "16384"],
    }
    assert names == (axes if by_tpx else {})
    assert Explorer(spec, History(spec.goals, spec.limits)).default_in_flight == (256 if by_tpx else 2)


def test_other_backends_have_none() -> None:
    mode, spec = searched({"backend": "onnxruntime", "max_batch_size": 0})
    assert mode == "brute"
    assert [d.name for d in open_grid(spec).dimensions] == ["instances"]


def test_a_given_context_stays_as_long_for_each_sequence() -> None:
    _, spec = searched(parameters(n_parallel=2, n_ctx=1024))
    (axis,) = (d for d in open_grid(spec).dimensions if d.name == "n_parallel")
    assert [c.delta["parameters"]["n_ctx"]["string_value"] for c in axis.choices[:3]] == [
        "512",
        "1024",
        "2048",
    ]


def test_an_engine_is_filled_by_its_sequences() -> None:
    _, spec = searched(parameters(n_parallel=8))
    explorer = Explorer(spec, History(spec.goals, spec.limits))
    assert explorer.default_in_flight == 8
    grid = explorer.grid
    point = next(p for p in grid.points() if "instances 2, n_parallel 16" in grid.describe(p))
    assert grid.expected(point) == 32


def test_threads_of_all_instances_fit_the_cores() -> None:
    grid = open_grid(searched(parameters())[1])
    assert all(grid.amount(p, "instances") * grid.amount(p, "threads") <= 4 for p in grid.points())
