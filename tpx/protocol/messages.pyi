# The names that `messages.py` finds in the schema; `make schema` writes the stubs of its files.
# ruff: noqa: F403 - every name of these files is a name of this module
from collections.abc import Iterable, Iterator

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FileDescriptor, ServiceDescriptor
from google.protobuf.message import Message

from tpx.protocol.schema.grpc_service_pb2 import *
from tpx.protocol.schema.health_pb2 import *
from tpx.protocol.schema.model_config_pb2 import *
from tpx.protocol.schema.reflection_pb2 import *

GRPCInferenceService: ServiceDescriptor

def message_named(name: str) -> Descriptor: ...
def enum_named(name: str) -> EnumDescriptor: ...
def all_classes(descriptors: Iterable[Descriptor]) -> Iterator[type[Message]]: ...
def file_named(name: str) -> FileDescriptor: ...
def file_of_symbol(symbol: str) -> FileDescriptor: ...
