"""Forms of JSON for a configuration, as a real Triton 2.51 took or refused each in a load request."""

import json
from typing import Any

import pytest

from tpx.errors import ConfigError
from tpx.protocol import model_config

DYNAMIC = "max_batch_size: 4 dynamic_batching { %s }"
TAKEN = [
    # one element for a list, lists in lists, null for nothing
    ('"input": {"name": "x", "dims": 4}', "input { name: 'x' dims: 4 }"),
    (
        '"input": [[{"name": "x", "dims": [[4], ["5", 6.0, null]]}], null]',
        "input { name: 'x' dims: [4, 5, 6] }",
    ),
    ('"instance_group": {}, "input": null, "dynamic_batching": null', "instance_group { }"),
    ('"dynamic_batching": {"default_queue_policy": null}', "dynamic_batching { }"),
    ('"dynamic_batching": {}, "sequence_batching": null', "dynamic_batching { }"),
    # enums
    ('"input": {"data_type": 11}', "input { data_type: TYPE_FP32 }"),
    ('"input": {"data_type": 11.0}', "input { data_type: TYPE_FP32 }"),
    ('"input": {"data_type": "011"}', "input { data_type: TYPE_FP32 }"),
    ('"input": {"data_type": "tYPE-fp32"}', "input { data_type: TYPE_FP32 }"),
    ('"input": {"data_type": null}', "input { }"),
    # numbers
    ('"max_batch_size": "4"', "max_batch_size: 4"),
    ('"max_batch_size": "+04"', "max_batch_size: 4"),
    ('"max_batch_size": 4e0', "max_batch_size: 4"),
    ('"max_batch_size": "-0"', ""),
    ('"max_batch_size": 4.', "max_batch_size: 4"),
    ('"max_batch_size": null', ""),
    (
        '"sequence_batching": {"direct": {"minimum_slot_utilization": ".5"}}',
        "sequence_batching { direct { minimum_slot_utilization: 0.5 } }",
    ),
    (
        '"sequence_batching": {"direct": {"minimum_slot_utilization": "0x1p-1"}}',
        "sequence_batching { direct { minimum_slot_utilization: 0.5 } }",
    ),
    # booleans
    *(
        (
            f'"model_transaction_policy": {{"decoupled": "{word}"}}',
            "model_transaction_policy { decoupled: true }",
        )
        for word in ("true", "TRUE", "T", "yes", "y", "1")
    ),
    *(
        (f'"model_transaction_policy": {{"decoupled": "{word}"}}', "model_transaction_policy { }")
        for word in ("false", "False", "no", "0")
    ),
    # maps
    ('"parameters": {"a": {"string_value": "1"}}', "parameters { key: 'a' value { string_value: '1' } }"),
    (
        '"parameters": {"a": null, "": {"stringValue": null}}',
        "parameters { key: 'a' } parameters { key: '' }",
    ),
    (
        '"metric_tags": {"key": "a", "value": null}',
        "metric_tags { key: 'key' value: 'a' } metric_tags { key: 'value' }",
    ),
    (
        '"parameters": {"key": {"string_value": "1"}, "value": {}}',
        "parameters { key: 'key' value { string_value: '1' } } parameters { key: 'value' }",
    ),
    (
        '"max_batch_size": 4, "dynamic_batching": {"priority_queue_policy": {"+01": {"max_queue_size": 3}}}',
        DYNAMIC % "priority_queue_policy { key: 1 value { max_queue_size: 3 } }",
    ),
    # the text
    ('"maxBatchSize": 4', "max_batch_size: 4"),
    ("'max_batch_size': 4,", "max_batch_size: 4"),
    ("max_batch_size: 4", "max_batch_size: 4"),
    (
        '"metric_tags": {a1: "b\nc", "d": \'it"s\'}',
        "metric_tags { key: 'a1' value: 'b\\nc' } metric_tags { key: 'd' value: 'it\"s' }",
    ),
    ('"metric_tags": {"a": \'\\q\\/\\\'\\x41\'}', "metric_tags { key: 'a' value: \"q/'x41\" }"),
    (
        '"metric_tags": {a: "\\u00e9\\uD83D\\uDE00\\b\\f\\n\\r\\t"}',
        "metric_tags { key: 'a' value: 'é😀\\010\\014\\n\\r\\t' }",
    ),
]

