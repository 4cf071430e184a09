"""Images, and an encoder of images for the example model, with random weights."""

import base64
import struct
import zlib
from pathlib import Path

import numpy as np
from gguf import GGUFWriter

SIDE, PATCH, WIDTH, TOKENS = 28, 14, 16, 4
"""Pixels of a side of what is encoded and of a patch, the width of the encoder, and what an image becomes."""
EMBEDDING = 128
"""Width of the example model."""
JPEG = base64.b64decode(
    "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAFA3PEY8MlBGQUZaVVBfeMiCeG5uePWvuZHI//////////////////////////////////"
    "//////////////////wAALCAAGAAgBAREA/8QAFAABAAAAAAAAAAAAAAAAAAAAA//EABQQAQAAAAAAAAAAAAAAAAAAAAD/2gAIAQEA"
    "AD8Ad//Z"
)
"""Eight by six grey pixels."""


def png(width: int, height: int, color: tuple[int, int, int] = (0, 0, 0)) -> bytes:
    """An image of one color."""
    rows = (b"\0" + bytes(color) * width) * height
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", head), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts
    )


def url(image: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(image).decode()}"


def write_encoder(path: Path) -> None:
    """A CLIP with a projection to the example model, as LLaVA has one."""
    random = np.random.default_rng(1)
    writer = GGUFWriter(path, "clip")
    writer.add_bool("clip.has_vision_encoder", True)
    writer.add_string("clip.projector_type", "mlp")
    writer.add_bool("clip.use_gelu", True)
    sizes = {
        "image_size": SIDE,
        "patch_size": PATCH,
        "embedding_length": WIDTH,
        "feed_forward_length": 2 * WIDTH,
        "projection_dim": EMBEDDING,
        "block_count": 2,
        "attention.head_count": 2,
    }
    for name, value in sizes.items():
        writer.add_uint32(f"clip.vision.{name}", value)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-5)
    for name in ("mean", "std"):
        writer.add_array(f"clip.vision.image_{name}", [0.5, 0.5, 0.5])
    shapes = {
        "v.class_embd": (WIDTH,),
        "v.patch_embd.weight": (WIDTH, 3, PATCH, PATCH),
        "v.position_embd.weight": (TOKENS + 1, WIDTH),
        **_linear("v.pre_ln", WIDTH),
        **_linear("v.post_ln", WIDTH),
        **_linear("mm.0", EMBEDDING, WIDTH),
        **_linear("mm.2", EMBEDDING, EMBEDDING),
    }
    for block in ("v.blk.0", "v.blk.1"):
        for name in ("attn_q", "attn_k", "attn_v", "attn_out"):
            shapes |= _linear(f"{block}.{name}", WIDTH, WIDTH)
        shapes |= _linear(f"{block}.ln1", WIDTH) | _linear(f"{block}.ln2", WIDTH)
        shapes |= _linear(f"{block}.ffn_up", 2 * WIDTH, WIDTH) | _linear(
            f"{block}.ffn_down", WIDTH, 2 * WIDTH
        )
    for name, shape in shapes.items():
        writer.add_tensor(name, random.normal(0, 0.5, shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _linear(name: str, *shape: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
