"""Protobuf messages of the v2 protocol, built from a private descriptor pool.

In protobuf's default pool these files clash with tritonclient's when both are imported into one
process. A private pool, filled from `schema/v2.binpb` (made from `schema/*.proto` by `make schema`),
avoids that and needs no generated code, so it works with every protobuf runtime.

    from tpx.protocol import messages
    request = messages.ModelInferRequest(model_name="mnist")
"""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FileDescriptor
from google.protobuf.message import Message

from tpx.errors import NotFound


def _read_schema() -> tuple[descriptor_pool.DescriptorPool, dict[str, object], list[type[Message]]]:
    """Return the pool, its contents by short name (of equal names the first file's wins), and all classes."""
    schema = Path(__file__).with_name("schema") / "v2.binpb"
    files = descriptor_pb2.FileDescriptorSet.FromString(schema.read_bytes())
    pool = descriptor_pool.DescriptorPool()
    out: dict[str, object] = {}
    for file in files.file:
        pool.Add(file)
    for file in files.file:
        for message in file.message_type:
            descriptor = pool.FindMessageTypeByName(f"{file.package}.{message.name}")
            out.setdefault(message.name, message_factory.GetMessageClass(descriptor))
        for service in file.service:
            out.setdefault(service.name, pool.FindServiceByName(f"{file.package}.{service.name}"))
        for enum in file.enum_type:
            out.setdefault(enum.name, pool.FindEnumTypeByName(f"{file.package}.{enum.name}"))
    kept = [
        each
        for file in files.file
        for each in all_classes(pool.FindFileByName(file.name).message_types_by_name.values())
    ]
    return pool, out, kept


def all_classes(descriptors: Iterable[Descriptor]) -> Iterator[type[Message]]:
    """Yield the classes of messages and of those within them. Keep a reference to each.

    protobuf makes the class of a nested message when it is first used, and holds it weakly. A thread that
    uses one while the garbage collector takes it apart ends the process with a segmentation fault (6.33).
    """
    for descriptor in descriptors:
        yield message_factory.GetMessageClass(descriptor)
        yield from all_classes(descriptor.nested_types)


_T = TypeVar("_T")
_pool, _classes, _kept = _read_schema()


def __getattr__(name: str) -> object:
    """Return a message class, service descriptor or enum descriptor by its short name."""
    try:
        return _classes[name]
    except KeyError:
        raise AttributeError(f"the v2 schema has no '{name}'") from None


def message_named(name: str) -> Descriptor:
    """Return the descriptor of a message by its full name. Raises NotFound."""
    return _find_descriptor("message", name, _pool.FindMessageTypeByName)


def enum_named(name: str) -> EnumDescriptor:
    """Return the descriptor of an enum by its full name. Raises NotFound."""
    return _find_descriptor("enum", name, _pool.FindEnumTypeByName)


def file_named(name: str) -> FileDescriptor:
    """Return the descriptor of a schema file. Raises NotFound."""
    return _find_descriptor("file", name, _pool.FindFileByName)


def _find_descriptor(what: str, name: str, find: Callable[[str], _T]) -> _T:
    try:
        return find(name)
    except KeyError as exc:
        raise NotFound(f"the schema has no {what} '{name}'") from exc


def file_of_symbol(symbol: str) -> FileDescriptor:
    """Return the descriptor of the file that defines a message, field, enum, service or method, given
    by full name. Raises NotFound.
    """
    try:
        return _pool.FindFileContainingSymbol(symbol)
    except KeyError as exc:
        service, _, method = symbol.rpartition(".")
        try:
            return _pool.FindServiceByName(service).methods_by_name[method].containing_service.file
        except KeyError:
            raise NotFound(f"the schema has no symbol '{symbol}'") from exc