INTEGER = "max_batch_size must be an integer from -2147483648 to 2147483647, got "
REFUSED = [
    *(
        (f'"max_batch_size": {value}', INTEGER + (shown or value))
        for value, shown in (
            ("[4]", "a list"),
            ("[]", "a list"),
            ("4.5", ""),
            ("true", ""),
            ("2147483648", ""),
            ("1e100", "1e+100"),
            ('" 4"', ""),
            ('"4.0"', ""),
            ('"4e0"', ""),
            ('"0x4"', ""),
            ('""', ""),
            ("{}", "an object"),
        )
    ),
    *(
        (f'"max_batch_size": {value}', "expected a value at")
        for value in ("0x4", "04", "+4", ".4", "four", "4L")
    ),
    (
        '"dynamic_batching": {"max_queue_delay_microseconds": -1}',
        "must be an integer from 0 to 18446744073709551615, got -1",
    ),
    ('"input": {"data_type": true}', "input[0].data_type must be one of TYPE_INVALID, "),
    ('"input": {"data_type": "TYPE_FLOAT"}', "(did you mean 'TYPE_FP32'?)"),
    ('"input": {"data_type": " TYPE_FP32"}', "input[0].data_type must be one of TYPE_INVALID, "),
    ('"input": {"data_type": "99"}', "input[0].data_type must be one of TYPE_INVALID, "),
    ('"input": {"data_type": "11.0"}', "input[0].data_type must be one of TYPE_INVALID, "),
    (
        '"model_transaction_policy": {"decoupled": 0}',
        "model_transaction_policy.decoupled must be true or false, got 0",
    ),
    ('"model_transaction_policy": {"decoupled": "on"}', 'must be true or false, got "on"'),
    ('"response_cache": false', "response_cache must be an object, got false"),
    ('"dynamic_batching": ""', 'dynamic_batching must be an object, got ""'),
    ('"dynamic_batching": [{}]', "dynamic_batching must be an object, got a list"),
    ('"instance_group": ["x"]', 'instance_group[0] must be an object, got "x"'),
    ('"name": 3', "name must be a string, got 3"),
    ('"metric_tags": {"a": 1}', "metric_tags[a] must be a string, got 1"),
    (
        '"metric_tags": [{"key": "a", "value": "b"}]',
        'metric_tags must be a map such as {"a": "VALUE"}, got entries with key and value',
    ),
    ('"parameters": {"a": "1"}', 'parameters[a] must be an object, got "1": write {"string_value": "1"}'),
    ('"parameters": {"a": {"string_value": 1}}', "parameters[a].string_value must be a string, got 1"),
    *(
        (
            f'"parameters": {value}',
            'a map such as {"a": {"string_value": "VALUE"}}, got entries with key and value',
        )
        for value in (
            '{"key": "a", "value": {"string_value": "1"}}',
            '[{"key": "a", "value": {"string_value": "1"}}]',
        )
    ),
    ('"parameters": []', "got a list"),
    (
        '"dynamic_batching": {"priority_queue_policy": {"x": {}}}',
        "priority_queue_policy[x] must be an integer from 0",
    ),
    (
        '"dynamic_batching": {}, "sequence_batching": {}',
        "sequence_batching and dynamic_batching exclude each other",
    ),
    (
        '"version_policy": {"latest": {}, "all": {}}',
        "all and latest exclude each other (in version_policy.all)",
    ),
    ('"sequence_batching": {"direct": {"minimum_slot_utilization": true}}', "must be a number, got true"),
    ('"sequence_batching": {"direct": {"minimum_slot_utilization": " 0.5"}}', 'must be a number, got " 0.5"'),
    (
        '"max_batch_sizes": 4',
        "a model configuration has no field 'max_batch_sizes' (did you mean 'max_batch_size'?)",
    ),
    ('"dynamic_batching": {"x": 1}', "dynamic_batching has no field 'x'"),
    ('"metric_tags": {a-b: "c"}', "expected : at '-b"),
    ('"metric_tags": {"a": "\\ud800"}', "metric_tags[a] must be a string"),
    ('"metric_tags": {"a": "\\u12"}', "invalid escape"),
    ('"name": "a" "max_batch_size": 4', "expected , or }"),
    ('"name": "a",, "max_batch_size": 4', "expected a key at ', "),
    ('/* c */ "name": "a"', "expected a key at '/* c */"),
    # Triton takes the last number, and joins lists and maps: see the deviations
    ('"max_batch_size": 4, "maxBatchSize": 5', "max_batch_size is given twice"),
    ('"parameters": {"a": {}, "a": {}}', "parameters has the key 'a' twice"),
    ('"input": {"name": "a"}, "input": {"name": "b"}', "input is given twice"),
]


@pytest.mark.parametrize(("members", "text"), TAKEN)
def test_a_form_that_triton_takes_is_taken(members: str, text: str) -> None:
    config = model_config.from_json(f"{{{members}}}", lenient=True)
    assert config == model_config.parse(text, "expected")


@pytest.mark.parametrize(("members", "why"), REFUSED)
def test_a_form_that_triton_refuses_is_refused_in_the_words_of_the_mistake(members: str, why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        model_config.from_json(f"{{{members}}}", lenient=True)
    assert why in caught.value.message
    assert caught.value.message.startswith("model configuration: ")


@pytest.mark.parametrize("text", ["[]", "null", "3", '"x"', "", " ", "{", "{} x", "{}{}", "\ufeff{}", "({})"])
def test_what_is_no_object_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"model configuration: (must be a JSON object|expected)"):
        model_config.from_json(text, lenient=True)


def test_the_error_has_the_path_of_its_field() -> None:
    config: Any = {"input": [{"name": "x"}, {"name": "y", "dims": ["a"]}]}
    with pytest.raises(ConfigError) as caught:
        model_config.from_json(json.dumps(config))
    assert caught.value.field == "input[1].dims"
