"""Parts of contents that llama.cpp is given: texts, calls of tools, and images if the model sees.

llama.cpp would pass over others, or hand what is no image to a decoder of videos. An image has its size in
pixels read here, because a file of some kilobytes may have any number of them.
"""

import base64
import binascii
from collections.abc import Sequence

from tpx.protocol.json_checks import FieldRefused
from tpx.protocol.json_values import JsonObject
from tpx.protocol.openai import OpenAiRequest
from tpx.serving.backends.language.tensors import MOST_PIXELS

_TEXTS = frozenset(
    {
        "input_text",
        "output_text",
        "reasoning_text",
        "redacted_thinking",
        "refusal",
        "summary_text",
        "text",
        "thinking",
        "tool_result",
        "tool_use",
    }
)
_IMAGES = frozenset({"image", "image_url", "input_image"})
_PNG, _JPEG = b"\x89PNG\r\n\x1a\n", b"\xff\xd8"
_SIZES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""Markers of JPEG's segments that begin a frame, with its size."""


def check_parts(request: OpenAiRequest, *, sees: bool) -> None:
    """Raise FieldRefused for a part that the model cannot use; `sees` is True if it takes images."""
    pixels = 0
    for name in ("messages", "input"):
        for index, item in enumerate(_objects_in(request.fields.get(name))):
            for member in ("content", "output"):
                pixels += _check_list(f"{name}[{index}].{member}", item.get(member), sees)
    pixels += _check_list("system", request.fields.get("system"), sees)
    if pixels > MOST_PIXELS:
        raise FieldRefused("messages" if "messages" in request.fields else "input", _too_large(pixels))


def _too_large(pixels: int) -> str:
    return f"the images have {pixels} pixels, more than {MOST_PIXELS}"


def _check_list(path: str, parts: object, sees: bool, *, inner: bool = False) -> int:
    """Check the parts of a list, and those in results of tools; return the pixels of its images."""
    pixels = 0
    for place, part in enumerate(_objects_in(parts)):
        where, kind = f"{path}[{place}]", str(part.get("type"))
        if kind in _IMAGES:
            if not sees:
                raise FieldRefused(f"{where}.type", "only text is supported: the model has no mmproj")
            pixels += _pixels_of(where, part)
        elif kind not in _TEXTS or (inner and kind == "tool_result"):
            raise FieldRefused(f"{where}.type", "only texts, images and calls of tools are supported")
        else:
            pixels += _check_list(f"{where}.content", part.get("content"), sees, inner=True)
    return pixels


def _objects_in(value: object) -> Sequence[JsonObject]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _pixels_of(path: str, part: JsonObject) -> int:
    """Return the pixels of an image. Raises FieldRefused."""
    try:
        content = base64.b64decode(_base64_of(part), validate=True)
    except (binascii.Error, ValueError, LookupError, TypeError, AttributeError):
        raise FieldRefused(path, "an image must be in base64, or a data: URL with base64") from None
    width, height = _size_of(content)
    if not width * height:
        raise FieldRefused(path, "only PNG and JPEG images are supported")
    return width * height


def _base64_of(part: JsonObject) -> str:
    """Return what llama.cpp decodes, and nothing that stands beside it. Raises LookupError, TypeError and
    AttributeError for anything else.
    """
    if part["type"] == "image":
        source = part["source"]
        if source["type"] != "base64" or "," in source["media_type"]:  # these two become a data: URL
            raise LookupError
        return str(source["data"])
    url = part["image_url"]["url"] if part["type"] == "image_url" else part["image_url"]
    return str(url.partition(",")[2])


def _size_of(content: bytes) -> tuple[int, int]:
    """Return the width and height of a PNG (its IHDR) or JPEG (its SOF segment), zeros for anything else."""
    if content.startswith(_PNG):
        return int.from_bytes(content[16:20]), int.from_bytes(content[20:24])
    at = 2
    while content.startswith(_JPEG) and content[at : at + 1] == b"\xff":
        marker, size = content[at + 1 : at + 2], int.from_bytes(content[at + 2 : at + 4])
        if marker and marker[0] in _SIZES:
            return int.from_bytes(content[at + 7 : at + 9]), int.from_bytes(content[at + 5 : at + 7])
        at += 1 if marker == b"\xff" else 2 + size  # any number of such bytes may precede a marker
    return 0, 0
