"""`image_ensemble`: the ensemble of the usual tutorial. An image is preprocessed, then classified and
segmented.

`photo_ensemble` decodes an encoded photo with a DALI pipeline in place of the first model. The models
compute simple functions, so that results can be checked by eye: the color of an image, and of each pixel.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tpx.examples.example import Example, float_tensor, save_model, text_file

if TYPE_CHECKING:
    import numpy.typing as npt
    from onnx import NodeProto

SIDE = 64
"""Width and height to which images are resized."""
COLOURS: dict[str, tuple[float, float, float]] = {
    "black": (0, 0, 0),
    "white": (1, 1, 1),
    "red": (1, 0, 0),
    "green": (0, 1, 0),
    "blue": (0, 0, 1),
    "yellow": (1, 1, 0),
    "cyan": (0, 1, 1),
    "magenta": (1, 0, 1),
}
_SHARPNESS = 4.0
_SIZE_BYTES = 24 * 1024

_PREPARE_CONFIG = f"""\
# A picture of any size, as its bytes are in memory (height, width, red-green-blue), becomes {SIDE}x{SIDE}
# floats from 0 to 1, colour by colour. A request may have several pictures of the same size.
name: "image_preprocess"
backend: "onnxruntime"
max_batch_size: 8
input [ {{ name: "raw" data_type: TYPE_UINT8 dims: [ -1, -1, 3 ] }} ]
output [ {{ name: "pixels" data_type: TYPE_FP32 dims: [ 3, {SIDE}, {SIDE} ] }} ]
parameters {{ key: "shapes" value {{ string_value: "raw:240,320,3" }} }} # what load generators send
"""
_CLASSIFY_CONFIG = f"""\
# How much a picture is of each colour; the labels are what a classification request is answered with.
name: "image_classification"
backend: "onnxruntime"
max_batch_size: 8
input [ {{ name: "pixels" data_type: TYPE_FP32 dims: [ 3, {SIDE}, {SIDE} ] }} ]
output [
  {{ name: "scores" data_type: TYPE_FP32 dims: [ {len(COLOURS)} ] label_filename: "labels.txt" }}
]
dynamic_batching {{ }}
"""
_SEGMENT_CONFIG = f"""\
# For each pixel the number of its colour: its line in the labels of image_classification, from 0.
name: "image_segmentation"
backend: "onnxruntime"
max_batch_size: 8
input [ {{ name: "pixels" data_type: TYPE_FP32 dims: [ 3, {SIDE}, {SIDE} ] }} ]
output [ {{ name: "classes" data_type: TYPE_INT64 dims: [ {SIDE}, {SIDE} ] }} ]
dynamic_batching {{ }}
"""
_DECODE_CONFIG = f"""\
# An encoded photo of any size, JPEG or PNG, becomes {SIDE}x{SIDE} floats from 0 to 1, colour by colour. The
# pipeline is in 1/dali.py. Photos of several requests, of any sizes, are decoded together.
name: "photo_decode"
backend: "dali"
max_batch_size: 32
input [ {{ name: "encoded" data_type: TYPE_UINT8 dims: [ -1 ] allow_ragged_batch: true }} ]
output [ {{ name: "pixels" data_type: TYPE_FP32 dims: [ 3, {SIDE}, {SIDE} ] }} ]
instance_group [ {{ kind: KIND_CPU }} ]
dynamic_batching {{ }}
"""
_DECODE = f'''\
"""Decode, resize and normalise; `instance_group` KIND_GPU and device="mixed" do it on a GPU."""

import nvidia.dali as dali
from nvidia.dali import fn, types
from nvidia.dali.plugin.triton import autoserialize


@autoserialize
@dali.pipeline_def(batch_size=32, num_threads=2, device_id=None)
def decode():
    encoded = fn.external_source(name="encoded", device="cpu", dtype=types.UINT8, ndim=1)
    image = fn.decoders.image(encoded, device="cpu", output_type=types.RGB)
    image = fn.resize(image, resize_x={SIDE}, resize_y={SIDE})
    return fn.crop_mirror_normalize(
        image, dtype=types.FLOAT, output_layout="CHW", mean=[0.0] * 3, std=[255.0] * 3
    )
'''


def _format_ensemble(comment: str, name: str, image: str, first_step: str, pixels: str) -> str:
    """Return the configuration of an ensemble whose `first_step` makes `pixels` of the input `image`."""
    return f"""\
{comment}
name: "{name}"
platform: "ensemble"
max_batch_size: 8
input [ {{ {image} }} ]
output [
  {{ name: "colour" data_type: TYPE_FP32 dims: [ {len(COLOURS)} ] }},
  {{ name: "mask" data_type: TYPE_INT64 dims: [ {SIDE}, {SIDE} ] }}
]
ensemble_scheduling {{
  step [
    {{
      {first_step}
      output_map {{ key: "pixels" value: "{pixels}" }}
    }},
    {{
      model_name: "image_classification"
      model_version: -1
      input_map {{ key: "pixels" value: "{pixels}" }}
      output_map {{ key: "scores" value: "colour" }}
    }},
    {{
      model_name: "image_segmentation"
      model_version: -1
      input_map {{ key: "pixels" value: "{pixels}" }}
      output_map {{ key: "classes" value: "mask" }}
    }}
  ]
}}
"""


_IMAGE_ENSEMBLE = """\
# One request: the picture is prepared, then both other models get it at the same time, and what they say is
# one answer. In a map, the key is the model's tensor and the value the ensemble's. A client that asks for one
# of the outputs makes only the model compute that it needs."""
_PHOTO_ENSEMBLE = (
    "# One request: an encoded photo is decoded by DALI, then both ONNX models get it at the same time."
)


