"""The budgets of the house style, over our own code and tests."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = [path for folder in ("tpx", "tests") for path in sorted((ROOT / folder).rglob("*.py"))]
CODE = [path for path in FILES if path.is_relative_to(ROOT / "tpx")]

MAX_LINES, MANY_LINES = 600, 300
"""No file is longer than the first, and nine in ten are at most as long as the second."""
VAGUE_MODULES = {"utils", "util", "common", "helpers", "helper", "misc"}
VAGUE_CLASS = re.compile(r"(Manager|Factory|Helper|Processor|Handler|Info)$")

# Exceptions of any kind are caught where one of them must not take others along, and nowhere else:
BOUNDARIES = {
    # one request: whatever happens, it is answered, and so are the others
    "tpx/serving/frontends/http_infer.py": 1,
    "tpx/serving/frontends/http.py": 1,
    "tpx/serving/frontends/http_verbs.py": 2,
    "tpx/serving/frontends/inference.py": 2,
    "tpx/serving/frontends/grpc_verbs.py": 2,
    "tpx/serving/frontends/grpc_reflection.py": 1,
    "tpx/serving/frontends/grpc_infer.py": 2,
    "tpx/serving/frontends/grpc_stream.py": 2,
    "tpx/serving/frontends/http_generate.py": 1,
    "tpx/serving/model.py": 1,
    "tpx/serving/ensemble/model.py": 1,
    # one process of a server with --frontends: the channel to another one, and the end of a forked one
    "tpx/serving/processes/channel.py": 1,
    "tpx/serving/processes/peer_requests.py": 1,
    "tpx/serving/processes/remote.py": 1,
    "tpx/serving/processes/supervisor.py": 1,
    # one worker's loop: an instance computes on, the other models load, the other probes measure on
    "tpx/serving/frontends/metrics/machine.py": 1,
    "tpx/serving/instances/thread.py": 1,
    "tpx/serving/instances/decoupled.py": 1,
    "tpx/serving/repository/coordinator.py": 1,
    "tpx/serving/repository/loads.py": 2,
    # one model's process, at both ends: what a user's code raises is told, and its process can be ended alone
    "tpx/serving/backends/python/lifecycle.py": 1,
    "tpx/serving/backends/python/services.py": 1,
    "tpx/serving/backends/language/generation.py": 2,
    "tpx/serving/backends/python/worker/execution.py": 1,
    "tpx/serving/backends/python/worker/main.py": 4,
    # a thread of the Python API: what ended it is raised again in the thread of whoever called
    "tpx/api/serving.py": 2,
    "tpx/perf/inputs/texts.py": 1,
    # what packages add, backends and repository agents: whatever their code raises becomes an error of ours
    "tpx/serving/extensions.py": 1,
    # a PyTorch model that is a Python file runs in the server: whatever its code raises is told
    "tpx/serving/backends/pytorch/execution.py": 1,
}
# They are let through, after something was put in order; `except BaseException: ...; raise`.
CLEANING_UP = {
    "tpx/analyzer/runners/local.py": 1,
    "tpx/api/serving.py": 1,
    "tpx/perf/loads/workers.py": 1,
    "tpx/perf/report/recorders.py": 1,
    "tpx/serving/backends/python/backend.py": 1,
    "tpx/serving/backends/python/process.py": 1,
    "tpx/serving/backends/pytorch/module.py": 1,
    "tpx/serving/model.py": 1,
    "tpx/serving/repository/loading.py": 2,
    "tpx/serving/repository/discovery.py": 1,
}


VAGUE_OPENINGS = {"Of", "Those", "It", "Nobody", "Who", "What", "Whether"}
"""First words of docstrings that say neither what a function does nor what a class is."""

TRITONS_CLASSES = {"ErrorCode", "Tensor"}
"""Names that Python models import from Triton's stub, and that the protocol has too."""

ANY_BUDGET = 290
"""Uses of `Any` in tpx; lower it when there are fewer."""


