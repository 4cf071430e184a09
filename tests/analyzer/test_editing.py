"""Fields of a config.pbtxt changed in its text: what becomes new, and that all the rest stays as it was."""

import difflib
import json
from typing import Any

import pytest

from tpx.analyzer.application import edited
from tpx.analyzer.variants import merge
from tpx.protocol import model_config

BY_HAND = """\
# Owned by the vision team.
name:   "net"      # spelled by hand
platform: "onnxruntime_onnx"

max_batch_size: 8  # the card has 16 GiB
input [
  { name: "x", data_type: TYPE_FP32, dims: [ 3, 224, 224 ] }  # RGB
]
output { name: 'y' data_type: TYPE_FP32 dims: 1000 }
version_policy < latest { num_versions: 2 } >;

# Two were enough in May.
instance_group [
  {
    count: 2
    kind: KIND_CPU
  }
]
# end
"""
FOUR = [{"count": 4, "kind": "KIND_CPU"}]


def change(text: str, **delta: Any) -> str | None:
    """The text with the change; a field that is None goes."""
    present = model_config.parse(text, "before")
    said = {field.name for field, _ in present.ListFields()}
    own = {key: value for key, value in model_config.to_json(present).items() if key in said}
    return edited(text, present, model_config.from_json(json.dumps(merge(own, delta)), "wanted"))


def difference(text: str, becomes: str | None) -> list[str]:
    assert becomes is not None
    lines = difflib.ndiff(text.splitlines(), becomes.splitlines())
    return [line for line in lines if line[0] in "+-"]


def test_one_value_is_one_line_of_difference_and_its_comment_stays() -> None:
    assert difference(BY_HAND, change(BY_HAND, max_batch_size=16)) == [
        "- max_batch_size: 8  # the card has 16 GiB",
        "+ max_batch_size: 16  # the card has 16 GiB",
    ]


def test_the_fields_that_change_are_all_that_differs() -> None:
    becomes = change(BY_HAND, instance_group=FOUR, dynamic_batching={"preferred_batch_size": [4]})
    assert becomes is not None
    start, end = BY_HAND.index("instance_group"), BY_HAND.index("\n# end")
    assert becomes == (
        BY_HAND[:start]
        + "instance_group {\n  count: 4\n  kind: KIND_CPU\n}"
        + BY_HAND[end:]
        + "dynamic_batching {\n  preferred_batch_size: 4\n}\n"
    )


@pytest.mark.parametrize(
    ("spelled", "becomes"),
    [
        ("instance_group { count: 1 kind: KIND_CPU }", "instance_group { count: 4 kind: KIND_CPU }"),
        ("instance_group: { kind: KIND_CPU };", "instance_group { count: 4 kind: KIND_CPU };"),
        ("instance_group { }", "instance_group { count: 4 kind: KIND_CPU }"),
        ("instance_group < >", "instance_group { count: 4 kind: KIND_CPU }"),
        ("instance_group [ {count: 1}, {count: 2} ],", "instance_group { count: 4 kind: KIND_CPU },"),
        ("instance_group [\n  {\n  } # }\n]", "instance_group {\n  count: 4\n  kind: KIND_CPU\n}"),
        (
            "instance_group { count: 1 }\n# the second\ninstance_group { count: 2 } # ]\ninstance_group { }",
            "instance_group { count: 4 kind: KIND_CPU }\n# the second\n# ]",
        ),
    ],
)
def test_a_repeated_field_is_replaced_however_it_is_spelled(spelled: str, becomes: str) -> None:
    around = '# "}" {{\nbackend: "a" "{b"\n  {}\nmax_batch_size: 4 # [\n'
    before, after = (around.replace("  {}", each) for each in (spelled, becomes))
    assert change(before, instance_group=FOUR) == after


def test_several_elements_stand_on_a_line_each_with_the_indentation_there_was() -> None:
    becomes = change('  instance_group [ { } ]\nbackend: "x"', instance_group=[*FOUR, {"count": 1}])
    assert becomes == (
        '  instance_group { count: 4 kind: KIND_CPU }\n  instance_group { count: 1 }\nbackend: "x"'
    )


@pytest.mark.parametrize(
    ("text", "becomes"),
    [
        ("backend: 'x'\ndynamic_batching { }\n# end\n", "backend: 'x'\n# end\n"),
        ("backend: 'x'\n  dynamic_batching { }, # why\n", "backend: 'x'\n  # why\n"),
        ("dynamic_batching{}backend: 'x'", "backend: 'x'"),
        ("backend: 'x' dynamic_batching {\n}; max_batch_size: 4", "backend: 'x' max_batch_size: 4"),
        ("backend: 'x' dynamic_batching { }\r\n# end", "backend: 'x'\r\n# end"),
    ],
)
def test_a_field_that_is_no_longer_set_goes_and_leaves_no_gap(text: str, becomes: str) -> None:
    assert change(text, dynamic_batching=None) == becomes


def test_an_empty_batcher_gets_its_values_where_it_stands() -> None:
    text = "dynamic_batching { }  # on\nbackend: 'x'\n"
    becomes = change(text, dynamic_batching={"max_queue_delay_microseconds": 100})
    assert becomes == "dynamic_batching { max_queue_delay_microseconds: 100 }  # on\nbackend: 'x'\n"


@pytest.mark.parametrize("text", ["backend: 'x' # last", "backend: 'x'", "# nothing but this", ""])
def test_a_field_is_appended_on_a_line_of_its_own(text: str) -> None:
    becomes = change(text, dynamic_batching={})
    assert becomes == (text and text + "\n") + "dynamic_batching {\n}\n"


def test_a_last_line_that_does_not_end_stays_so() -> None:
    assert change("backend: 'x'\nmax_batch_size: 8", max_batch_size=4) == "backend: 'x'\nmax_batch_size: 4"


def test_lines_end_as_they_did() -> None:
    text = "backend: 'x'\r\n  instance_group {\r\n  }\r\n"
    becomes = change(text, instance_group=FOUR, dynamic_batching={})
    assert becomes == (
        "backend: 'x'\r\n  instance_group {\r\n    count: 4\r\n    kind: KIND_CPU\r\n  }\r\n"
        "dynamic_batching {\r\n}\r\n"
    )


def test_a_default_that_is_said_is_replaced_and_not_said_twice() -> None:
    assert (
        change("max_batch_size: 0\nbackend: 'x'\n", max_batch_size=4) == "max_batch_size: 4\nbackend: 'x'\n"
    )


def test_a_text_too_long_to_be_read_is_not_edited() -> None:
    assert change("max_batch_size: 8\n" + "#" * (1 << 20), max_batch_size=4) is None
