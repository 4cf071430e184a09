"""From a configuration as written to one that says everything, and what is refused on the way."""

from pathlib import Path
from typing import Any

import pytest

from tests.serving.onnx_files import write_model
from tpx.errors import ConfigError
from tpx.protocol import model_config
from tpx.serving.backends.onnxruntime import OnnxRuntimeBackend
from tpx.serving.repository.configuration import (
    fill_backend,
    fill_defaults,
    refuse_unsupported,
    set_name,
    validate,
    validate_instance_groups,
    validate_model,
    validate_tensors,
)
from tpx.serving.repository.scheduling import fill_batching

INPUT = "input [{ name: 'x' data_type: TYPE_FP32 dims: [ 16 ] }] "
OUTPUT = "output [{ name: 'y' data_type: TYPE_FP32 dims: [ 16 ] }] "
POSITIVE = "must be integer >= 1, or -1 to indicate a variable-size dimension"


def config(text: str = "", name: str = "net") -> Any:
    """A ModelConfig as text."""
    return model_config.parse(f"name: '{name}' {text}", "test")


def refused(text: str) -> str:
    """Why validation refuses a configuration."""
    with pytest.raises(ConfigError) as caught:
        validate(config(text))
    return caught.value.message


# name and backend


def test_a_model_is_called_as_its_directory() -> None:
    nameless = model_config.parse("", "test")
    set_name(nameless, "net")
    assert nameless.name == "net"
    set_name(config(), "net")
    with pytest.raises(ConfigError) as caught:
        set_name(config(), "other")
    assert caught.value.message == (
        "unexpected directory name 'other' for model 'net', directory name must equal model name"
    )


@pytest.mark.parametrize(
    ("text", "backend", "platform"),
    [
        ("backend: 'onnxruntime'", "onnxruntime", "onnxruntime_onnx"),
        ("platform: 'onnxruntime_onnx'", "onnxruntime", "onnxruntime_onnx"),
        ("platform: 'onnxruntime_onnx' backend: 'onnxruntime'", "onnxruntime", "onnxruntime_onnx"),
        ("platform: 'tensorrt_plan'", "tensorrt", "tensorrt_plan"),
        ("platform: 'torch_aoti'", "pytorch", "torch_aoti"),
        ("platform: 'onnxruntime_onnx' backend: 'python'", "python", "onnxruntime_onnx"),
        ("platform: 'mine' backend: 'python'", "python", "mine"),
        ("backend: 'python'", "python", ""),
        ("backend: 'mine'", "mine", ""),
    ],
)
def test_platform_and_backend_fill_each_other(text: str, backend: str, platform: str) -> None:
    out = config(text)
    fill_backend(out, None)
    assert (out.backend, out.platform) == (backend, platform)


@pytest.mark.parametrize(
    ("files", "backend", "platform"),
    [
        (["model.onnx"], "onnxruntime", "onnxruntime_onnx"),
        (["model.plan", "model.onnx"], "tensorrt", "tensorrt_plan"),
        (["model.py", "model.pt"], "pytorch", "pytorch_libtorch"),
        (["model.py"], "python", ""),
    ],
)
def test_the_file_of_the_model_tells_its_backend(
    tmp_path: Path, files: list[str], backend: str, platform: str
) -> None:
    for name in files:
        (tmp_path / name).write_bytes(b"")
    out = config()
    fill_backend(out, tmp_path)
    assert (out.backend, out.platform) == (backend, platform)


