"""An engine built here and served, on a machine that has TensorRT and a GPU."""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.serving.live import Live, serving
from tpx.serving.backends.tensorrt.backend import TensorRtBackend

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(
        find_spec("tensorrt") is None or not TensorRtBackend().gpus(), reason="needs tensorrt and a GPU"
    ),
]


def build(path: Path) -> None:
    """y = x + x, for batches of up to 8 rows of 2 to 16 values; two profiles."""
    import tensorrt as trt

    builder = trt.Builder(trt.Logger(trt.Logger.WARNING))
    network = builder.create_network(0)
    x = network.add_input("x", trt.DataType.FLOAT, (-1, -1))
    y = network.add_elementwise(x, x, trt.ElementWiseOperation.SUM).get_output(0)
    y.name = "y"
    network.mark_output(y)
    config = builder.create_builder_config()
    for most in (4, 8):
        profile = builder.create_optimization_profile()
        profile.set_shape("x", (1, 2), (most, 8), (most, 16))
        config.add_optimization_profile(profile)
    path.parent.mkdir(parents=True)
    path.write_bytes(bytes(builder.build_serialized_network(network, config)))


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    repository = tmp_path_factory.mktemp("engines")
    build(repository / "double" / "1" / "model.plan")
    build(repository / "both" / "1" / "model.plan")
    (repository / "both" / "config.pbtxt").write_text(
        "instance_group [{ kind: KIND_GPU count: 2 profile: [ '0', '1' ] }]", encoding="utf-8"
    )
    with serving(repository) as server:
        yield server


@pytest.mark.parametrize(("model", "rows"), [("double", 4), ("both", 8)])
def test_an_engine_computes_what_it_was_built_for(live: Live, model: str, rows: int) -> None:
    assert live.get(f"/v2/models/{model}/config").json["max_batch_size"] == rows
    for shape in ((1, 2), (3, 7), (rows, 16)):
        given = np.random.default_rng(0).normal(size=shape).astype(np.float32)
        with live.channel() as channel:
            answer = channel.infer(model, {"x": given})
        computed: Any = np.frombuffer(answer.raw_output_contents[0], np.float32).reshape(shape)
        assert np.allclose(computed, given * 2)


def test_a_shape_outside_of_the_profile_is_the_clients_fault(live: Live) -> None:
    answer = live.infer_binary("double", {"x": np.zeros((1, 17), np.float32)})
    assert answer.status == 400
    assert "dimension 1 to be between 2 and 16 but received 17" in answer.error
