"""Archives in `model.pt2`.

An archive of torch.export.save is a graph with types and shapes; an AOTInductor package
(aoti_compile_and_package) is code compiled for one kind of machine.
"""

import json
import logging
import os
import threading
import zipfile
from pathlib import Path

import torch
from torch.utils import _pytree as pytree

from tpx.errors import ConfigError, LoadError
from tpx.protocol.json_values import JsonObject, JsonValue
from tpx.serving.backends.pytorch.program import (
    Interface,
    Program,
    TensorSlot,
    Value,
    datatype_of,
    storages_of,
)

Key = int | str

_DICTS = ("builtins.dict", "collections.OrderedDict")


Leaf = tuple[Key, ...]
"""Position of a tensor in nested arguments or results, as the keys that lead to it."""


def _label_argument(leaf: Leaf) -> str:
    """Return Triton's name for an input; the first key selects args or kwargs."""
    return ("KWARGS" if leaf[0] else "ARGS") + _format_path(leaf[1:])


def leaves_of(specification: str) -> list[Leaf]:
    """Return the leaves of a tree specification in JSON, `[version, {type, context, children_spec}]`."""
    _, root = json.loads(specification)
    leaves: list[Leaf] = []
    _collect_leaves(root, (), leaves)
    return leaves


def _collect_leaves(node: JsonValue, path: Leaf, leaves: list[Leaf]) -> None:
    if node["type"] is None:
        leaves.append(path)
        return
    children = node["children_spec"]
    keys: list[Key] = list(range(len(children)))
    if node["type"] in _DICTS:
        context = node["context"]
        keys = json.loads(context) if isinstance(context, str) else context
    for key, child in zip(keys, children, strict=True):
        _collect_leaves(child, (*path, key), leaves)


def _format_path(path: Leaf) -> str:
    return "".join(f"[{key}]" for key in path)


_GUARDS = "_guards_fn"
_reading = threading.Lock()
"""Lock for reading archives: PyTorch keeps the one that it reads in a global variable."""


_NUMBERS = (
    "aten._local_scalar_dense.default", "aten._unique2.default", "aten.item.default",
    "aten.masked_select.default", "aten.nonzero.default", "aten.repeat_interleave.Tensor",
    "aten.unique_consecutive.default", "aten.unique_dim.default", "cond", "torchvision.nms.default",
    "torchvision.roi_align.default", "while_loop",
)  # fmt: skip
"""Operators that turn the values of a tensor into sizes, a condition, or the end of a loop."""


class ExportedProgram(Program):
    """The graph of an exported program, called with a flat list of tensors."""

    def __init__(self, path: Path, device: torch.device | None, model: str) -> None:
        """With `device` None the weights stay on the devices that the archive specifies."""
        program = _load_program(path, model)
        if device is not None and device.type != "cpu":
            from torch.export.passes import move_to_device_pass

            program = move_to_device_pass(program, device)
        self.device = device or torch.device("cpu")
        self._in_spec = program.call_spec.in_spec
        signature = program.graph_signature
        specs = [spec for spec in signature.input_specs if spec.kind.name == "USER_INPUT"]
        self._constants = [getattr(spec.arg, "value", None) for spec in specs]
        self._positions = [index for index, spec in enumerate(specs) if _is_tensor(spec.arg)]
        for spec in specs:
            if not _is_tensor(spec.arg) and not hasattr(spec.arg, "value"):
                raise ConfigError(
                    f"unable to load model '{model}', its forward takes '{spec.arg.name}', which is not a "
                    f"tensor ({type(spec.arg).__name__}): export it with a constant, or with a tensor of one "
                    "element"
                )
        outputs = [spec for spec in signature.output_specs if spec.kind.name == "USER_OUTPUT"]
        self._kept = [index for index, spec in enumerate(outputs) if _is_tensor(spec.arg)]
        self.interface = _read_interface(program, self._positions, self._kept, model)
        module = program.module()
        self.work_depends_on_values = any(
            str(node.target) in _NUMBERS
            for graph in module.modules()
            if isinstance(graph, torch.fx.GraphModule)
            for node in graph.graph.nodes
        )
        self.storages = storages_of(module)
        self.flat = any(n.op == "call_module" and n.target == _GUARDS for n in module.graph.nodes)
        if self.flat:
            # the graph checks its inputs itself; flat arguments halve the cost of a call
            module.graph.set_codegen(torch.fx.graph.CodeGen())
            module.recompile()
        self._call = module.forward if self.flat else module

    def compile(self, options: JsonObject) -> None:
        """Apply torch.compile, which compiles during the first run."""
        self._call = torch.compile(self._call, **options)

    def run(self, values: list[Value]) -> Value:
        everything = list(self._constants)
        for position, value in zip(self._positions, values, strict=True):
            everything[position] = value
        if self.flat:
            results = self._call(*everything)
        else:
            args, kwargs = pytree.tree_unflatten(everything, self._in_spec)
            results = pytree.tree_leaves(self._call(*args, **kwargs), is_leaf=lambda value: value is None)
        return [results[index] for index in self._kept]


