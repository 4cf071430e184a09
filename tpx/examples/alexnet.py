"""`alexnet`: the real architecture with random weights, for a realistic load without a download.

Layers, shapes and tensor names are those of the ONNX model zoo's bvlcalexnet-12 (one tower of
Krizhevsky's network, two groups in conv2, conv4 and conv5); Dropout, which does nothing at inference,
is omitted. The weights are stored beside the graph as ONNX external data: ONNX Runtime maps that file
instead of parsing and copying it, and opens the session in about a third of the time.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tpx.examples.example import Example, float_tensor, save_model

if TYPE_CHECKING:
    from onnx import NodeProto, TensorProto

SEED = 2012
PARAMETERS = 60_965_224
DATA_FILE = "model.onnx.data"
ALIGNMENT = 4096
"""Alignment in bytes; a tensor that starts on a page can be mapped."""
CHUNK = 1 << 20
"""Number of values drawn at a time, which limits memory use while writing (16 MB)."""

CONFIG = """\
# AlexNet with random weights: data_0 [1, 3, 224, 224] -> prob_1 [1, 1000], FP32.
# The batch of one is fixed in the graph, hence no batching here; all else is completed from 1/model.onnx.
max_batch_size: 0
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Convolution:
    """Convolution with ReLU, optionally followed by local response normalization and a pool."""

    number: int
    shape: tuple[int, int, int, int]
    """Shape of the weights: [outputs, inputs of one group, kernel, kernel]."""
    stride: int = 1
    pad: int = 0
    groups: int = 1
    normalized: bool = False
    pool_pads: tuple[int, int, int, int] | None = None
    """Pads of the 3x3 pool with stride 2, or None if there is no pool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One weight or bias: values uniform in [-bound, bound]."""

    name: str
    shape: tuple[int, ...]
    bound: float

    @property
    def count(self) -> int:
        return math.prod(self.shape)


NO_PADS = (0, 0, 0, 0)
CONVOLUTIONS = (
    Convolution(number=1, shape=(96, 3, 11, 11), stride=4, normalized=True, pool_pads=NO_PADS),
    Convolution(number=2, shape=(256, 48, 5, 5), pad=2, groups=2, normalized=True, pool_pads=NO_PADS),
    Convolution(number=3, shape=(384, 256, 3, 3), pad=1),
    Convolution(number=4, shape=(384, 192, 3, 3), pad=1, groups=2),
    Convolution(number=5, shape=(256, 192, 3, 3), pad=1, groups=2, pool_pads=(0, 0, 1, 1)),
)
FULLY_CONNECTED = {"fc6": (4096, 9216), "fc7": (4096, 4096), "fc8": (1000, 4096)}
BIAS_BOUND = 0.1
"""Nonzero, so that an image of zeros does not result in uniform probabilities."""
FC8_GAIN = 0.03
"""Keeps the softmax from collapsing to one class for pixels up to 255, and from being flat up to 1."""


def parameters() -> list[Parameter]:
    """Return all weights and biases in the order of drawing and of the file.

    Weights are bounded by sqrt(6 / fan-in) (He et al. 2015, for ReLU), which preserves the scale of
    activations across layers.
    """
    shapes: dict[str, tuple[int, ...]] = {f"conv{conv.number}": conv.shape for conv in CONVOLUTIONS}
    shapes |= FULLY_CONNECTED
    drawn = []
    for layer, shape in shapes.items():
        bound = math.sqrt(6 / math.prod(shape[1:])) * (FC8_GAIN if layer == "fc8" else 1)
        drawn.append(Parameter(name=f"{layer}_w_0", shape=shape, bound=bound))
        drawn.append(Parameter(name=f"{layer}_b_0", shape=shape[:1], bound=BIAS_BOUND))
    return drawn


