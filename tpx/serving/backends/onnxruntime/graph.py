"""Search of an ONNX graph for work that the values of its inputs decide, not their sizes.

A model usually takes about as long for one request as for another of the same size, so short models are
computed on the event loop. A loop that runs as often as an input says could block it for minutes.
Reads the protobuf of the file (onnx.proto) without its weights.
"""

import mmap
from collections import defaultdict
from pathlib import Path

from tpx.protocol.protobuf_contents import iter_fields, read_payload

_SIZES = {
    "AffineGrid": (1,),
    "BlackmanWindow": (0,),
    "CenterCropPad": (1,),
    "Col2Im": (1, 2),
    "Compress": (1,),
    "ConstantOfShape": (0,),
    "DFT": (1,),
    "Expand": (1,),
    "HammingWindow": (0,),
    "HannWindow": (0,),
    "If": (0,),
    "Loop": (0, 1),
    "MaxUnpool": (2,),
    "NonMaxSuppression": (0, 1, 2),
    "NonZero": (0,),
    "OneHot": (1,),
    "Pad": (1,),
    "Range": (0, 1, 2),
    "Resize": (2, 3),
    "RoiAlign": (1,),
    "Tile": (1,),
    "TopK": (1,),
    "Unique": (0,),
    "Upsample": (1,),
}
"""Operators, and which of their inputs decide how often they loop, how large their output is, or which of
two graphs they compute.
"""
_ENDLESS = ("BeamSearch", "GreedySearch", "Sampling", "WhisperBeamSearch")
"""Operators that loop until a value that they compute ends them."""
_SIZES_ALONE = ("Shape", "Size")
"""Operators whose output does not depend on the values of their input."""

_LENGTH_DELIMITED = 2
_MODEL_GRAPH, _MODEL_FUNCTIONS = 7, 25
_FUNCTION_NODES = 7
_GRAPH_NODES, _GRAPH_INPUTS, _GRAPH_OUTPUTS = 1, 11, 12
_INPUT_NAME = 1
_NODE_INPUTS, _NODE_OUTPUTS, _NODE_OPERATOR, _NODE_ATTRIBUTES = 1, 2, 4, 5
_ATTRIBUTE_GRAPHS = (6, 11)


Message = dict[int, list[memoryview]]
"""Values of the fields of a message that are strings or messages, by number."""


def work_depends_on_values(path: Path) -> bool:
    """Return True if the values of inputs can make the model in a file work longer, or if it is unknown."""
    with path.open("rb") as file:
        content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    try:
        model = _read(content)
        nodes = [node for each in model[_MODEL_FUNCTIONS] for node in _read(each)[_FUNCTION_NODES]]
        if any(_text(_read(node), _NODE_OPERATOR) in {*_SIZES, *_ENDLESS} for node in nodes):
            return True  # functions are seldom: what they are called with is not followed
        return not model[_MODEL_GRAPH] or _grows(_read(model[_MODEL_GRAPH][0]), set())
    except (IndexError, UnicodeDecodeError):
        return True  # another format, such as .ort


def _grows(graph: Message, around: set[str]) -> bool:
    """Return True if a node works longer for other values. `around` are names of values outside of the
    graph that depend on them.
    """
    varying = around | {_text(_read(item), _INPUT_NAME) for item in graph[_GRAPH_INPUTS]}
    for data in graph[_GRAPH_NODES]:  # each after those whose outputs it takes
        node = _read(data)
        operator = _text(node, _NODE_OPERATOR)
        inputs = [str(name, "utf-8") for name in node[_NODE_INPUTS]]
        if operator in _ENDLESS or (operator == "Loop" and not inputs[0]):
            return True
        if any(inputs[at] in varying for at in _SIZES.get(operator, ()) if at < len(inputs)):
            return True
        attributes = map(_read, node[_NODE_ATTRIBUTES])
        inner = [_read(each) for one in attributes for kind in _ATTRIBUTE_GRAPHS for each in one[kind]]
        if any(_grows(each, varying) for each in inner):
            return True
        if operator == "Loop" and any(_ends_by_value(body, varying) for body in inner):
            return True
        _add_outputs(node, operator, varying, inner=bool(inner))
    return False


def _ends_by_value(body: Message, around: set[str]) -> bool:
    """Return True if the condition that a loop's body computes depends on values, at least on those that
    it passes on, which are not followed. Its iteration number and condition alone are no values.
    """
    varying = around | {_text(_read(item), _INPUT_NAME) for item in body[_GRAPH_INPUTS][2:]}
    for data in body[_GRAPH_NODES]:
        node = _read(data)
        _add_outputs(node, _text(node, _NODE_OPERATOR), varying, inner=False)
    return _text(_read(body[_GRAPH_OUTPUTS][0]), _INPUT_NAME) in varying


def _add_outputs(node: Message, operator: str, varying: set[str], *, inner: bool) -> None:
    """Add the outputs of a node to the values that depend on inputs, if its inputs are among them."""
    inputs = [str(name, "utf-8") for name in node[_NODE_INPUTS]]
    if operator not in _SIZES_ALONE and (inner or not varying.isdisjoint(inputs)):
        varying.update(str(name, "utf-8") for name in node[_NODE_OUTPUTS])
        varying.discard("")  # the name of an optional input or output that is absent


def _text(message: Message, field: int) -> str:
    return str(message[field][0], "utf-8") if message[field] else ""


def _read(data: memoryview) -> Message:
    """Read a message, but not those within it. Raises IndexError if it is malformed."""
    message: Message = defaultdict(list)
    for tag, start, stop in iter_fields(data):
        if tag & 7 == _LENGTH_DELIMITED:
            message[tag >> 3].append(read_payload(data, start, stop))
    return message
