"""Positions of fields in the text of a configuration."""

import pytest

from tpx.protocol import model_config
from tpx.protocol.config_text import all_parts, field_at, position_of, read_parts


def test_parts_of_a_text_have_paths_and_places() -> None:
    text = (
        "# a comment with { braces\nname: 'a}b'\n"
        "input [ { name: \"x\" dims: [ 1, 2 ] },\n{ name: 'y' } ]; backend: 'o'"
    )
    parts = [(part.path, part.line) for part in all_parts(read_parts(text))]
    assert parts == [
        ("name", 2),
        ("input[0]", 3),
        ("input[0].name", 3),
        ("input[0].dims", 3),
        ("input[0].dims", 3),
        ("input[1]", 4),
        ("input[1].name", 4),
        ("backend", 4),
    ]
    assert field_at(text, 3, 23) == "input[0].dims"


@pytest.mark.parametrize(
    "text", ["", "{", "}}}", "[[[", "a: [", "a { b", "'", "a" * 5000, "a {" * 3000, "\0"]
)
def test_what_is_no_configuration_does_no_harm(text: str) -> None:
    read_parts(text)
    assert position_of(text, "input[0].dims") is None


@pytest.mark.parametrize(
    ("field", "found"),
    [
        ("input[0].dims", (2, "input[0].dims")),
        ("input[1].dims", (3, "input[1]")),
        ("input[2].dims", None),
        ("output[0]", None),
        ("parameters[b].string_value", (5, "parameters[b].string_value")),
        ("parameters[c]", None),
        (
            "dynamic_batching.priority_queue_policy[2].max_queue_size",
            (6, "dynamic_batching.priority_queue_policy[2]"),
        ),
        ("instance_group", (7, "instance_group")),
        ("", None),
    ],
)
def test_a_position_is_that_of_the_field_or_of_the_nearest_one_around_it(
    field: str, found: tuple[int, str] | None
) -> None:
    text = """input [
      { name: 'x' dims: [ 1, 2 ] },
      { name: 'y' } ]
    parameters { key: 'a' value { string_value: '1' } } parameters [ { key: 'b'
      value { string_value: '2' } } ]
    dynamic_batching { priority_queue_policy { key: 2 value { } } }
    instance_group { } instance_group { }"""
    assert position_of(text, field) == found


def test_a_long_text_is_left_to_the_parser() -> None:
    assert read_parts("a: 1 " * (1 << 18)) == []


def test_one_key_in_two_maps_is_none_given_twice() -> None:
    maps = "input_map { key: 'x' value: 'x' } output_map { key: 'x' value: 'y' }"
    text = f"ensemble_scheduling {{ step {{ model_name: 'a' {maps} }} step {{ model_name: 'b' {maps} }} }}"
    model_config.parse(text + " metric_tags { key: 'a' 'b' value: 'x' } metric_tags { key: 'a' }", "test")
