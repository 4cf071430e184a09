"""Python models as their users write them, and repositories of them."""

from pathlib import Path

MODELS = Path(__file__).parent / "models"

FP32 = "data_type: TYPE_FP32 dims: [ -1 ]"
INT32 = "data_type: TYPE_INT32 dims: [ -1 ]"
STRING = "data_type: TYPE_STRING dims: [ -1 ]"

DECOUPLED = "model_transaction_policy { decoupled: true }"


def io(inputs: dict[str, str], outputs: dict[str, str]) -> str:
    """The inputs and outputs of a configuration."""
    return "".join(
        f"{kind} [{', '.join(f'{{ name: {name!r} {rest} }}' for name, rest in tensors.items())}]\n"
        for kind, tensors in (("input", inputs), ("output", outputs))
    )


SAME = io({"x": FP32}, {"y": FP32})


def add(repository: Path, name: str, code: str = "", config: str = SAME, version: str = "1") -> Path:
    """A model whose file is `models/<code>.py`; returns the directory of its version."""
    directory = repository / name / version
    directory.mkdir(parents=True)
    (directory / "model.py").write_text((MODELS / f"{code or name}.py").read_text(encoding="utf-8"))
    (repository / name / "config.pbtxt").write_text(f"backend: 'python'\n{config}", encoding="utf-8")
    return directory
