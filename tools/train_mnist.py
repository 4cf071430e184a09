"""Trains the mnist example on scikit-learn's digits and writes it into the package; run once, by hand.

    python tools/train_mnist.py [OUTPUT]

One run with a fixed seed and a fixed number of epochs; nothing is chosen by looking at the held-out
digits, whose accuracy is logged at the end and asserted by the tests. Needs torch and scikit-learn.
"""

import logging
import sys
from pathlib import Path

import numpy as np
import torch
from onnx import helper, numpy_helper
from sklearn.datasets import load_digits
from torch import nn

from tpx.examples.example import float_tensor, save_model
from tpx.examples.mnist import CLASSES, PIXELS, held_out

SEED = 1998
EPOCHS = 60
BATCH = 32
LEARNING_RATE = 2e-3
GREY_LEVELS = 16
PACKAGED = Path(__file__).resolve().parents[1] / "tpx" / "examples" / "mnist.onnx"

log = logging.getLogger("train_mnist")


def build() -> nn.Sequential:
    """Two convolutions, a pool, one linear layer: ten thousand parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.3),
        nn.Linear(32 * (PIXELS // 2) ** 2, CLASSES),
    )


def train(network: nn.Sequential, images: torch.Tensor, labels: torch.Tensor) -> None:
    """Adam with a learning rate that falls to zero along a half cosine."""
    optimizer = torch.optim.Adam(network.parameters(), lr=LEARNING_RATE)
    steps = EPOCHS * -(-len(images) // BATCH)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)
    network.train()
    for _ in range(EPOCHS):
        order = torch.randperm(len(images))
        for start in range(0, len(order), BATCH):
            chosen = order[start : start + BATCH]
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(network(images[chosen]), labels[chosen])
            torch.autograd.backward(loss)
            optimizer.step()
            schedule.step()
    network.eval()


def export(network: nn.Sequential, path: Path) -> None:
    """Write the network for grey values of 0 to 16, with a softmax at its end and no dropout."""
    state = {name: tensor.detach().numpy().copy() for name, tensor in network.state_dict().items()}
    state["0.weight"] /= GREY_LEVELS  # a power of two: the division loses nothing
    renamed = {"0": "conv1", "2": "conv2", "7": "fc"}
    initializers = []
    for name, values in state.items():
        layer, _, kind = name.partition(".")
        initializers.append(numpy_helper.from_array(values, f"{renamed[layer]}_{kind}"))
    pads = [1, 1, 1, 1]
    nodes = [
        helper.make_node("Conv", ["image", "conv1_weight", "conv1_bias"], ["conv1"], pads=pads),
        helper.make_node("Relu", ["conv1"], ["relu1"]),
        helper.make_node("Conv", ["relu1", "conv2_weight", "conv2_bias"], ["conv2"], pads=pads),
        helper.make_node("Relu", ["conv2"], ["relu2"]),
        helper.make_node("MaxPool", ["relu2"], ["pool"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Flatten", ["pool"], ["flat"], axis=1),
        helper.make_node("Gemm", ["flat", "fc_weight", "fc_bias"], ["fc"], transB=1),
        helper.make_node("Softmax", ["fc"], ["probabilities"], axis=1),
    ]
    save_model(
        path,
        "mnist",
        nodes,
        inputs=[float_tensor("image", "batch", 1, PIXELS, PIXELS)],
        outputs=[float_tensor("probabilities", "batch", CLASSES)],
        initializers=initializers,
    )


def main(path: Path) -> None:
    torch.manual_seed(SEED)
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    digits = load_digits()
    images = torch.from_numpy(digits.images.astype(np.float32)[:, None] / GREY_LEVELS)
    labels = torch.from_numpy(digits.target)
    unseen = torch.from_numpy(held_out(digits.target))
    network = build()
    train(network, images[~unseen], labels[~unseen])
    export(network, path)
    with torch.no_grad():
        right = network(images).argmax(1) == labels
    log.info("%d held-out digits, accuracy %.4f", int(unseen.sum()), right[unseen].double().mean())
    log.info("%d training digits, accuracy %.4f", int((~unseen).sum()), right[~unseen].double().mean())
    log.info("%s: %d bytes", path, path.stat().st_size)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else PACKAGED)
