"""`model_config_parameters`: what a list means, how much is combined, and where a fault is."""

from typing import Any

import pytest

from tpx.analyzer.config_sweep import BadField, ConfigSweep, read_sweep


def deltas(value: dict[str, Any]) -> list[dict[str, Any]]:
    return list(read_sweep(value).deltas())


def test_a_list_of_values_of_a_scalar_field_is_a_sweep() -> None:
    assert deltas({"max_batch_size": [4, 8]}) == [{"max_batch_size": 4}, {"max_batch_size": 8}]


def test_a_list_of_a_repeated_field_is_one_value_and_a_list_of_lists_a_sweep() -> None:
    one = deltas({"dynamic_batching": {"preferred_batch_size": [4, 8]}})
    two = deltas({"dynamic_batching": {"preferred_batch_size": [[4, 8], [2]]}})
    assert one == [{"dynamic_batching": {"preferred_batch_size": [4, 8]}}]
    assert [delta["dynamic_batching"]["preferred_batch_size"] for delta in two] == [[4, 8], [2]]


def test_the_leaves_of_the_documented_example_are_combined_with_the_batch_size_innermost() -> None:
    sweep = read_sweep(
        {
            "max_batch_size": [4, 8],
            "dynamic_batching": {
                "max_queue_delay_microseconds": [100, 200],
                "preferred_batch_size": [[4, 8], [2, 4]],
            },
            "instance_group": [{"kind": ["KIND_GPU"], "count": [1, 2]}],
        }
    )
    found = list(sweep.deltas())
    assert sweep.combinations == len(found) == 16
    assert [delta["max_batch_size"] for delta in found[:4]] == [4, 8, 4, 8]
    assert found[0]["instance_group"] == [{"kind": "KIND_GPU", "count": 1}]
    assert found[2]["instance_group"] == [{"kind": "KIND_GPU", "count": 2}]
    assert [axis.label for axis in sweep.axes] == [
        "max_batch_size",
        "dynamic_batching.max_queue_delay_microseconds",
        "dynamic_batching.preferred_batch_size",
        "instance_group[0].kind",
        "instance_group[0].count",
    ]


def test_several_instance_groups_are_several_messages_of_one_value() -> None:
    found = deltas(
        {"instance_group": [{"kind": "KIND_GPU", "count": [1, 2]}, {"kind": "KIND_CPU", "count": 3}]}
    )
    assert found == [
        {"instance_group": [{"kind": "KIND_GPU", "count": n}, {"kind": "KIND_CPU", "count": 3}]}
        for n in (1, 2)
    ]


def test_a_message_without_a_value_is_the_empty_message() -> None:
    assert deltas({"dynamic_batching": None}) == [{"dynamic_batching": {}}]
    delayed = {"max_queue_delay_microseconds": [100, 200]}
    assert deltas({"dynamic_batching": [None, delayed]}) == [
        {"dynamic_batching": {}},
        {"dynamic_batching": {"max_queue_delay_microseconds": 100}},
        {"dynamic_batching": {"max_queue_delay_microseconds": 200}},
    ]
    assert deltas({"optimization": {"cuda": None}, "parameters": None}) == [
        {"optimization": {"cuda": {}}, "parameters": {}}
    ]
    with pytest.raises(BadField, match="max_batch_size: expected a single value, got nothing"):
        deltas({"max_batch_size": None})


def test_alternatives_of_a_message_are_expanded_one_after_the_other() -> None:
    found = deltas(
        {
            "instance_group": [[{"kind": "KIND_GPU", "count": [1, 2]}], [{"kind": "KIND_CPU", "count": 1}]],
            "dynamic_batching": [{}, {"max_queue_delay_microseconds": 100}],
        }
    )
    assert len(found) == 6
    assert found[-1] == {
        "instance_group": [{"kind": "KIND_CPU", "count": 1}],
        "dynamic_batching": {"max_queue_delay_microseconds": 100},
    }


def test_a_sweep_can_be_said_in_so_many_words() -> None:
    assert deltas({"dynamic_batching": {"preferred_batch_size": {"sweep": [[4], [8]]}}}) == deltas(
        {"dynamic_batching": {"preferred_batch_size": [[4], [8]]}}
    )
    assert deltas({"max_batch_size": {"sweep": [1, 2]}}) == deltas({"max_batch_size": [1, 2]})
    assert deltas({"max_batch_size": {"start": 2, "stop": 6, "step": 2}}) == deltas(
        {"max_batch_size": [2, 4, 6]}
    )


def test_parameters_of_a_backend_vary_and_may_be_bare_texts() -> None:
    long = {
        "parameters": {"intra_op_thread_count": {"string_value": ["1", "2"]}, "mode": {"string_value": "x"}}
    }
    short = {"parameters": {"intra_op_thread_count": [1, 2], "mode": "x"}}
    assert deltas(long) == deltas(short)
    assert [d["parameters"]["intra_op_thread_count"] for d in deltas(short)] == [
        {"string_value": "1"},
        {"string_value": "2"},
    ]


def test_nothing_to_vary_is_one_configuration_that_changes_nothing() -> None:
    assert deltas({}) == [{}]
    assert not ConfigSweep()
    assert read_sweep({"dynamic_batching": {}}).axes[0].values == ({},)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"max_batchsize": 4}, r"^max_batchsize: .*did you mean 'max_batch_size'"),
        ({"instance_group": [{"cuont": 1}]}, r"^instance_group\[0\]\.cuont: .*did you mean 'count'"),
        ({"instance_group": {"count": 1}}, "^instance_group: expected a list, .*got a mapping"),
        ({"instance_group": [{"kind": "KIND_GPUS"}]}, r"group\[0\]\.kind: .*did you mean 'KIND_GPU'"),
        ({"max_batch_size": ["four"]}, "^max_batch_size: expected an integer, got 'four'"),
        ({"max_batch_size": [True]}, "^max_batch_size: expected an integer, got True"),
        ({"max_batch_size": []}, "^max_batch_size: an empty list"),
        ({"max_batch_size": {"sweep": 4}}, "^max_batch_size.sweep: expected a list"),
        ({"max_batch_size": {"start": 8, "stop": 4}}, "start 8 to stop 4 by step 1 has no values"),
        ({"dynamic_batching": {"preserve_ordering": "perhaps"}}, "preserve_ordering: expected true or false"),
        ({"dynamic_batching": {"preferred_batch_size": 4}}, "preferred_batch_size: expected a list"),
        ({"dynamic_batching": {"preferred_batch_size": [[4], ["x"]]}}, "expected an integer, got 'x'"),
        ({"dynamic_batching": 4}, "^dynamic_batching: expected fields of ModelDynamicBatching, got 4"),
        ({"parameters": ["a"]}, "^parameters: expected a mapping, got a list"),
        ({"backend": None}, "^backend: expected a single value, got nothing"),
    ],
)  # fmt: skip
def test_a_fault_is_told_with_the_path_of_its_field(value: dict[str, Any], message: str) -> None:
    with pytest.raises(BadField, match=message):
        read_sweep(value)


def test_what_is_no_mapping_is_refused() -> None:
    with pytest.raises(BadField, match="expected fields of the model configuration, got 4"):
        read_sweep(4)