def test_the_name_of_the_model_may_tell_its_backend(tmp_path: Path) -> None:
    out = config(name="net.onnxruntime")
    fill_backend(out, tmp_path)
    assert out.backend == "onnxruntime"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("platform: 'caffe'", "unexpected platform type 'caffe' for net"),
        (
            "platform: 'python'",
            "unexpected platform type 'python' for net: it is the name of a backend: write "
            'backend: "python" instead',
        ),
        ("platform: 'torch'", "unexpected platform type 'torch' for net: its platform is 'pytorch_libtorch'"),
        ("platform: 'ONNX'", "unexpected platform type 'ONNX' for net: its platform is 'onnxruntime_onnx'"),
        (
            "platform: 'onnxruntime'",
            "unexpected platform type 'onnxruntime' for net: it is the name of a backend, whose platform is "
            "'onnxruntime_onnx'",
        ),
        (
            "platform: 'tensorrt_plans'",
            "unexpected platform type 'tensorrt_plans' for net (did you mean 'tensorrt_plan'?)",
        ),
        (
            "platform: 'tensorrt_plan' backend: 'onnxruntime'",
            "unexpected 'platform' and 'backend' pair, got:tensorrt_plan, onnxruntime",
        ),
        ("", "Invalid model name: Could not determine backend for model 'net' with no backend in model "),
    ],
)
def test_what_tells_no_backend_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        fill_backend(config(text), tmp_path)
    assert caught.value.message.startswith(message)


def test_where_no_file_tells_the_backend_it_is_said_what_is_there(tmp_path: Path) -> None:
    for name in ("f.bin", "e.bin", "d.bin", "c.bin", "b.bin", "mnist.onnx"):
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(ConfigError) as caught:
        fill_backend(config(), tmp_path)
    assert "has no file that identifies it (model.savedmodel, " in caught.value.message
    assert "but b.bin, c.bin, d.bin, e.bin, f.bin, ...: rename the file" in caught.value.message
    with pytest.raises(ConfigError, match="The model has no version: 'net/1' should contain a file"):
        fill_backend(config(), None)


# defaults


def filled(text: str = "") -> Any:
    """The configuration with its defaults."""
    out = config(text)
    fill_defaults(out, OnnxRuntimeBackend())
    fill_batching(out)
    return out


def groups(text: str = "") -> list[tuple[str, str, int]]:
    """Name, kind and count of each instance group."""
    return [
        (group["name"], group["kind"], group["count"])
        for group in model_config.to_json(filled(text))["instance_group"]
    ]


def test_everything_that_was_left_open_is_said() -> None:
    out = model_config.to_json(filled())
    assert out["version_policy"] == {"latest": {"num_versions": 1}}
    assert out["optimization"]["input_pinned_memory"] == {"enable": True}
    assert out["optimization"]["output_pinned_memory"] == {"enable": True}
    assert out["default_model_filename"] == "model.onnx"
    assert groups() == [("net", "KIND_CPU", 2)]


def test_what_was_said_is_kept() -> None:
    text = (
        "version_policy { all { } } default_model_filename: 'other.onnx' "
        "optimization { input_pinned_memory { enable: false } }"
    )
    out = model_config.to_json(filled(text))
    assert out["version_policy"] == {"all": {}}
    assert out["default_model_filename"] == "other.onnx"
    assert out["optimization"]["input_pinned_memory"] == {"enable": False}
    assert out["optimization"]["output_pinned_memory"] == {"enable": True}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("instance_group [{ count: 3 }]", [("net_0", "KIND_CPU", 3)]),
        ("instance_group [{ }, { kind: KIND_CPU }]", [("net_0", "KIND_CPU", 2), ("net_1", "KIND_CPU", 2)]),
        ("instance_group [{ name: 'g' kind: KIND_AUTO }]", [("g", "KIND_CPU", 2)]),
        ("instance_group [{ kind: KIND_MODEL }]", [("net_0", "KIND_MODEL", 1)]),
        ("instance_group [{ kind: KIND_GPU }]", [("net_0", "KIND_GPU", 1)]),
    ],
)
def test_instance_groups_get_names_kinds_and_counts(text: str, expected: list[Any]) -> None:
    assert groups(text) == expected