def _load_program(path: Path, model: str) -> Value:
    try:
        with _reading, path.open("rb") as file:  # a file object, because a path would have to end in .pt2
            return torch.export.load(file)
    except (RuntimeError, ValueError, OSError, AttributeError, KeyError, TypeError) as exc:
        raise _make_load_error(path, model, exc) from exc


def _make_load_error(path: Path, model: str, exc: Exception) -> LoadError:
    return LoadError(
        f"failed to load model '{model}': PyTorch {torch.__version__} cannot read '{path}': {exc}"
    )


def _is_tensor(argument: object) -> bool:
    return type(argument).__name__ == "TensorArgument"


def _read_interface(
    program: torch.export.ExportedProgram, positions: list[int], kept: list[int], model: str
) -> Interface:
    inputs = leaves_of(pytree.treespec_dumps(program.call_spec.in_spec))
    outputs = leaves_of(pytree.treespec_dumps(program.call_spec.out_spec))
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    signature = program.graph_signature
    names = _name_arguments(program, inputs)
    arguments = [
        _make_slot(
            names[position], _label_argument(inputs[position]), values[signature.user_inputs[position]], model
        )
        for position in positions
    ]
    results = [
        _make_slot(
            _name_result(outputs[position]),
            "RESULT" + _format_path(outputs[position]),
            values[signature.user_outputs[position]],
            model,
        )
        for position in kept
    ]
    given = [values[signature.user_inputs[position]] for position in positions]
    made = [values[signature.user_outputs[position]] for position in kept]
    least, most = _find_row_limits(program, given)
    return Interface(
        arguments=tuple(arguments),
        results=tuple(results),
        least_rows=least,
        most_rows=most,
        rows_alike=len({str(value.shape[0]) for value in (*given, *made) if len(value.shape)}) <= 1,
    )


def _name_arguments(program: torch.export.ExportedProgram, leaves: list[Leaf]) -> list[str]:
    """Return the names of forward's arguments; if a single argument is a dict, its keys."""
    forward = program.module_call_graph[0].signature.forward_arg_names or []
    alone = len({leaf[:2] for leaf in leaves}) == 1
    names = []
    for leaf in leaves:
        which, argument, *keys = leaf
        name = str(argument)
        if not which:
            name = forward[int(argument)] if int(argument) < len(forward) else _label_argument(leaf)
        dict_key = keys[0] if alone and len(keys) == 1 else None
        names.append(dict_key if isinstance(dict_key, str) else name + _format_path(tuple(keys)))
    return names


def _name_result(leaf: Leaf) -> str:
    """Return the name of a result in a dict, an empty string for any other result."""
    if not leaf or not isinstance(leaf[0], str):
        return ""
    return leaf[0] + _format_path(leaf[1:])


