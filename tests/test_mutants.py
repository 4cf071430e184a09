"""The faults that `tools/mutants.py` puts into a module: each is one change of what runs."""

from pathlib import Path

from tools.mutants import find_faults

MODULE = '''"""Says 1 < 2."""


def largest(numbers: "list[int]", most: int = 3) -> int:
    numbers.sort()
    if not most or numbers[-1] < most:
        return numbers[-1]
    return most
'''


def test_every_fault_is_a_change_of_one_line_that_runs(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text(MODULE)
    texts = [fault.text.decode() for fault in find_faults(module)]
    assert len(set(texts)) == len(texts)
    changed = set()
    for text in texts:
        lines = zip(MODULE.splitlines(), text.splitlines(), strict=True)
        [line] = [new.strip() for old, new in lines if new != old]
        changed.add(line)
    assert {
        *('def largest(numbers: "list[int]", most: int = (4)) -> int:', "pass", "return None"),
        *("if (not most and numbers[-1] < most):", "if not most or (numbers[-1] <= most):"),
        "if (most) or numbers[-1] < most:",
    } <= changed
