"""Repository agents in a directory that write down what they are told, and do as their parameters say."""

from pathlib import Path

_AGENT = """
import pathlib
import shutil
import time


class RepositoryAgent:
    def act(self, action, model):
        told = model.parameters
        with open({journal!r}, "a") as journal:
            journal.write(told.get("id", "") + action.value + "\\n")
        if told.get("fails at") == action.value:
            raise RuntimeError("I do not want to")
        if action.value == "LOAD" and "moves" in told:
            copy = model.acquire() / "copy"
            shutil.copytree(model.location, copy, ignore=shutil.ignore_patterns("config.pbtxt"))
            for name in filter(None, told["moves"].split()):
                (copy / name).rename(copy / name.removesuffix(".hidden"))
            model.use(copy)
        if action.value == "LOAD_COMPLETE" and "releases" in told:
            model.release()
        if action.value == told.get("waits at"):
            gate = pathlib.Path({gate!r})
            while not gate.exists():
                time.sleep(0.005)
"""


class Journal:
    """What was told to the agents called `journal`, in order."""

    def __init__(self, directory: Path) -> None:
        self.agents = directory / "agents"
        self.gate = directory / "gate"
        self._path = directory / "journal"
        text = _AGENT.format(journal=str(self._path), gate=str(self.gate))
        self.add("journal", text)

    def add(self, name: str, source: str) -> Path:
        """Put an agent into the directory."""
        path = self.agents / name / "agent.py"
        path.parent.mkdir(parents=True)
        path.write_text(source, encoding="utf-8")
        return path

    @property
    def lines(self) -> list[str]:
        return self._path.read_text().splitlines() if self._path.exists() else []


def asks_for(model: Path, *agents: str, rest: str = "") -> None:
    """Write the config.pbtxt of a model with these agents, each in the words of the configuration."""
    words = ", ".join(f"{{ {agent} }}" for agent in agents)
    model.mkdir(parents=True, exist_ok=True)
    text = f"model_repository_agents {{\n  agents [ {words} ]\n}}\n{rest}\n"
    (model / "config.pbtxt").write_text(text, encoding="utf-8")


def journals(**parameters: str) -> str:
    """The words for an agent that keeps the journal."""
    return 'name: "journal" ' + " ".join(
        f'parameters {{ key: "{key.replace("_", " ")}" value: "{value}" }}'
        for key, value in parameters.items()
    )
