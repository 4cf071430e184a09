"""Counts the small faults in modules that their tests notice, and prints those they do not.

`python tools/mutants.py tpx/perf/levels.py --tests tests/perf/test_levels.py --sample 20 --seed 1` copies the
tree and runs the tests on the copy once per fault. The same seed gives the same faults as long as the modules
stay the same: run it before and after a change of their tests.
"""

import argparse
import ast
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LEFT_OUT = shutil.ignore_patterns("__pycache__", "node_modules", ".*")
PAIRS: list[tuple[type[ast.AST], Any]] = [
    (ast.Lt, ast.LtE),
    (ast.Gt, ast.GtE),
    (ast.Eq, ast.NotEq),
    (ast.Is, ast.IsNot),
    (ast.In, ast.NotIn),
]
PAIRS += [(ast.And, ast.Or), (ast.Add, ast.Sub), (ast.Mult, ast.FloorDiv)]
OTHER: dict[type[ast.AST], Any] = dict(PAIRS) | {second: first for first, second in PAIRS}
NOT_RUN = ("annotation", "returns", "decorator_list")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A place in a module, and what stands there instead."""

    module: Path
    source: bytes
    first: int
    last: int
    new: str

    def __str__(self) -> str:
        line = self.source[: self.first].count(b"\n") + 1
        old = self.source[self.first : self.last].decode()
        old, new = (" ".join(text.split())[:60] for text in (old, self.new))
        return f"{self.module}:{line}: {old}  ->  {new}"

    @property
    def text(self) -> bytes:
        """The module with this fault."""
        return self.source[: self.first] + self.new.encode() + self.source[self.last :]


def find_faults(module: Path) -> Iterator[Fault]:
    """Yield the faults of a module in the order of its syntax tree."""
    source = module.read_bytes()
    lines = [0, *(i + 1 for i, byte in enumerate(source) if byte == ord("\n"))]
    for site in _sites(ast.parse(source)):
        first = lines[site.lineno - 1] + site.col_offset
        last = lines[site.end_lineno - 1] + site.end_col_offset
        for new in _changes(site):
            yield Fault(module=module, source=source, first=first, last=last, new=new)


def _sites(node: ast.AST) -> Iterator[Any]:
    """Yield what runs, except within f-strings: Python 3.11 does not tell where it is."""
    if isinstance(node, ast.JoinedStr):
        return
    if isinstance(node, ast.expr | ast.stmt):
        yield node
    for name, value in ast.iter_fields(node):
        if name not in NOT_RUN:
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from _sites(child)


def _changes(site: Any) -> Iterator[str]:
    """Yield what stands there in its faults."""
    match site:
        case ast.Compare(left=left, ops=[op, *ops], comparators=compared):
            yield f"({ast.unparse(ast.Compare(left, [OTHER[type(op)](), *ops], compared))})"
        case ast.BoolOp(op=op, values=values):
            yield f"({ast.unparse(ast.BoolOp(OTHER[type(op)](), values))})"
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OTHER:
            yield f"({ast.unparse(ast.BinOp(left, OTHER[type(op)](), right))})"
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield f"({ast.unparse(operand)})"
        case ast.Constant(value=bool(value)):
            yield str(not value)
        case ast.Constant(value=int(value) | float(value)):
            yield from (f"({value + 1})", f"({value - 1})")
        case ast.Return(value=ast.expr()):
            yield "return None"
        case ast.AugAssign() | ast.Raise() | ast.Delete() | ast.Expr(value=ast.Call() | ast.Await()):
            yield "pass"


def notices(copy: Path, tests: Sequence[str], limit_s: float | None = None) -> bool:
    """Return true if a test fails, or if they do not end in time."""
    ended = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-xq", "-p", "no:cacheprovider", "--hypothesis-profile=ci", *tests],
        cwd=copy,
        env={**os.environ, "PYTHONPATH": str(copy)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        return ended.wait(limit_s) != 0
    except subprocess.TimeoutExpired:
        os.killpg(ended.pid, signal.SIGKILL)  # with the servers that its tests began
        return True


def main() -> None:
    """Run the tests on a sample of the faults."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("modules", nargs="+", type=Path)
    parser.add_argument("--tests", nargs="+", required=True)
    parser.add_argument("--sample", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    faults = [fault for module in options.modules for fault in find_faults(module)]
    sample = random.Random(options.seed).sample(faults, min(options.sample, len(faults)))
    missed = 0
    with tempfile.TemporaryDirectory() as directory:
        copy = Path(directory)
        shutil.copytree(ROOT, copy, ignore=LEFT_OUT, dirs_exist_ok=True)
        begin = time.perf_counter()
        if notices(copy, options.tests):
            sys.exit("the tests fail without a fault")
        limit_s = 10 + 3 * (time.perf_counter() - begin)
        for fault in sample:
            (copy / fault.module).write_bytes(fault.text)
            if not notices(copy, options.tests, limit_s):
                missed += 1
                print(fault, flush=True)
            (copy / fault.module).write_bytes(fault.source)
    print(f"{len(sample) - missed} of {len(sample)} faults noticed ({len(faults)} in all)")


if __name__ == "__main__":
    main()