def _make_slot(name: str, label: str, value: torch.Tensor, model: str) -> TensorSlot:
    return TensorSlot(
        name=name,
        label=label,
        datatype=datatype_of(value.dtype, f"model '{model}': tensor '{name or label}'"),
        shape=tuple(dim if isinstance(dim, int) else -1 for dim in value.shape),
    )


def _find_row_limits(program: torch.export.ExportedProgram, values: list[torch.Tensor]) -> tuple[int, int]:
    """Return the minimum and maximum rows that all variable inputs accept; 0 means no limit."""
    least, most = 0, 0
    ranges = {str(symbol): limits for symbol, limits in program.range_constraints.items()}
    for value in values:
        limits = ranges.get(str(value.shape[0])) if len(value.shape) else None
        if limits is None:
            continue
        lower, upper = str(limits.lower), str(limits.upper)
        # archives use 2 as the lower bound if it is unknown
        least = max(least, int(lower) if lower.isdigit() and int(lower) > 2 else 0)
        if upper.isdigit():
            most = min(most or int(upper), int(upper))
    return least, most


log = logging.getLogger(__name__)

_CHECKS = "AOTI_RUNTIME_CHECK_INPUTS"
_LOAD_FAULTS = (
    *(RuntimeError, ValueError, OSError, ImportError, KeyError, zipfile.BadZipFile),
    *(TypeError, AttributeError),  # of another PyTorch, whose undocumented loader differs
)


def _load_package(path: str, runs: int, device_index: int) -> Value:
    """Return PyTorch's loader of a package, with its weights."""
    with zipfile.ZipFile(path) as archive:
        weights_apart = any("/data/weights/" in name for name in archive.namelist())
    if weights_apart:  # load_package does not read them, and a run without them ends the process
        from torch.export.pt2_archive._package import load_pt2

        how = {"num_runners": runs, "device_index": device_index, "load_weights_from_disk": True}
        return load_pt2(path, **how).aoti_runners["model"].loader
    # load_package would first compile and run test programs, for seconds to minutes, to compare CPUs
    return torch._C._aoti.AOTIModelPackageLoader(path, "model", False, runs, device_index)


class InductorProgram(Program):
    """A compiled library, which knows the positions of its arguments but neither types nor shapes."""

    writes: bool | None = True  # assumed: compiled code does not increment tensor versions
    storages: frozenset[int] = frozenset()  # results never share memory with the weights

    def __init__(self, path: Path, device: torch.device | None, model: str, *, runs: int = 1) -> None:
        """Load the package; up to `runs` runs are concurrent."""
        # without these checks the code reads past the end of a tensor smaller than it was compiled for
        os.environ.setdefault(_CHECKS, "1")
        index = -1 if device is None or device.index is None else device.index
        try:
            loader = _load_package(str(path), runs, index)
        except _LOAD_FAULTS as exc:
            raise _make_load_error(path, model, exc) from exc
        self.device = torch.device("cpu") if device is None else device
        compiled_for = loader.get_metadata().get("AOTI_DEVICE_KEY", self.device.type)
        if compiled_for != self.device.type:
            raise LoadError(
                f"model '{model}': '{path}' was compiled for {compiled_for} and its instance group asks for "
                f"{self.device.type}: set its kind, or compile it again"
            )
        if self.device.type == "cpu":
            log.warning(
                "model '%s': PyTorch runs AOTInductor packages while holding the GIL, so nothing else "
                "in the server runs meanwhile: prefer torch.export for runs longer than a millisecond",
                model,
            )
        given, made = (leaves_of(text) for text in loader.get_call_spec())
        self.interface = Interface(
            arguments=tuple(TensorSlot(name="", label=_label_argument(leaf)) for leaf in given),
            results=tuple(TensorSlot(name="", label="RESULT" + _format_path(leaf)) for leaf in made),
        )
        self._run = loader.boxed_run

    def run(self, values: list[Value]) -> Value:
        return self._run(values)
