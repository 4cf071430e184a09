"""The protobuf messages of the v2 protocol, built from a descriptor pool of our own.

In protobuf's default pool these files clash with tritonclient's when both are imported into one process; a
private pool fed from `schema/v2.binpb` (made from `schema/*.proto` by `make schema`) clashes with nobody and
needs no generated code, so it fits every protobuf runtime.

    from tpx.protocol import messages
    request = messages.ModelInferRequest(model_name="mnist")
"""

from importlib import resources
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory


def _load() -> dict[str, Any]:
    files = descriptor_pb2.FileDescriptorSet.FromString(
        resources.files("tpx.protocol").joinpath("schema/v2.binpb").read_bytes()
    )
    pool = descriptor_pool.DescriptorPool()
    out: dict[str, Any] = {}
    for file in files.file:
        pool.Add(file)
    for file in files.file:
        for message in file.message_type:
            descriptor = pool.FindMessageTypeByName(f"{file.package}.{message.name}")
            out[message.name] = message_factory.GetMessageClass(descriptor)
        for service in file.service:
            out[service.name] = pool.FindServiceByName(f"{file.package}.{service.name}")
        for enum in file.enum_type:
            out[enum.name] = pool.FindEnumTypeByName(f"{file.package}.{enum.name}")
    return out


_classes = _load()


def __getattr__(name: str) -> Any:
    """A message class, service descriptor or enum descriptor by its short name."""
    try:
        return _classes[name]
    except KeyError:
        raise AttributeError(f"the v2 schema has no '{name}'") from None
