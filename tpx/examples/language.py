"""A language model of 2.4 MB, trained by `tools/train_language_model.py` from text in the public domain."""

import shutil
from pathlib import Path

from tpx.examples.example import Example

_CONFIG = """\
# A small Llama that continues what it is given in the style of the King James Version, and can call tools.
# Tensors are completed: those of Triton's vLLM backend, and requests of OpenAI's API.
name: "tiny"
backend: "llamacpp"
parameters { key: "n_parallel" value { string_value: "8" } }
"""


def _write_gguf(directory: Path) -> None:
    shutil.copyfile(Path(__file__).with_name("tiny.gguf"), directory / "1" / "model.gguf")


TINY = Example(
    name="tiny",
    description="a language model that continues a text in old English; over OpenAI's API too",
    config=_CONFIG,
    size_bytes=2_500_000,
    needs="xllamacpp",
    write_files=_write_gguf,
)
