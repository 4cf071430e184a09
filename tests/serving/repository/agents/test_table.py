"""Finding a repository agent by its name."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serving.installed import install
from tests.serving.repository.agents.journal import Journal, asks_for
from tests.serving.repository.controlled import controlled, write
from tpx.errors import ConfigError, LoadError
from tpx.serving.repository.agents.ownership import AGENTS, agent, locate_code

NOWHERE = Path("/nowhere")
_AGENT = """
class Mine:
    def act(self, action, model):
        pass
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "site").mkdir()
    monkeypatch.syspath_prepend(tmp_path / "site")
    yield tmp_path / "site"
    sys.modules.pop("mine_agent", None)


def test_a_package_adds_an_agent(site: Path) -> None:
    install(site, "mine-agent", _AGENT, {AGENTS.group: {"mine": "mine_agent:Mine"}})
    assert type(agent("mine", NOWHERE)).__name__ == "Mine"
    assert locate_code("mine", NOWHERE) == "mine_agent"


def test_a_broken_package_is_named_with_its_cause(site: Path) -> None:
    install(site, "mine-agent", "class Mine: ...", {AGENTS.group: {"mine": "mine_agent:Mine"}})
    with pytest.raises(LoadError) as caught:
        agent("mine", NOWHERE)
    assert caught.value.message == (
        "repository agent 'mine' is added by the package mine-agent 1.0 (entry point mine_agent:Mine), which "
        "has no act"
    )


def test_the_directory_stands_before_packages_and_ours_before_both(site: Path, journal: Journal) -> None:
    install(site, "mine-agent", _AGENT, {AGENTS.group: {"journal": "mine_agent:Mine"}})
    journal.add("checksum", "raise RuntimeError")
    assert locate_code("journal", journal.agents) == str(journal.agents / "journal" / "agent.py")
    assert type(agent("journal", journal.agents)).__name__ == "RepositoryAgent"
    assert type(agent("checksum", journal.agents)).__name__ == "ChecksumAgent"
    assert locate_code("checksum", journal.agents) == "tpx.serving.repository.agents.checksum"


def test_every_load_has_an_agent_of_its_own(journal: Journal) -> None:
    assert agent("journal", journal.agents) is not agent("journal", journal.agents)
    assert agent("checksum", NOWHERE) is not agent("checksum", NOWHERE)


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("", "which has no class RepositoryAgent"),
        ("import nothing_like_this", "which cannot be imported: ModuleNotFoundError"),
        ("exit(3)", "which cannot be imported: SystemExit: 3"),
        ("RepositoryAgent = 1", "which is not a class"),
        ("class RepositoryAgent: ...", "which has no act"),
        ("class RepositoryAgent:\n  def __init__(self, x): ...", "which cannot be made: TypeError"),
    ],
)
def test_a_broken_file_is_named_with_its_cause(journal: Journal, source: str, why: str) -> None:
    path = journal.add("mine", source)
    with pytest.raises(LoadError) as caught:
        agent("mine", journal.agents)
    assert caught.value.message.startswith(f"repository agent 'mine' is '{path}', {why}")


@pytest.mark.parametrize("name", ["", "..", "../journal", "a/b", "a\0b", "/journal"])
def test_a_name_is_no_path(journal: Journal, name: str) -> None:
    with pytest.raises(ConfigError, match="unable to find repository agent"):
        agent(name, journal.agents / "journal")
    assert locate_code(name, journal.agents) == ""


def test_a_library_of_tritons_is_told_to_be_one(journal: Journal) -> None:
    library = journal.agents / "vault" / "libtritonrepoagent_vault.so"
    library.parent.mkdir()
    library.touch()
    with pytest.raises(ConfigError, match="has a library of Triton's, tpx supports only agents in Python"):
        agent("vault", journal.agents)


async def test_an_agent_in_a_package_is_told_of_a_model(site: Path, tmp_path: Path) -> None:
    told = tmp_path / "told"
    source = f"""
class Mine:
    def act(self, action, model):
        with open({str(told)!r}, "a") as file:
            size = model.config.max_batch_size
            file.write(f"{{action.value}} {{model.name}} {{size}} {{model.parameters}}\\n")
"""
    install(site, "mine-agent", source, {AGENTS.group: {"mine": "mine_agent:Mine"}})
    write(tmp_path / "models", 2)
    mine = 'name: "mine" parameters { key: "a" value: "b" }'
    asks_for(tmp_path / "models" / "net", mine, rest="max_batch_size: 3")
    async with controlled(tmp_path / "models") as it:
        await it.load()
    assert told.read_text().splitlines() == [
        f"{action} net 3 {{'a': 'b'}}" for action in ("LOAD", "LOAD_COMPLETE", "UNLOAD", "UNLOAD_COMPLETE")
    ]