@pytest.mark.parametrize(
    ("text", "preferred"),
    [
        ("max_batch_size: 8 dynamic_batching { }", [8]),
        ("max_batch_size: 8 dynamic_batching { preferred_batch_size: [ 2, 4 ] }", [2, 4]),
        ("max_batch_size: 0 dynamic_batching { }", []),
        ("max_batch_size: 8", []),
    ],
)
def test_the_preferred_batch_size_is_the_largest_unless_said_otherwise(
    text: str, preferred: list[int]
) -> None:
    out = filled(text)
    assert list(out.dynamic_batching.preferred_batch_size) == preferred
    assert out.HasField("dynamic_batching") == ("dynamic" in text)


# validation


def test_a_good_configuration_passes() -> None:
    validate(config(f"max_batch_size: 8 {INPUT} {OUTPUT}"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"max_batch_size: -1 {INPUT}{OUTPUT}", "'max_batch_size' must be non-negative value for net"),
        (INPUT, "model 'net' must specify at least one output"),
        (
            "input [{ data_type: TYPE_FP32 dims: [ 1 ] }]" + OUTPUT,
            "model input must specify 'name' for net",
        ),
        ("input [{ name: 'x' dims: [ 1 ] }]" + OUTPUT, "model input 'x' must specify 'data_type' for net"),
        (
            "input [{ name: 'x' data_type: 99 dims: [ 1 ] }]" + OUTPUT,
            "model input 'x' must specify 'data_type' for net",
        ),
        (
            "input [{ name: 'x' data_type: TYPE_FP32 }]" + OUTPUT,
            "model input 'x' must specify 'dims' for net",
        ),
        (
            INPUT + "output [{ name: 'y' data_type: TYPE_FP32 }]",
            "model output 'y' must specify 'dims' for net",
        ),
        (INPUT + INPUT + OUTPUT, "model input 'x' is specified more than once for net"),
        (INPUT + OUTPUT + OUTPUT, "model output 'y' is specified more than once for net"),
        (
            "input [{ name: 'x' data_type: TYPE_FP32 format: FORMAT_NHWC dims: [ 1 ] }]" + OUTPUT,
            "model input NHWC/NCHW require 3 dims for net: input 'x'",
        ),
        (
            INPUT.replace("}", "is_shape_tensor: true }") + OUTPUT,
            "shape tensors are only supported for TensorRT platform for net: input 'x'",
        ),
        (
            INPUT + OUTPUT.replace("}", "is_non_linear_format_io: true }"),
            "Non-linear IO format is only supported for the TensorRT platform for net: output 'y'",
        ),
    ],
)
def test_what_cannot_be_is_refused_by_its_field(text: str, message: str) -> None:
    assert refused(text) == message


@pytest.mark.parametrize("dim", [0, -2, -(2**62)])
def test_dimensions_are_positive_or_vary(dim: int) -> None:
    text = INPUT.replace("16", str(dim)) + OUTPUT
    assert refused(text) == (
        "model input 'x' dimension must be integer >= 1, or -1 to indicate a variable-size dimension for net"
    )


@pytest.mark.parametrize(
    ("batch", "dims", "shape", "message"),
    [
        (8, "1", "", None),
        (0, "1", "", "cannot have empty reshape for non-batching model as scalar tensors are not supported"),
        (8, "2, 3", "6", None),
        (8, "2, 3", "7", "has different size for dims and reshape"),
        (8, "-1, 2", "-1, 1, 2", None),
        (8, "2, 4, -1, 6", "8, -1, 1, 6", None),
        (8, "-1, 2", "2, -1", "has different size for dims and reshape"),
        (8, "2, -1", "1, -1, 2", "has different size for dims and reshape"),
        (8, "2, -1, 3, -1", "2, -1, -1, 3", "has different size for dims and reshape"),
        (8, "-1, 2", "2", "has different size for dims and reshape"),
        (8, "2", "-1", "has different size for dims and reshape"),
        (8, f"{2**62}, 4", f"4, {2**62}", f"has more than {2**63 - 1} elements"),
        (8, "-1, -1", "-1", "has different number of variable-size dimensions for dims and reshape"),
        (8, "-1, 2", "-1, 3", "has different size for dims and reshape"),
        (8, "2", "2, 0", f"reshape dimensions {POSITIVE}"),
    ],
)
def test_a_reshape_keeps_the_number_of_elements(
    batch: int, dims: str, shape: str, message: str | None
) -> None:
    text = INPUT.replace("[ 16 ]", f"[ {dims} ] reshape {{ shape: [ {shape} ] }}") + OUTPUT
    text = f"max_batch_size: {batch} {text}"
    if message is None:
        validate(config(text))
    else:
        assert refused(text) == f"model input 'x' {message} for net"


