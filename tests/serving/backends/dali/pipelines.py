"""Pictures, DALI pipelines in model repositories, and what PIL makes of the same pictures."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

DECODE = """
import nvidia.dali as dali
from nvidia.dali import fn, types
from nvidia.dali.plugin.triton import autoserialize

@autoserialize
@dali.pipeline_def(batch_size=8, num_threads=2, device_id=None, output_dtype=[types.UINT8], output_ndim=[3])
def decode():
    encoded = fn.external_source(name="encoded", device="cpu", dtype=types.UINT8, ndim=1)
    return fn.decoders.image(encoded, device="cpu", output_type=types.RGB)
"""
RAGGED = """
import nvidia.dali as dali
from nvidia.dali import fn, types
from nvidia.dali.plugin.triton import autoserialize

@autoserialize
@dali.pipeline_def(batch_size=8, num_threads=1, device_id=None)
def double():
    x = fn.external_source(name="x", device="cpu", dtype=types.INT32)
    return x * 2, fn.cast(fn.shapes(x), dtype=types.INT64)
"""


def picture(width: int, height: int, seed: int = 0) -> npt.NDArray[np.uint8]:
    """Random pixels, [height, width, 3]."""
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def encoded(pixels: npt.NDArray[np.uint8], kind: str = "PNG") -> npt.NDArray[np.uint8]:
    """A picture as the bytes of a file."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return np.frombuffer(file.getvalue(), np.uint8)


def write_model(repository: Path, name: str, config: str, **files: str) -> Path:
    """A DALI model with these files in version 1; `dali_py` is dali.py. Returns the model's directory."""
    version = repository / name / "1"
    version.mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(f'backend: "dali" {config}', encoding="utf-8")
    for file, text in files.items():
        (version / file.replace("_py", ".py")).write_text(text, encoding="utf-8")
    return version.parent


def outcome(module: Any, port: int, model: str, **arrays: npt.NDArray[Any]) -> Any:
    """The answer to one request with these inputs."""
    datatypes = {np.dtype(np.uint8): "UINT8", np.dtype(np.int32): "INT32"}
    inputs = []
    for name, array in arrays.items():
        inputs.append(module.InferInput(name, array.shape, datatypes[array.dtype]))
        inputs[-1].set_data_from_numpy(array)
    with module.InferenceServerClient(f"127.0.0.1:{port}") as client:
        return client.infer(model, inputs)
