"""The protobuf messages of TensorFlow Serving, in a descriptor pool of our own: they clash with nobody's."""

from importlib import resources
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory


def _read() -> dict[str, Any]:
    files = descriptor_pb2.FileDescriptorSet.FromString(
        resources.files("tpx.perf.clients").joinpath("schema/tfserving.binpb").read_bytes()
    )
    pool = descriptor_pool.DescriptorPool()
    (file,) = files.file
    pool.Add(file)
    return {
        message.name: message_factory.GetMessageClass(
            pool.FindMessageTypeByName(f"{file.package}.{message.name}")
        )
        for message in file.message_type
    }


_classes = _read()


def __getattr__(name: str) -> Any:
    """A message class by its short name."""
    try:
        return _classes[name]
    except KeyError:
        raise AttributeError(f"the schema of TensorFlow Serving has no '{name}'") from None