def name_of(path: Path) -> str:
    """The path as one writes it."""
    return path.relative_to(ROOT).as_posix()


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the tests ask of a file; its syntax tree is a hundred times as large."""

    any_uses: list[int]
    """Lines with the name `Any` in annotations and values; imports of it do not count."""
    docstrings: list[str]
    """All of them, those of attributes included."""
    top_classes: list[str]
    undocumented: list[str]
    """Public names without a docstring, "" for the module itself."""
    catch_alls: list[bool]
    """For each handler of exceptions of any kind, whether it passes them on."""


@cache
def facts() -> dict[Path, Facts]:
    """The facts of our files but the tests, each parsed and walked once."""
    return {path: read_facts(path) for path in CODE}


_TELLING = {ast.Name, ast.Expr, ast.ExceptHandler}
"""The nodes that say something; nine in ten are others."""


def read_facts(path: Path) -> Facts:
    """The facts of one file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = Facts(
        any_uses=[],
        docstrings=[],
        top_classes=[node.name for node in tree.body if isinstance(node, ast.ClassDef)],
        undocumented=list(_find_undocumented(path, tree)),
        catch_alls=[],
    )
    for node in ast.walk(tree):
        if type(node) not in _TELLING:
            continue
        match node:
            case ast.Name(id="Any", lineno=line):
                found.any_uses.append(line)
            case ast.Expr(value=ast.Constant(value=str(text))):
                found.docstrings.append(text)
            case ast.ExceptHandler() if _catches_all(node):
                last = node.body[-1]
                found.catch_alls.append(isinstance(last, ast.Raise) and last.exc is None)
    return found


def _find_undocumented(path: Path, tree: ast.Module) -> Iterator[str]:
    if path.name != "__init__.py" and ast.get_docstring(tree) is None:
        yield ""
    for node in tree.body:
        if (
            isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            and not node.name.startswith("_")
            and ast.get_docstring(node) is None
        ):
            yield node.name


def _catches_all(handler: ast.ExceptHandler) -> bool:
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(kind is None or ast.unparse(kind) in ("Exception", "BaseException") for kind in kinds)


def test_there_is_something_to_look_at() -> None:
    assert len(CODE) > 100
    assert len(FILES) > len(CODE)


def test_every_file_is_short_enough_to_be_one_idea() -> None:
    lengths = {name_of(path): len(path.read_text(encoding="utf-8").splitlines()) for path in FILES}
    assert {name: length for name, length in lengths.items() if length > MAX_LINES} == {}
    assert sum(length > MANY_LINES for length in lengths.values()) <= len(lengths) / 10


def test_no_module_is_a_drawer_for_everything() -> None:
    assert [name_of(path) for path in FILES if path.stem in VAGUE_MODULES] == []


def test_any_is_used_less_and_less() -> None:
    count = sum(len(facts()[path].any_uses) for path in CODE)
    assert count <= ANY_BUDGET, f"{count} uses of Any: give these values a type"


def test_docstrings_begin_with_a_verb_or_their_subject() -> None:
    openings = [
        f"{name_of(path)}: {text.split(maxsplit=5)[:5]}"
        for path in CODE
        for text in facts()[path].docstrings
        if text.split()[0].rstrip(",.:") in VAGUE_OPENINGS
    ]
    assert openings == []


def test_a_class_name_exists_once() -> None:
    places: dict[str, list[str]] = {}
    for path in CODE:
        for name in facts()[path].top_classes:
            places.setdefault(name, []).append(name_of(path))
    twice = {name: found for name, found in places.items() if len(found) > 1 and name not in TRITONS_CLASSES}
    assert twice == {}


def test_no_class_hides_what_it_is_behind_a_word() -> None:
    vague = [
        f"{name_of(path)}: {name}"
        for path in FILES
        for name in re.findall(r"^ *class (\w+)[(:]", path.read_text(encoding="utf-8"), re.M)
        if VAGUE_CLASS.search(name)
    ]
    assert vague == []


def test_every_module_and_everything_public_in_it_says_what_it_is() -> None:
    silent = [f"{name_of(path)}: {name}" for path in CODE for name in facts()[path].undocumented]
    assert silent == []


@pytest.mark.parametrize(
    ("allowed", "passing_on"), [(BOUNDARIES, False), (CLEANING_UP, True)], ids=["boundaries", "cleaning up"]
)
def test_exceptions_of_any_kind_are_caught_only_at_a_boundary(
    allowed: dict[str, int], passing_on: bool
) -> None:
    counts = {name_of(path): facts()[path].catch_alls.count(passing_on) for path in CODE}
    assert {name: count for name, count in counts.items() if count} == allowed


def test_nothing_is_left_to_be_done_later() -> None:
    mark = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
    left = [
        f"{name_of(path)}:{number}"
        for path in FILES
        if path != Path(__file__)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if mark.search(line)
    ]
    assert left == []


def test_the_architecture_page_is_short_and_names_what_there_is() -> None:
    page = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    assert len(page.splitlines()) <= 150
    named = re.findall(
        r"`((?:tpx|protocol|serving|perf|analyzer|cli|report|docs|benchmarks)/[\w/.*-]+)`", page
    )
    missing = [name for name in named if not any((ROOT / top / name).exists() for top in ("", "tpx"))]
    assert [name for name in missing if "*" not in name] == []
    assert named
