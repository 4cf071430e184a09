"""A warm server and what is loaded into it, over servers and controls that only remember."""

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any

import pytest

from tpx.analyzer.results.measurement import Configuration, Variant
from tpx.analyzer.runners.load import LoadGenerator
from tpx.analyzer.runners.loader import ServedRunner, configs_of
from tpx.analyzer.runners.servers import Addresses, Launch, refused
from tpx.analyzer.variants import configure
from tpx.errors import MeasurementError, ServerLost, WireError
from tpx.perf.clients.model import IndexEntry


class FakeControl:
    """Implements ModelControl over a table of states; `breaks` is how many loads end with a broken wire."""

    def __init__(self, *serving: str, breaks: int = 0) -> None:
        self.states = dict.fromkeys(serving, "READY")
        self.configs: dict[str, Mapping[str, Any] | None] = {}
        self.log: list[str] = []
        self.breaks = breaks

    async def live(self) -> bool:
        return True

    async def index(self) -> tuple[IndexEntry, ...]:
        return tuple(IndexEntry(name=name, state=state) for name, state in self.states.items())

    async def load(self, model: str, config: Mapping[str, Any] | None, timeout_s: float) -> None:
        self.log.append(f"load {model}")
        if self.breaks:
            self.breaks -= 1
            raise WireError("the connection broke")
        if model == "bad":
            raise refused(model, "load", "failed to load 'bad', no such file")
        self.states[model] = "READY"
        self.configs[model] = config

    async def unload(self, model: str) -> None:
        self.log.append(f"unload {model}")
        self.states[model] = "UNAVAILABLE"

    async def config(self, model: str) -> dict[str, Any]:
        return dict(self.configs[model] or {})


class FakeServer:
    """Implements ServerProcess; `dead` is its death."""

    def __init__(self, number: int, *, ours: bool) -> None:
        self.pid = number
        self.ours = ours
        self.addresses = Addresses(http="h:1", grpc="h:2")
        self.stopped_after_s: float | None = None
        self.dead = asyncio.get_running_loop().create_future()

    def log_tail(self) -> tuple[str, ...]:
        return ()

    async def died(self) -> str:
        return str(await asyncio.shield(self.dead))

    async def stop(self, patience_s: float = 10.0) -> None:
        self.stopped_after_s = patience_s


class Starts:
    """Remembers the servers that it started."""

    def __init__(self, *, ours: bool = True, lost: bool = False) -> None:
        self.ours = ours
        self.lost = lost
        self.started: list[FakeServer] = []

    async def __call__(self, launch: Launch, timeout_s: float) -> FakeServer:
        if self.lost and self.started:
            raise ServerLost("it no longer responds")
        self.started.append(FakeServer(len(self.started) + 1, ours=self.ours))
        return self.started[-1]


def serving(starts: Starts, control: FakeControl | None = None) -> ServedRunner:
    """A runner that only loads: of these servers, all with one control, or each with its own."""
    load = LoadGenerator(sessions={}, most_windows=1)
    return ServedRunner(
        starts,
        lambda _: control or FakeControl(),
        load,
        launch=lambda _: Launch(),
        timeout_s=1,
        limit_s=1,
    )


def run(steps: Coroutine[Any, Any, None]) -> None:
    asyncio.run(steps)


def test_variants_are_loaded_into_the_same_server_and_what_is_there_already_is_found() -> None:
    async def steps() -> None:
        starts, control = Starts(), FakeControl()
        server = serving(starts, control)
        how = [(await server.put(Launch(), {"m": config})).how for config in (None, None, {"n": 1})]
        assert how == ["started", "found", "loaded"]
        assert control.log == ["load m", "unload m", "load m"]
        assert control.configs["m"] == {"n": 1}
        assert len(starts.started) == 1
        await server.close()
        assert starts.started[0].stopped_after_s == 10

    run(steps())


def test_other_options_a_death_and_a_failed_measurement_are_reasons_for_another_server() -> None:
    async def steps() -> None:
        starts = Starts()
        server = serving(starts)
        await server.put(Launch(), {"m": None})
        other = await server.put(Launch(flags={"a": ("1",)}), {"m": None})
        assert (other.how, other.why) == ("restarted", "other options or environment of the server")
        starts.started[-1].dead.set_result("the server was killed")
        await asyncio.sleep(0)
        dead = await server.put(Launch(flags={"a": ("1",)}), {"m": None})
        assert (dead.how, dead.why) == ("restarted", "the server was killed")
        hanging = asyncio.create_task(asyncio.sleep(9))
        with pytest.raises(MeasurementError, match=r"no result after 0\.01 s \(--perf-analyzer-timeout"):
            await server.guard(hanging, 0.01)
        hanging.cancel()
        after = await server.put(Launch(flags={"a": ("1",)}), {"m": None})
        assert after.how == "restarted"
        assert after.why.startswith("the measurement before failed: no result after")
        assert starts.started[-2].stopped_after_s == 1, "what hangs gets little time to end"
        await server.close()

    run(steps())


def test_a_server_that_breaks_while_it_loads_gets_a_second_chance_and_no_third() -> None:
    async def steps() -> None:
        starts, control = Starts(), FakeControl(breaks=1)
        server = serving(starts, control)
        again = await server.put(Launch(), {"m": None})
        assert (again.how, again.why) == ("restarted", "the connection broke")
        control.breaks = 2
        with pytest.raises(
            MeasurementError, match="crashes when it loads this configuration: the connection"
        ):
            await server.put(Launch(), {"m": {"n": 1}})
        await server.close()

    run(steps())


