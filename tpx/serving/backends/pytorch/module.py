"""Modules: `nn.Module` classes in Python files and TorchScript archives.

A Python file is used like in Triton's "PyTorch runtime" (pytorch_backend/src/model.py); a TorchScript
archive (`model.pt`) is written by torch.jit.save.
"""

import inspect
import logging
import pickle
import sys
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from tpx.errors import ConfigError, LoadError, TpxError
from tpx.protocol.json_values import JsonObject
from tpx.serving.backends.pytorch.program import (
    Interface,
    Program,
    TensorSlot,
    Value,
    storages_of,
)
from tpx.serving.extensions import foreign

SUFFIXES = (".safetensors", ".pt")


def weights_file(module_file: Path) -> Path | None:
    """Return the weights file beside `model.py`, None if there is none. Raises LoadError if there are two."""
    found = [path for path in map(module_file.with_suffix, SUFFIXES) if path.is_file()]
    if len(found) > 1:
        raise LoadError(f"'{found[0]}' and '{found[1]}' are both weights of '{module_file.name}': remove one")
    return found[0] if found else None


def read_weights(path: Path, device: torch.device) -> Mapping[str, torch.Tensor]:
    """Read a state dict. Raises LoadError."""
    try:
        if path.suffix == ".safetensors":
            weights = _read_safetensors(path, device)
        else:
            weights = torch.load(path, map_location=device, weights_only=True)
    except pickle.UnpicklingError as exc:
        raise LoadError(
            f"'{path}' contains more than tensors, and reading it could run arbitrary code: save "
            f"model.state_dict(), or safetensors ({str(exc).splitlines()[0]})"
        ) from exc
    except (RuntimeError, ValueError, OSError, EOFError) as exc:
        raise LoadError(f"cannot read the weights in '{path}': {exc}") from exc
    if not isinstance(weights, Mapping) or not all(
        isinstance(value, torch.Tensor) for value in weights.values()
    ):
        raise LoadError(
            f"'{path}' contains a {type(weights).__name__}, not a state dict: save model.state_dict()"
        )
    return weights


def _read_safetensors(path: Path, device: torch.device) -> Value:
    try:
        import safetensors
        import safetensors.torch
    except ImportError as exc:
        raise LoadError(f"reading '{path}' needs the package safetensors: pip install 'tpx[torch]'") from exc
    try:
        return safetensors.torch.load_file(path, device=str(device))
    except safetensors.SafetensorError as exc:
        raise LoadError(f"cannot read the weights in '{path}': {exc}") from exc


log = logging.getLogger(__name__)

CLASS_PARAMETER = "MODULE_CLASS"
_numbers = count()
_DICTS = ("dict[", "Dict[", "typing.Dict[", "Mapping[", "typing.Mapping[", "collections.abc.Mapping[")
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class ModuleProgram(Program):
    """An instance of the class with its weights, in evaluation mode."""

    def __init__(self, path: Path, device: torch.device | None, model: str, *, class_name: str = "") -> None:
        """With `device` None the module stays where its constructor puts it. Raises LoadError."""
        self._python = _import_file(path, model)
        try:
            found = _find_class(self._python, class_name, path, model)
            what = f"class '{found.__name__}' of '{path}' cannot be made without arguments"
            with foreign(f"failed to load model '{model}': {what}: "):
                module: Value = found()
            weights = weights_file(path)
            if weights is None:
                log.info("model '%s' has no weights file beside '%s'", model, path.name)
            else:
                state = read_weights(weights, device or torch.device("cpu"))
                try:
                    module.load_state_dict(state)
                except RuntimeError as exc:
                    raise LoadError(
                        f"failed to load model '{model}': '{weights}' does not fit its class: {exc}"
                    ) from exc
        except BaseException:
            sys.modules.pop(self._python.__name__, None)
            raise
        if device is not None:
            module.to(device)
        module.eval()
        first = next(module.parameters(), None)
        self.device = device or (first.device if first is not None else torch.device("cpu"))
        self.storages = storages_of(module)
        self._module = module
        self._call = module
        parameters = list(inspect.signature(module.forward).parameters.values())
        named = [p for p in parameters if p.kind in _POSITIONAL]
        keywords = [p for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY]
        self._keywords = [p.name for p in keywords]
        is_dict = len(parameters) == 1 and len(named) == 1 and _format_annotation(named[0]).startswith(_DICTS)
        any_number = any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters)
        unknown = is_dict or (any_number and not named and not keywords)
        slots = [
            TensorSlot(
                name=p.name,
                required=p.default is p.empty,
                default=None if p.default is p.empty else p.default,
            )
            for p in (*named, *keywords)
        ]
        self.interface = Interface(arguments=None if unknown else tuple(slots), takes_dict=is_dict)

    def compile(self, options: JsonObject) -> None:
        """Apply torch.compile, which compiles during the first run."""
        self._call = torch.compile(self._module, **options)

    def run(self, values: list[Value]) -> Value:
        if not self._keywords:
            return self._call(*values)
        first = len(values) - len(self._keywords)
        return self._call(*values[:first], **dict(zip(self._keywords, values[first:], strict=True)))

    def close(self) -> None:
        """Remove the imported file from `sys.modules`."""
        sys.modules.pop(self._python.__name__, None)