def _make_color_weights() -> "tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]":
    """Return weights [colors, 3] and biases [colors]: the nearer a color, the larger 2 c x - |c|^2."""
    colours = np.array(list(COLOURS.values()), dtype=np.float32)
    return 2 * colours, -(colours**2).sum(axis=1)


def _write_preprocess(directory: Path) -> None:
    from onnx import TensorProto, helper, numpy_helper

    def constant(name: str, values: list[int]) -> "NodeProto":
        return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(np.array(values)))

    nodes = [
        helper.make_node("Cast", ["raw"], ["wide"], to=TensorProto.FLOAT),
        helper.make_node("Transpose", ["wide"], ["planes"], perm=[0, 3, 1, 2]),
        helper.make_node("Shape", ["planes"], ["count"], start=0, end=1),
        constant("side", [3, SIDE, SIDE]),
        helper.make_node("Concat", ["count", "side"], ["sizes"], axis=0),
        helper.make_node("Resize", ["planes", "", "", "sizes"], ["resized"], mode="linear"),
        helper.make_node("Mul", ["resized", "scale"], ["pixels"]),
    ]
    save_model(
        directory,
        "image_preprocess",
        nodes,
        inputs=[helper.make_tensor_value_info("raw", TensorProto.UINT8, ["batch", "height", "width", 3])],
        outputs=[float_tensor("pixels", "batch", 3, SIDE, SIDE)],
        initializers=[numpy_helper.from_array(np.array(1 / 255, dtype=np.float32), "scale")],
    )


def _write_classification(directory: Path) -> None:
    from onnx import helper, numpy_helper

    weights, biases = _make_color_weights()
    save_model(
        directory,
        "image_classification",
        [
            helper.make_node("GlobalAveragePool", ["pixels"], ["mean"]),
            helper.make_node("Flatten", ["mean"], ["colour"], axis=1),
            helper.make_node(
                "Gemm", ["colour", "weights", "biases"], ["nearness"], transB=1, alpha=_SHARPNESS
            ),
            helper.make_node("Softmax", ["nearness"], ["scores"], axis=1),
        ],
        inputs=[float_tensor("pixels", "batch", 3, SIDE, SIDE)],
        outputs=[float_tensor("scores", "batch", len(COLOURS))],
        initializers=[
            numpy_helper.from_array(weights, "weights"),
            numpy_helper.from_array(_SHARPNESS * biases, "biases"),
        ],
    )
    (directory / "labels.txt").write_text("".join(f"{name}\n" for name in COLOURS), encoding="utf-8")