def test_a_refused_configuration_leaves_the_server_to_the_next() -> None:
    async def steps() -> None:
        starts = Starts()
        server = serving(starts)
        with pytest.raises(MeasurementError, match="could not load model 'bad': no such file"):
            await server.put(Launch(), {"bad": None})
        assert (await server.put(Launch(), {"m": None})).how == "loaded"
        assert len(starts.started) == 1
        await server.close()

    run(steps())


def test_the_server_of_somebody_else_is_left_as_it_was_found() -> None:
    async def steps() -> None:
        control = FakeControl("theirs", "asked")
        server = serving(Starts(ours=False), control)
        await server.put(Launch(), {"asked": {"n": 1}, "new": None})
        await server.close()
        assert control.states == {"theirs": "READY", "asked": "READY", "new": "UNAVAILABLE"}
        assert control.configs["asked"] is None
        assert not any("theirs" in line for line in control.log)

    run(steps())


def test_a_lost_server_is_no_failed_trial() -> None:
    async def steps() -> None:
        server = serving(Starts(ours=False, lost=True))
        await server.put(Launch(), {"m": None})

        async def breaks() -> None:
            raise WireError("the connection broke")

        work = asyncio.create_task(breaks())
        with pytest.raises(ServerLost, match="no longer responds"):
            await server.guard(work, 1)
        await server.close()

    run(steps())


def test_what_a_server_has_is_asked_for_again_where_it_could_not_be_told() -> None:
    class Reluctant(FakeControl):
        async def index(self) -> tuple[IndexEntry, ...]:
            if not self.log:
                self.log.append("refused")
                raise MeasurementError("the server does not tell which models it has")
            return await super().index()

    async def steps() -> None:
        control = Reluctant("theirs")
        loader = serving(Starts(ours=False), control)
        with pytest.raises(MeasurementError, match="does not tell"):
            await loader.put(Launch(), {"m": None})
        await loader.put(Launch(), {"m": None})
        assert control.states == {"theirs": "READY", "m": "READY"}
        await loader.close()

    run(steps())


def test_what_came_along_with_a_model_goes_with_it() -> None:
    async def steps() -> None:
        control = FakeControl("theirs")
        loader = serving(Starts(), control)
        await loader.put(Launch(), {"ensemble": None})
        control.states["step"] = "READY"
        await loader.put(Launch(), {})
        assert control.states == {"theirs": "READY", "ensemble": "UNAVAILABLE", "step": "UNAVAILABLE"}

    run(steps())


def test_polling_servers_are_told_apart_from_bad_models() -> None:
    error = refused("m", "load", "explicit model load / unload is not allowed if polling is enabled")
    assert "--model-control-mode=explicit" in error.message
    assert "--reload-model-disable" in error.message


def configured(variant: Variant, *members: Configuration) -> Configuration:
    return Configuration(
        variant=variant,
        text="max_batch_size: 4\n",
        instance_group="1:CPU",
        instances=1,
        max_batch_size=4,
        dynamic_batching=False,
        members=members,
    )


def test_members_are_loaded_before_what_is_made_of_them() -> None:
    step = configured(Variant(models=("step",), name="step_config_0", delta={"max_batch_size": 4}))
    plain = configured(Variant(models=("plain",), name="plain_config_default"))
    top = Variant(models=("top",), name="top_config_0", members=(step.variant, plain.variant))
    found = configs_of(configured(top, step, plain))
    assert list(found) == ["step", "plain", "top"]
    assert found["plain"] is None
    assert found["top"] is None
    assert found["step"] is not None
    assert (found["step"]["name"], found["step"]["max_batch_size"]) == ("step", 4)

    together = Variant(models=("step", "plain"), name="x", members=(step.variant, plain.variant))
    assert list(configs_of(configured(together, step, plain))) == ["step", "plain"]

    logic = configured(Variant(models=("top",), name="top_config_1", delta={"max_batch_size": 2}))
    calls = Variant(models=("top",), name="both", members=(logic.variant, step.variant))
    found = configs_of(configured(calls, logic, step))
    assert list(found) == ["step", "top"]
    assert found["top"] is not None


STEP = {"model_name": "a", "model_version": -1, "input_map": {"x": "x"}, "output_map": {"y": "y"}}
TENSORS = {
    "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [2]}],
    "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [2]}],
}
DEFAULTS: dict[str, dict[str, Any]] = {
    "a": {"name": "a", "backend": "python", "max_batch_size": 4, **TENSORS},
    "ens": {
        "name": "ens",
        "platform": "ensemble",
        "max_batch_size": 4,
        "ensemble_scheduling": {"step": [STEP], "max_inflight_requests": 0},
        **TENSORS,
    },
}


def test_a_load_names_only_fields_that_are_set_so_that_an_older_server_takes_it() -> None:
    member = Variant(models=("a",), name="a_config_0", delta={"max_batch_size": 1, "dynamic_batching": {}})
    variant = Variant(models=("ens",), name="ens_config_0", delta={"max_batch_size": 1}, members=(member,))
    loads = configs_of(configure(variant, DEFAULTS["ens"], DEFAULTS))
    assert list(loads) == ["a", "ens"], "members come first"
    assert loads["ens"] == {
        "name": "ens",
        "platform": "ensemble",
        "max_batch_size": 1,
        "ensemble_scheduling": {"step": [STEP]},
        **TENSORS,
    }
    assert loads["a"] == {**DEFAULTS["a"], "max_batch_size": 1, "dynamic_batching": {}}