@pytest.mark.slow
def test_many_tensors_and_huge_shapes_cost_what_they_weigh() -> None:
    many = config()
    for index in range(60_000):
        many.input.add(name=f"x{index}", data_type="TYPE_FP32", dims=[1])
        many.output.add(name=f"y{index}", data_type="TYPE_FP32", dims=[1])
    validate(many)  # quadratic, it would take minutes
    wide = config(INPUT + OUTPUT)
    wide.input[0].dims[:] = wide.input[0].reshape.shape[:] = [2**63 - 1] * 50_000
    with pytest.raises(ConfigError, match="has more than"):  # a product of three million bits
        validate(wide)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ("[ 0 ]", "dynamic batching preferred size must be positive for net"),
        ("[ 4, -1 ]", "dynamic batching preferred size must be positive for net"),
        ("[ 4, 9 ]", "dynamic batching preferred size must be <= max batch size for net"),
        (
            str([4] * 1001),
            "dynamic batching preferred size must have at most 1000 values, got 1001, for net",
        ),
    ],
)
def test_preferred_sizes_are_batch_sizes(sizes: str, message: str) -> None:
    text = f"max_batch_size: 8 {INPUT}{OUTPUT} dynamic_batching {{ preferred_batch_size: {sizes} }}"
    assert refused(text) == message


@pytest.mark.parametrize(
    ("group", "message"),
    [
        ("count: -1", "instance group net_0 of model net must have a count of at least 1"),
        (
            "name: 'g' kind: KIND_CPU gpus: [ 0 ]",
            "instance group g of model net has kind KIND_CPU but specifies one or more GPUs",
        ),
        (
            "kind: KIND_MODEL gpus: [ 0 ]",
            "instance group net_0 of model net has kind KIND_MODEL but specifies one or more GPUs",
        ),
        (
            "profile: '1'",
            "instance group net_0 of model net and platform specifies profile field which is only supported "
            "for TensorRT models",
        ),
        ("kind: 7", "instance group net_0 of model net has the unknown kind 7"),
    ],
)
def test_instance_groups_that_cannot_be_are_refused(group: str, message: str) -> None:
    out = config(f"instance_group [{{ {group} }}]")
    fill_defaults(out, OnnxRuntimeBackend())
    with pytest.raises(ConfigError) as caught:
        validate_instance_groups(out)
    assert caught.value.message == message


@pytest.mark.parametrize(
    "text",
    [
        "dynamic_batching { preferred_batch_size: [ 4 ] }",
        "input [{ name: 'x' reshape { shape: [ 2 ] } }]",
        "output [{ name: 'y' dims: [ 1 ] reshape { } }]",
        "batch_input [{ target_name: 't' data_type: TYPE_FP32 source_input: 'x' }]",
    ],
)
def test_what_the_model_file_may_tell_is_not_missed_before_it_is_open(text: str) -> None:
    incomplete = config(text)
    validate_model(incomplete, completed=False)
    validate_tensors(incomplete, completed=False)
    with pytest.raises(ConfigError):
        validate(incomplete)


