"""A server with the models that a module of tests asks, which do each other no harm; `ZOO` names them."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serving.backends.python.zoo import DECOUPLED, FP32, SAME, STRING, add, io
from tests.serving.live import Live, serving

REPEAT = (
    io(
        {"IN": "data_type: TYPE_INT32 dims: [ -1 ]", "DELAY": "data_type: TYPE_UINT32 dims: [ -1 ]"},
        {"OUT": "data_type: TYPE_INT32 dims: [ 1 ]", "IDX": "data_type: TYPE_UINT32 dims: [ 1 ]"},
    )
    + DECOUPLED
)
RESHAPED = (
    f"input [{{ name: 'x' {FP32} }}] "
    "output [{ name: 'y' data_type: TYPE_FP32 dims: [ 1, 2 ] reshape { shape: [ 2 ] } }]"
)
ONE = "instance_group { count: 1 }"
SAY = ONE + io({"say": STRING}, {"said": STRING})


def write_zoo(repository: Path) -> None:
    """The models."""
    two = {"INPUT0": FP32, "INPUT1": FP32}
    add(
        repository,
        "add_sub",
        config="max_batch_size: 8 dynamic_batching { }" + io(two, {"OUTPUT0": FP32, "OUTPUT1": FP32}),
    )
    add(repository, "say", config=SAY)
    add(repository, "returns", config=SAME + ONE)
    add(repository, "repeat", config=REPEAT)
    add(repository, "flood", config=SAME + DECOUPLED)
    add(repository, "reshaped", "grows", RESHAPED)
    add(repository, "varies", config=io({"x": FP32}, {"y": FP32, "z": FP32}) + DECOUPLED)
    ordered = "dynamic_batching { preserve_ordering: true }"
    add(
        repository, "varies_in_order", "varies", ordered + io({"x": FP32}, {"y": FP32, "z": FP32}) + DECOUPLED
    )
    add(repository, "speaks", config=io({"text_input": STRING}, {"text_output": STRING}) + DECOUPLED)
    add(repository, "double")
    add(repository, "doubler_async")
    add(repository, "stream_async", config=SAME + DECOUPLED)
    add(repository, "bls")
    add(repository, "bls_async")
    add(repository, "meets", config=SAME + DECOUPLED + "instance_group { count: 4 }")
    add(repository, "streams_of", config=ONE + io({"how": STRING}, {"said": STRING}))
    (add(repository, "imports") / "beside.py").write_text("factor = 3\n", encoding="utf-8")
    (add(repository, "ready") / "state").write_text("yes", encoding="utf-8")
    bf16 = "data_type: TYPE_BF16 dims: [ -1 ] optional: true"
    add(repository, "dlpack", config=io({"x": FP32, "b": bf16}, {"y": FP32, "c": bf16[:-15]}))
    sizes = io({"x": FP32}, {"y": FP32})
    add(
        repository,
        "sizes",
        config="max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 20000 }" + sizes,
    )


@pytest.fixture(scope="session")
def every_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    repository = tmp_path_factory.mktemp("every_model")
    write_zoo(repository)
    return repository


@pytest.fixture(scope="module")
def zoo(every_model: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    repository = tmp_path_factory.mktemp("zoo")
    for name in request.module.ZOO:
        shutil.copytree(every_model / name, repository / name)
    return repository


@pytest.fixture(scope="module")
def live(zoo: Path) -> Iterator[Live]:
    with serving(zoo, model_control_mode="none") as running:
        yield running
