"""The states of versions, step by step, and plans of loads: no files, no threads."""

import asyncio
from collections.abc import Iterator

import pytest

from tests.serving.fakes import FakeModel, config_of, signature_of
from tpx.errors import NotFound, NotReady
from tpx.serving.model import ModelParts, ServedModel
from tpx.serving.model_id import ModelId
from tpx.serving.repository.discovery import Stamps
from tpx.serving.repository.records import Fingerprint, Loaded, Plan, plan_load
from tpx.serving.repository.table import AmbiguousName, ModelRepository
from tpx.serving.scheduling.direct import DirectScheduler
from tpx.serving.stacking.plain import PlainStacking

NET = ModelId("net")
PLAN = Plan(load=(1,), keep=(), unload=())
STAMPS = Stamps(config="", shared="", versions={})


class Scene:
    """A repository, and models for it that nobody computes."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.repository = ModelRepository()

    def made(self, version: int, name: str = "net") -> Loaded:
        config = config_of(name)
        served = ServedModel(
            config,
            version,
            ModelParts(
                signature=signature_of(config),
                scheduler=DirectScheduler(),
                stacking=PlainStacking(batched=True),
                opened=FakeModel(),
            ),
            self._loop,
            inline_below_ns=0,
        )
        return Loaded(
            served=served,
            fingerprint=Fingerprint(config=b"", groups=b"", directory=str(id(served)), shared="", files=""),
        )

    def load(self, *versions: int, keep: tuple[int, ...] = (), unload: tuple[int, ...] = ()) -> list[Loaded]:
        plan = Plan(load=versions, keep=keep, unload=unload)
        self.repository.begin(NET, plan)
        made = {version: self.made(version) for version in versions}
        return self.repository.succeed(NET, plan, made, STAMPS)

    @property
    def states(self) -> dict[int | None, tuple[str | None, str]]:
        return {
            entry.version: (entry.state.value if entry.state else None, entry.reason)
            for _, entry in self.repository.index()
        }


@pytest.fixture
def scene() -> Iterator[Scene]:
    """An empty repository."""
    loop = asyncio.new_event_loop()
    yield Scene(loop)
    loop.close()


def test_a_first_load_is_loading_then_ready(scene: Scene) -> None:
    scene.repository.begin(NET, PLAN)
    assert scene.states == {1: ("LOADING", "")}
    assert not scene.repository.all_ready()
    with pytest.raises(NotReady):
        scene.repository.get("net", "1")
    made = scene.made(1)
    assert scene.repository.succeed(NET, PLAN, {1: made}, STAMPS) == []
    assert scene.states == {1: ("READY", "")}
    assert scene.repository.get("net") is made.served
    assert scene.repository.all_ready()


def test_a_version_that_is_loaded_again_serves_until_the_new_one_does(scene: Scene) -> None:
    scene.load(1)
    old, generation = scene.repository.get("net"), scene.repository.generation
    scene.repository.begin(NET, PLAN)
    assert scene.states == {1: ("READY", "")}
    assert scene.repository.get("net") is old
    assert scene.repository.generation == generation
    made = scene.made(1)
    [ended] = scene.repository.succeed(NET, PLAN, {1: made}, STAMPS)
    assert ended.served is old
    assert scene.repository.get("net") is made.served
    assert scene.repository.generation > generation
    scene.repository.ended(old)
    assert scene.states == {1: ("READY", "")}


def test_versions_that_are_not_wanted_end_with_the_swap(scene: Scene) -> None:
    scene.load(1, 2)
    two = scene.repository.get("net", "2")
    ended = scene.load(3, keep=(2,), unload=(1,))
    assert [loaded.served.version for loaded in ended] == [1]
    assert scene.states == {1: ("UNLOADING", ""), 2: ("READY", ""), 3: ("READY", "")}
    assert scene.repository.all_ready()
    assert scene.repository.get("net", "2") is two
    scene.repository.ended(ended[0].served)
    assert scene.states[1] == ("UNAVAILABLE", "unloaded")
    assert scene.repository.all_ready()


def test_a_load_that_fails_leaves_what_serves(scene: Scene) -> None:
    scene.load(1)
    old = scene.repository.get("net")
    scene.repository.begin(NET, Plan(load=(1, 2), keep=(), unload=()))
    assert scene.states == {1: ("READY", ""), 2: ("LOADING", "")}
    scene.repository.fail(NET, {1: "broken", 2: "broken, too"})
    assert scene.states == {1: ("READY", ""), 2: ("UNAVAILABLE", "broken, too")}
    assert scene.repository.get("net") is old
    assert not scene.repository.all_ready()
    assert scene.repository.stamps() == {NET: None}


def test_a_version_that_failed_is_forgotten_when_nobody_wants_it(scene: Scene) -> None:
    scene.repository.begin(NET, Plan(load=(1, 2), keep=(), unload=()))
    scene.repository.fail(NET, {1: "unloaded: another", 2: "broken"})
    scene.load(1)
    assert scene.states == {1: ("READY", "")}
    assert scene.repository.all_ready()


def test_an_unloaded_model_is_unavailable_once_its_requests_are_answered(scene: Scene) -> None:
    scene.load(1, 2)
    ended = scene.repository.unload(NET)
    assert scene.states == {1: ("UNLOADING", ""), 2: ("UNLOADING", "")}
    with pytest.raises(NotFound, match="has no available versions"):
        scene.repository.get("net")
    for loaded in ended:
        scene.repository.ended(loaded.served)
    assert scene.states == {1: ("UNAVAILABLE", "unloaded"), 2: ("UNAVAILABLE", "unloaded")}
    assert scene.repository.all_ready()
    assert scene.repository.failures() == []
    assert scene.repository.stamps() == {}


def test_a_model_that_is_loaded_while_it_unloads_is_ready(scene: Scene) -> None:
    scene.load(1)
    [ended] = scene.repository.unload(NET)
    scene.repository.begin(NET, PLAN)
    assert scene.states == {1: ("LOADING", "")}
    scene.repository.ended(ended.served)
    assert scene.states == {1: ("LOADING", "")}
    scene.repository.succeed(NET, PLAN, {1: scene.made(1)}, STAMPS)
    assert scene.states == {1: ("READY", "")}


def test_a_model_that_cannot_be_told_is_known_unless_it_serves(scene: Scene) -> None:
    scene.repository.fault(NET, "unreadable")
    assert scene.states == {None: ("UNAVAILABLE", "unreadable")}
    assert not scene.repository.all_ready()
    assert scene.repository.failures() == ["net"]
    scene.repository.fault(NET, "no model", skipped=True)
    assert scene.repository.all_ready()
    assert scene.repository.failures() == ["net"]
    scene.load(1)
    assert scene.states == {1: ("READY", "")}
    scene.repository.fault(NET, "unreadable again")
    assert scene.states == {1: ("READY", "")}
    assert scene.repository.all_ready()
    assert scene.repository.stamps() == {NET: None}


def test_unloading_what_is_not_there_is_no_matter(scene: Scene) -> None:
    assert scene.repository.unload(ModelId("nobody")) == []
    scene.repository.fault(NET, "unreadable")
    assert scene.repository.unload(NET) == []
    assert scene.states == {}


def test_the_index_names_what_was_never_loaded(scene: Scene) -> None:
    scene.load(1)
    on_disk = {NET: "", ModelId("other"): "", ModelId("twice"): "model appears in two or more repositories"}
    index = scene.repository.index(on_disk)
    told = [(model.name, entry.version, entry.state and entry.state.value) for model, entry in index]
    assert told == [("net", 1, "READY"), ("other", None, None), ("twice", None, "UNAVAILABLE")]


def test_what_is_gone_is_forgotten_unless_it_serves_or_ends(scene: Scene) -> None:
    scene.load(1)
    scene.repository.fault(ModelId("broken"), "unreadable")
    scene.repository.forget([])
    assert list(scene.states) == [1]
    [ended] = scene.repository.unload(NET)
    scene.repository.forget([])
    assert list(scene.states) == [1]
    scene.repository.ended(ended.served)
    scene.repository.forget([NET])
    assert list(scene.states) == [1]
    scene.repository.forget([])
    assert scene.states == {}


def test_what_a_model_was_made_from_is_told_of_what_serves_only(scene: Scene) -> None:
    scene.load(1, 2)
    assert set(scene.repository.fingerprints(NET)) == {1, 2}
    scene.repository.unload(NET)
    assert scene.repository.fingerprints(NET) == {}
    assert scene.repository.fingerprints(ModelId("nobody")) == {}


def test_a_name_means_who_serves_until_the_first_load_of_another_has_ended(scene: Scene) -> None:
    repository = ModelRepository(namespaces=True)
    here, there = ModelId("net", "/here"), ModelId("net", "/there")
    repository.begin(there, PLAN)
    assert repository.resolve("net") == there, "while there is no other, it is the one that will be"
    repository.succeed(there, PLAN, {1: scene.made(1)}, STAMPS)
    repository.begin(here, PLAN)
    assert repository.resolve("net") == there
    generation = repository.generation
    repository.fail(here, {1: "broken"})
    with pytest.raises(AmbiguousName):
        repository.resolve("net")
    assert repository.generation != generation, "who remembers what the name meant asks again"
    repository.unload(here)
    assert repository.resolve("net") == there


def fingerprint(
    files: str = "a", *, config: bytes = b"", shared: str = "", directory: str = "d", groups: bytes = b""
) -> Fingerprint:
    """What a version is made from."""
    return Fingerprint(config=config, groups=groups, directory=directory, shared=shared, files=files)


def test_what_is_new_is_loaded_and_what_is_the_same_stays() -> None:
    plan = plan_load({3: fingerprint(), 2: fingerprint(), 1: fingerprint()}, {2: fingerprint()})
    assert (plan.load, plan.keep, plan.unload) == ((1, 3), (2,), ())


@pytest.mark.parametrize(
    "changed",
    [fingerprint("b"), fingerprint(config=b"x"), fingerprint(shared="x"), fingerprint(directory="e")],
)
def test_a_version_whose_making_changed_is_loaded_again(changed: Fingerprint) -> None:
    plan = plan_load({1: changed, 2: fingerprint()}, {1: fingerprint(), 2: fingerprint()})
    assert (plan.load, plan.keep, plan.unload) == ((1,), (2,), ())


def test_versions_that_are_not_wanted_any_more_are_unloaded() -> None:
    plan = plan_load({3: fingerprint()}, {1: fingerprint(), 2: fingerprint(), 3: fingerprint()})
    assert (plan.load, plan.keep, plan.unload) == ((), (3,), (1, 2))
