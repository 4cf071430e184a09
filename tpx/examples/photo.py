"""`photo_ensemble`: encoded photos, decoded by a DALI pipeline, then classified and segmented.

The usual ensemble in front of a vision model, with the models of `image_ensemble` behind the decoder.
"""

from pathlib import Path

from tpx.examples.example import Example
from tpx.examples.image import COLOURS, SIDE

_SIZE_BYTES = 8 * 1024

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
_ENSEMBLE_CONFIG = f"""\
# One request: an encoded photo is decoded by DALI, then both ONNX models get it at the same time.
name: "photo_ensemble"
platform: "ensemble"
max_batch_size: 8
input [ {{ name: "photo" data_type: TYPE_UINT8 dims: [ -1 ] }} ]
output [
  {{ name: "colour" data_type: TYPE_FP32 dims: [ {len(COLOURS)} ] }},
  {{ name: "mask" data_type: TYPE_INT64 dims: [ {SIDE}, {SIDE} ] }}
]
ensemble_scheduling {{
  step [
    {{
      model_name: "photo_decode"
      model_version: -1
      input_map {{ key: "encoded" value: "photo" }}
      output_map {{ key: "pixels" value: "decoded" }}
    }},
    {{
      model_name: "image_classification"
      model_version: -1
      input_map {{ key: "pixels" value: "decoded" }}
      output_map {{ key: "scores" value: "colour" }}
    }},
    {{
      model_name: "image_segmentation"
      model_version: -1
      input_map {{ key: "pixels" value: "decoded" }}
      output_map {{ key: "classes" value: "mask" }}
    }}
  ]
}}
"""


def _write_pipeline(directory: Path) -> None:
    (directory / "1" / "dali.py").write_text(_DECODE, encoding="utf-8")


def _write_nothing(directory: Path) -> None:
    (directory / "1" / "README").write_text("An ensemble needs a version directory and no model file.\n")


PHOTO = (
    Example(
        name="photo_decode",
        description="decodes JPEG and PNG with DALI; the first step of photo_ensemble",
        config=_DECODE_CONFIG,
        size_bytes=_SIZE_BYTES,
        needs_onnx=False,
        needs="nvidia.dali",
        write_files=_write_pipeline,
    ),
    Example(
        name="photo_ensemble",
        description="a JPEG or PNG in, its colour and a mask out: DALI, then two ONNX models",
        config=_ENSEMBLE_CONFIG,
        size_bytes=_SIZE_BYTES,
        needs_onnx=False,
        needs="nvidia.dali",
        calls=("photo_decode", "image_classification", "image_segmentation"),
        write_files=_write_nothing,
    ),
)