def uniform_chunks(
    bits: np.random.BitGenerator, count: int, bound: float
) -> Iterator[npt.NDArray[np.float32]]:
    """Yield `count` values uniform in [-bound, bound], at most CHUNK at a time.

    Derived from raw bits, which numpy keeps stable across versions, unlike Generator's methods: the
    same seed gives the same file everywhere.
    """
    for start in range(0, count, CHUNK):
        size = min(CHUNK, count - start)
        words = bits.random_raw((size + 1) // 2).astype("<u8", copy=False).view("<i4")[:size]
        values = words.astype(np.float32)
        values *= np.float32(bound / 2**31)
        yield values


def _write_data(path: Path, drawn: Sequence[Parameter]) -> list["TensorProto"]:
    """Draw all values into the data file. Returns the initializers that refer to it."""
    from onnx import TensorProto

    bits = np.random.PCG64(SEED)
    tensors = []
    with path.open("wb") as file:
        for parameter in drawn:
            offset = -(-file.tell() // ALIGNMENT) * ALIGNMENT
            file.seek(offset)
            for values in uniform_chunks(bits, parameter.count, parameter.bound):
                file.write(values.data)
            tensor = TensorProto(name=parameter.name, dims=parameter.shape, data_type=TensorProto.FLOAT)
            tensor.data_location = TensorProto.EXTERNAL
            place = {"location": path.name, "offset": offset, "length": 4 * parameter.count}
            for key, value in place.items():
                tensor.external_data.add(key=key, value=str(value))
            tensors.append(tensor)
    return tensors


def _make_convolution(conv: Convolution, source: str) -> list["NodeProto"]:
    """Return the nodes of one convolutional layer; the last node's output feeds the next layer."""
    from onnx import helper

    number, kernel = conv.number, conv.shape[2]
    layer = f"conv{number}"
    nodes = [
        helper.make_node(
            "Conv",
            [source, f"{layer}_w_0", f"{layer}_b_0"],
            [f"{layer}_1"],
            kernel_shape=[kernel, kernel],
            strides=[conv.stride, conv.stride],
            pads=[conv.pad] * 4,
            group=conv.groups,
        ),
        helper.make_node("Relu", [f"{layer}_1"], [f"{layer}_2"]),
    ]
    if conv.normalized:
        nodes.append(
            helper.make_node(
                "LRN", [nodes[-1].output[0]], [f"norm{number}_1"], size=5, alpha=1e-4, beta=0.75, bias=1.0
            )
        )
    if conv.pool_pads is not None:
        nodes.append(
            helper.make_node(
                "MaxPool",
                [nodes[-1].output[0]],
                [f"pool{number}_1"],
                kernel_shape=[3, 3],
                strides=[2, 2],
                pads=list(conv.pool_pads),
            )
        )
    return nodes


def _make_nodes() -> list["NodeProto"]:
    from onnx import helper

    nodes: list[NodeProto] = []
    source = "data_0"
    for conv in CONVOLUTIONS:
        nodes += _make_convolution(conv, source)
        source = nodes[-1].output[0]
    nodes.append(helper.make_node("Flatten", [source], ["flat_1"], axis=1))
    for layer in FULLY_CONNECTED:
        source = nodes[-1].output[0]
        weights = [f"{layer}_w_0", f"{layer}_b_0"]
        nodes.append(helper.make_node("Gemm", [source, *weights], [f"{layer}_1"], transB=1))
        if layer != "fc8":
            nodes.append(helper.make_node("Relu", [f"{layer}_1"], [f"{layer}_2"]))
    nodes.append(helper.make_node("Softmax", ["fc8_1"], ["prob_1"], axis=1))
    return nodes


def _write_alexnet(directory: Path) -> None:
    save_model(
        directory,
        "alexnet",
        _make_nodes(),
        inputs=[float_tensor("data_0", 1, 3, 224, 224)],
        outputs=[float_tensor("prob_1", 1, 1000)],
        initializers=_write_data(directory / "1" / DATA_FILE, parameters()),
    )


ALEXNET = Example(
    name="alexnet",
    description="AlexNet with random weights: classifies a 224x224 image into 1000 classes",
    config=CONFIG,
    size_bytes=4 * PARAMETERS + 128 * 1024,
    needs_onnx=True,
    write_files=_write_alexnet,
)