def _import_file(path: Path, model: str) -> ModuleType:
    """Import the file as a uniquely named module, which may use relative imports (`from .layers import
    ...`).

    No bytecode is written beside it, and modules of different models do not collide.
    """
    module = ModuleType(f"tpx_model_{next(_numbers)}")
    module.__file__ = str(path)
    module.__path__ = [str(path.parent)]
    module.__package__ = module.__name__
    sys.modules[module.__name__] = module
    try:
        with foreign(f"failed to load model '{model}': importing '{path}' fails: "):
            exec(compile(path.read_bytes(), str(path), "exec"), module.__dict__)
    except TpxError:
        sys.modules.pop(module.__name__, None)
        raise
    return module


def _find_class(module: ModuleType, name: str, path: Path, model: str) -> type:
    """Return the named or alphabetically first class, like Triton; the file's own precede imported ones."""
    classes = {
        key: value
        for key, value in sorted(vars(module).items())
        if isinstance(value, type)
        and issubclass(value, torch.nn.Module)
        and not value.__module__.startswith("torch.")
    }
    if name:
        if name not in classes:
            raise LoadError(
                f"model '{model}': '{path}' has no class '{name}' that is an nn.Module (has: "
                f"{', '.join(classes) or 'none'}), which its parameter {CLASS_PARAMETER} names"
            )
        return classes[name]
    own = [value for value in classes.values() if value.__module__ == module.__name__] or [*classes.values()]
    if not own:
        raise LoadError(f"model '{model}': Cannot find a subclass of torch.nn.Module in '{path}'")
    if len(own) > 1:
        log.warning(
            "model '%s': '%s' has the classes %s; '%s' is used as the model: parameter %s selects another",
            model,
            path,
            ", ".join(each.__name__ for each in own),
            own[0].__name__,
            CLASS_PARAMETER,
        )
    return own[0]


def _format_annotation(parameter: inspect.Parameter) -> str:
    annotation = parameter.annotation
    return annotation if isinstance(annotation, str) else str(annotation)


_DICT = "Dict[str, Tensor]"


class TorchScriptProgram(Program):
    """A scripted or traced module."""

    def __init__(self, path: Path, device: torch.device | None, model: str) -> None:
        """With `device` None the module stays on the devices that its archive specifies."""
        try:
            self._module: Value = torch.jit.load(str(path), map_location=device)
        except (RuntimeError, ValueError, OSError) as exc:
            raise LoadError(f"failed to load model '{model}': '{path}': {exc}") from exc
        self.device = device or torch.device("cpu")
        self.storages = storages_of(self._module)
        self.work_depends_on_values = _works_longer(self._module.inlined_graph, set())
        self._forward = self._module.forward
        arguments = self._forward.schema.arguments[1:]  # the first is the module itself
        if len(arguments) == 1 and str(arguments[0].type) == _DICT:
            self.interface = Interface(arguments=None, takes_dict=True)
        else:
            slots = tuple(_make_slot(argument, model) for argument in arguments)
            self.interface = Interface(arguments=slots)
        if getattr(self._module, "training", False):
            log.warning(
                "model '%s' was saved in training mode, in which dropout and batch normalization behave "
                "as in training: call eval() before saving it",
                model,
            )

    def run(self, values: list[Value]) -> Value:
        return self._forward(*values)


_SIZES = ("aten::size", "aten::len", "aten::dim", "aten::numel")
_NUMBERS = ("aten::Bool", "aten::Int", "aten::IntImplicit", "aten::item", "prim::tolist")
"""Operators that turn the values of a tensor into numbers: of repetitions, a size, or a condition."""
_SELECTIONS = (
    "aten::_unique2", "aten::argwhere", "aten::masked_select", "aten::nonzero", "aten::nonzero_numpy",
    "aten::repeat_interleave", "aten::unique_consecutive", "aten::unique_dim", "torchvision::nms",
    "torchvision::roi_align",
)  # fmt: skip
"""Operators whose work or size of output the values of a tensor decide."""


def _works_longer(block: Value, around: set[str], *, loops: bool = False) -> bool:
    """Return True if the values of inputs, not only their sizes, may decide how long a graph or block of
    TorchScript computes. `around` are names of values outside of it that depend on them.
    """
    varying = around | {value.debugName() for value in block.inputs()}
    for node in block.nodes():
        depends = any(value.debugName() in varying for value in node.inputs())
        blocks = list(node.blocks())
        if depends and node.kind() in (*_NUMBERS, *_SELECTIONS):
            return True
        if any(_works_longer(each, varying, loops=node.kind() == "prim::Loop") for each in blocks):
            return True
        if (depends or blocks) and node.kind() not in _SIZES:
            varying.update(value.debugName() for value in node.outputs())
    # the first output of a loop is its condition, constant in one that counts
    return loops and next(block.outputs()).debugName() in varying


def _make_slot(argument: Any, model: str) -> TensorSlot:
    kind = str(argument.type)
    optional = argument.has_default_value() or kind.startswith("Optional[")
    if kind not in ("Tensor", "List[str]") and not optional:
        if kind.startswith("Dict["):
            raise ConfigError(
                f"unable to load model '{model}', its forward takes the dict '{argument.name}' ({kind}) "
                "beside other inputs. Only a single input of type Dict(str, Tensor) is supported."
            )
        raise ConfigError(
            f"unable to load model '{model}', An input of type '{kind}' was detected in the model: "
            f"'{argument.name}'. Only a single input of type Dict(str, Tensor) or input(s) of type Tensor "
            "are supported."
        )
    default = argument.default_value if argument.has_default_value() else None
    return TensorSlot(name=argument.name, required=not optional, default=default)