@pytest.mark.parametrize(
    "text",
    [
        "max_batch_size: 2 dynamic_batching { preferred_batch_size: [ 4 ] }",
        "dynamic_batching { preferred_batch_size: [ 0 ] }",
        "input [{ dims: [ 2 ] }]",
        "input [{ name: 'x' dims: [ 0 ] }]",
        "input [{ name: 'x' dims: [ 3 ] reshape { shape: [ 2 ] } }]",
        INPUT + OUTPUT + "batch_input [{ target_name: 't' data_type: TYPE_FP32 source_input: 'z' }]",
    ],
)
def test_what_no_model_file_can_mend_is_refused_before_it_is_open(text: str) -> None:
    wrong = config(text)
    with pytest.raises(ConfigError):  # noqa: PT012 (one of the two)
        validate_model(wrong, completed=False)
        validate_tensors(wrong, completed=False)


# what this version does not do


def test_what_is_not_there_is_refused_by_its_name() -> None:
    with pytest.raises(ConfigError) as caught:
        refuse_unsupported(config("runtime: 'libmine.so'"))
    assert caught.value.message == "model 'net': this version of tpx does not support runtime"


@pytest.mark.parametrize(
    "how", ["backend: 'pytorch'", "platform: 'pytorch_libtorch'", "platform: 'torch_aoti'"]
)
def test_pytorch_models_may_name_their_python_runtime(how: str) -> None:
    refuse_unsupported(config(f"{how} runtime: 'model.py'"))
    with pytest.raises(ConfigError, match="does not support runtime"):
        refuse_unsupported(config(f"{how} runtime: 'libtriton_pytorch.so'"))
    with pytest.raises(ConfigError, match="does not support runtime"):
        refuse_unsupported(config("backend: 'onnxruntime' runtime: 'model.py'"))


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("is_shape_tensor", "shape tensors are only supported for TensorRT platform"),
        ("is_non_linear_format_io", "Non-linear IO format is only supported for the TensorRT platform"),
    ],
)
def test_what_only_engines_have_is_refused_elsewhere(field: str, message: str) -> None:
    tensor = "name: 'x' data_type: TYPE_FP32 dims: [ 2 ]"
    text = f"input [{{ {tensor} {field}: true }}] output [{{ {tensor} }}] backend: "
    assert message in refused(text + "'onnxruntime'")
    validate(config(text + "'tensorrt'"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "model_transaction_policy { decoupled: false } response_cache { enable: false }",
        "dynamic_batching { default_queue_policy { } }",
        "dynamic_batching { preferred_batch_size: [ 4 ] max_queue_delay_microseconds: 100 }",
        "metric_tags { key: 'team' value: 'a' } parameters { key: 'k' value { string_value: 'v' } }",
        "instance_group [{ count: 2 rate_limiter { resources [{ name: 'r' count: 1 }] } }]",
    ],
)
def test_what_is_there_or_asks_for_nothing_passes(text: str) -> None:
    refuse_unsupported(config(text))


# reading


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"max_batch_size: 8\nmax_batchsize: 3\n", r"config\.pbtxt:2:1 : .*max_batchsize"),
        (b"\n\ninput [ { name: 'x' datatype: TYPE_FP32 } ]", r"config\.pbtxt:3:\d+ : .*datatype"),
        (b"input [ { name: 'x' data_type: TYPE_FP33 } ]", r"config\.pbtxt:1:\d+ : .*TYPE_FP33"),
        (b"max_batch_size: 'many'", r"config\.pbtxt:1:\d+ :"),
        (b"max_batch_size: 99999999999", r"config\.pbtxt:1:\d+ :"),
        (b"input {", r"config\.pbtxt:1:\d+ :"),
        (b"name: '\xff\xfe'", r"config\.pbtxt: not UTF-8 text at byte 7"),
        (b"{" * 100_000, r"config\.pbtxt"),
        (b"dynamic_batching { priority_queue_policy { key: 1 value { " * 2000, r"config\.pbtxt"),
        (b" " * ((16 << 20) + 1), r"config\.pbtxt: larger than 16777216 bytes"),
    ],
    ids=["unknown", "nested", "enum", "type", "overflow", "cut", "bytes", "braces", "deep", "huge"],
)
def test_a_file_that_cannot_be_read_is_named_with_line_and_field(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = write_model(tmp_path, "net") / "config.pbtxt"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        model_config.read(path)
