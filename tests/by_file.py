"""How xdist gives tests to processes: a file at a time. Its groups have no effect with pytest 9.2."""

from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

_PAGES = "tests/e2e/test_documented_commands.py"


class FileScheduling(LoadScopeScheduling):  # type: ignore[misc]
    """Keeps the tests of a file in one process, where they share servers; but any process takes a page."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return nodeid if file == _PAGES else file