def _write_segmentation(directory: Path) -> None:
    from onnx import TensorProto, helper, numpy_helper

    weights, biases = _make_color_weights()
    save_model(
        directory,
        "image_segmentation",
        [
            helper.make_node("Conv", ["pixels", "weights", "biases"], ["nearness"]),
            helper.make_node("ArgMax", ["nearness"], ["classes"], axis=1, keepdims=0),
        ],
        inputs=[float_tensor("pixels", "batch", 3, SIDE, SIDE)],
        outputs=[helper.make_tensor_value_info("classes", TensorProto.INT64, ["batch", SIDE, SIDE])],
        initializers=[
            numpy_helper.from_array(weights[:, :, None, None], "weights"),
            numpy_helper.from_array(biases, "biases"),
        ],
    )


# git would not keep an empty version directory
_write_nothing = text_file("1/README", "An ensemble needs a version directory and no model file.\n")

IMAGE = (
    Example(
        name="image_preprocess",
        description="resizes an image of any size to 64x64; the first step of image_ensemble",
        config=_PREPARE_CONFIG,
        size_bytes=_SIZE_BYTES,
        needs_onnx=True,
        write_files=_write_preprocess,
    ),
    Example(
        name="image_classification",
        description="classifies an image by its color; a step of image_ensemble",
        config=_CLASSIFY_CONFIG,
        size_bytes=_SIZE_BYTES,
        needs_onnx=True,
        write_files=_write_classification,
    ),
    Example(
        name="image_segmentation",
        description="classifies each pixel by its color; a step of image_ensemble",
        config=_SEGMENT_CONFIG,
        size_bytes=_SIZE_BYTES,
        needs_onnx=True,
        write_files=_write_segmentation,
    ),
    Example(
        name="image_ensemble",
        description="image in, color and mask out: an ensemble of the three models above",
        config=_format_ensemble(
            _IMAGE_ENSEMBLE,
            "image_ensemble",
            'name: "image" data_type: TYPE_UINT8 dims: [ -1, -1, 3 ]',
            'model_name: "image_preprocess" model_version: -1 input_map { key: "raw" value: "image" }',
            "prepared",
        )
        + 'parameters { key: "shapes" value { string_value: "image:240,320,3" } }\n',  # for load generators
        size_bytes=_SIZE_BYTES,
        calls=("image_preprocess", "image_classification", "image_segmentation"),
        write_files=_write_nothing,
    ),
)
PHOTO = (
    Example(
        name="photo_decode",
        description="decodes JPEG and PNG with DALI; the first step of photo_ensemble",
        config=_DECODE_CONFIG,
        size_bytes=8 * 1024,
        needs="nvidia.dali",
        write_files=text_file("1/dali.py", _DECODE),
    ),
    Example(
        name="photo_ensemble",
        description="JPEG or PNG in, color and mask out: DALI, then two ONNX models",
        config=_format_ensemble(
            _PHOTO_ENSEMBLE,
            "photo_ensemble",
            'name: "photo" data_type: TYPE_UINT8 dims: [ -1 ]',
            'model_name: "photo_decode" model_version: -1 input_map { key: "encoded" value: "photo" }',
            "decoded",
        ),
        size_bytes=8 * 1024,
        needs="nvidia.dali",
        calls=("photo_decode", "image_classification", "image_segmentation"),
        write_files=_write_nothing,
    ),
)
