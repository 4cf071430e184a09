"""What is loaded into a server for a configuration."""

from typing import Any

from tpx.analyzer.results.measurement import Variant
from tpx.analyzer.runners.served import configs_of
from tpx.analyzer.variants import configure

STEP = {"model_name": "a", "model_version": -1, "input_map": {"x": "x"}, "output_map": {"y": "y"}}
TENSORS = {
    "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [2]}],
    "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [2]}],
}
DEFAULTS: dict[str, dict[str, Any]] = {
    "a": {"name": "a", "backend": "python", "max_batch_size": 4, **TENSORS},
    "ens": {
        "name": "ens",
        "platform": "ensemble",
        "max_batch_size": 4,
        "ensemble_scheduling": {"step": [STEP], "max_inflight_requests": 0},
        **TENSORS,
    },
}


def test_a_load_names_only_fields_that_are_set_so_that_an_older_server_takes_it() -> None:
    member = Variant(model="a", name="a_config_0", delta={"max_batch_size": 1, "dynamic_batching": {}})
    variant = Variant(model="ens", name="ens_config_0", delta={"max_batch_size": 1}, members=(member,))
    loads = configs_of(configure(variant, DEFAULTS["ens"], DEFAULTS))
    assert list(loads) == ["a", "ens"], "members come first"
    assert loads["ens"] == {
        "name": "ens",
        "platform": "ensemble",
        "max_batch_size": 1,
        "ensemble_scheduling": {"step": [STEP]},
        **TENSORS,
    }
    assert loads["a"] == {**DEFAULTS["a"], "max_batch_size": 1, "dynamic_batching": {}}
