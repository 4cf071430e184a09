"""The schema: Triton's, complete, and at home in a process that also imports tritonclient."""

import ast
import gc
import subprocess
import sys
import weakref
from keyword import iskeyword
from pathlib import Path
from typing import Any

import pytest
from tritonclient.grpc import model_config_pb2, service_pb2

from tpx.protocol import messages

ORDERS = ("tritonclient.grpc", "tpx.protocol.messages"), ("tpx.protocol.messages", "tritonclient.grpc")


def members(descriptor: Any) -> dict[str, Any]:
    """Everything that a message type says, by name, nested types included."""
    options = descriptor.GetOptions()
    return {
        "fields": {
            field.name: (
                field.number,
                field.type,
                field.is_repeated,
                field.message_type.full_name if field.message_type else None,
                field.enum_type.full_name if field.enum_type else None,
                field.containing_oneof.name if field.containing_oneof else None,
                field.has_presence,
                field.GetOptions().deprecated,
            )
            for field in descriptor.fields
        },
        "nested": {nested.name: members(nested) for nested in descriptor.nested_types},
        "enums": {enum.name: values(enum) for enum in descriptor.enum_types},
        "map": options.map_entry,
    }


def values(enum: Any) -> dict[str, int]:
    return {value.name: value.number for value in enum.values}


THEIRS = {
    name: descriptor
    for module in (service_pb2, model_config_pb2)
    for name, descriptor in module.DESCRIPTOR.message_types_by_name.items()
}


@pytest.mark.parametrize("name", sorted(THEIRS))
def test_every_message_has_the_fields_numbers_and_types_of_tritonclient(name: str) -> None:
    ours = getattr(messages, name).DESCRIPTOR
    assert ours is not THEIRS[name]
    assert ours.full_name == THEIRS[name].full_name
    assert members(ours) == members(THEIRS[name])


def test_we_have_no_message_of_our_own_in_its_packages() -> None:
    service, config = messages.ModelInferRequest.DESCRIPTOR.file, messages.ModelConfig.DESCRIPTOR.file
    assert {*service.message_types_by_name, *config.message_types_by_name} == set(THEIRS)


def test_enumerations_have_its_values() -> None:
    theirs = {**service_pb2.DESCRIPTOR.enum_types_by_name, **model_config_pb2.DESCRIPTOR.enum_types_by_name}
    assert "DataType" in theirs
    for name, enum in theirs.items():
        assert values(getattr(messages, name)) == values(enum)


def test_the_service_has_its_methods() -> None:
    ours = messages.GRPCInferenceService
    (theirs,) = service_pb2.DESCRIPTOR.services_by_name.values()

    def methods(service: Any) -> dict[str, tuple[str, str, bool, bool]]:
        return {
            method.name: (
                method.input_type.full_name,
                method.output_type.full_name,
                method.client_streaming,
                method.server_streaming,
            )
            for method in service.methods
        }

    assert methods(ours) == methods(theirs)
    assert len(methods(ours)) > 15


@pytest.mark.parametrize("order", ORDERS)
def test_both_live_in_one_process_whichever_comes_first(order: tuple[str, str]) -> None:
    program = f"import {order[0]}\nimport {order[1]}\n" + (
        "from tpx.protocol import messages\n"
        "from tritonclient.grpc import service_pb2\n"
        "theirs = service_pb2.ModelInferRequest(model_name='m', id='x')\n"
        "ours = messages.ModelInferRequest.FromString(theirs.SerializeToString())\n"
        "print(ours.model_name, ours.id, type(ours) is type(theirs))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout == "m x False\n"


def test_the_messages_of_one_are_read_by_the_other() -> None:
    request = messages.ModelInferRequest(model_name="m", id="1")
    request.inputs.add(name="x", datatype="FP32", shape=[1, -1])
    request.parameters["p"].double_param = 0.5
    theirs = service_pb2.ModelInferRequest.FromString(request.SerializeToString())
    assert theirs.inputs[0].shape == [1, -1]
    assert theirs.parameters["p"].double_param == 0.5
    assert theirs.SerializeToString(deterministic=True) == request.SerializeToString(deterministic=True)


def test_a_name_that_the_schema_has_not_is_an_error_that_says_so() -> None:
    with pytest.raises(AttributeError, match="the v2 schema has no 'NoSuchMessage'"):
        getattr(messages, "NoSuchMessage")  # noqa: B009 - the stub does not have it


def test_the_type_stubs_are_those_of_the_schema() -> None:
    folder = Path(messages.__file__).parent / "schema"
    for name in ("model_config", "grpc_service", "health", "reflection"):
        stub = (folder / f"{name}_pb2.pyi").read_text("utf-8")
        classes = {node.name: node for node in ast.parse(stub).body if isinstance(node, ast.ClassDef)}
        for message in messages.file_named(f"{name}.proto").message_types_by_name.values():
            (slots,) = (
                ast.literal_eval(line.value)
                for line in classes[message.name].body
                if isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == "__slots__"
            )
            fields = {field.name for field in message.fields if not iskeyword(field.name)}
            assert set(slots) == fields, f"{message.name}: run `make schema`"


def test_the_class_of_a_nested_message_outlives_its_messages() -> None:
    config = messages.ModelConfig()
    graph = weakref.ref(type(config.optimization.graph))
    del config
    gc.collect()
    assert graph() is not None
