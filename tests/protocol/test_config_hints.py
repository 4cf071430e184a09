"""What was meant by a wrong word in a configuration."""

import pytest

from tpx.errors import ConfigError
from tpx.protocol import model_config

WORDS = {
    "BOOL": ("BOOL", "TYPE_BOOLEAN", "boolean"),
    "INT8": ("TYPE_CHAR", "int8_t"),
    "INT16": ("TYPE_SHORT",),
    "INT32": ("TYPE_INT", "INT32", "int", "kINT32", "DT_INT32"),
    "INT64": ("TYPE_LONG", "TYPE_INT_64", "int64"),
    "UINT8": ("TYPE_BYTE", "uint8"),
    "FP16": ("TYPE_HALF", "TYPE_FLOAT16", "kHALF"),
    "BF16": ("TYPE_BFLOAT16", "bfloat16"),
    "FP32": ("TYPE_FLOAT", "TYPE_FLOAT32", "FP32", "float32", "DT_FLOAT", "kFLOAT", "TYPE_FP23"),
    "FP64": ("TYPE_DOUBLE", "float64"),
    "STRING": ("TYPE_BYTES", "BYTES", "str", "object", "DT_STRING"),
}


@pytest.mark.parametrize(
    ("word", "meant"), [(word, f"TYPE_{meant}") for meant, words in WORDS.items() for word in words]
)
def test_a_datatype_is_known_by_its_names_elsewhere(word: str, meant: str) -> None:
    assert complaint(f"input {{ data_type: {word} }}").count(f"(did you mean '{meant}'?)") == 1


@pytest.mark.parametrize("word", ["TYPE_COMPLEX64", "TYPE_BOGUS", "TYPE_X", "image"])
def test_nothing_is_suggested_for_a_word_that_is_far_from_all(word: str) -> None:
    assert "did you mean" not in complaint(f"input {{ data_type: {word} }}")


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("instance_group { kind: GPU }", "KIND_GPU"),
        ("instance_group { kind: cpu }", "KIND_CPU"),
        ("input { format: NCHW }", "FORMAT_NCHW"),
        ("input { shape: 4 }", "dims"),
        ("output { dtype: TYPE_FP32 }", "data_type"),
        ("batch_size: 4", "max_batch_size"),
        ("instances: 4", "instance_group"),
    ],
)
def test_other_words_have_hints_too(text: str, meant: str) -> None:
    assert f"(did you mean '{meant}'?)" in complaint(text)


def complaint(text: str) -> str:
    """Why a text is refused."""
    with pytest.raises(ConfigError) as caught:
        model_config.parse(text, "config.pbtxt")
    return caught.value.message
