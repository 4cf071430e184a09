"""Loading and unloading while the server serves."""

import asyncio
import json
import threading
from pathlib import Path

import pytest

from tests.serving.repository.controlled import ask, controlled, times, write
from tpx.errors import InvalidRequest, NotReady
from tpx.protocol.v2 import LoadParameter
from tpx.serving.model_id import ModelId

ALL = "version_policy { all { } } "


def left(directory: Path) -> int:
    """How much lies in a directory."""
    return len(list(directory.iterdir()))


def instance_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("net_")]


async def test_a_model_is_loaded_changed_and_unloaded(tmp_path: Path) -> None:
    async with controlled(tmp_path) as it:
        assert it.states == {}
        write(tmp_path, 2)
        await it.load()
        assert it.states == {"net:1": "READY"}
        assert await it.factor() == 2
        write(tmp_path, 3)
        assert await it.factor() == 2
        await it.load()
        assert await it.factor() == 3
        await it.unload()
        assert it.states["net:1"] in ("UNLOADING", "UNAVAILABLE unloaded")
        await it.until(lambda: it.states == {"net:1": "UNAVAILABLE unloaded"})
        await it.until(lambda: instance_threads() == [])  # the one before may end after this one
        await it.load()
        assert await it.factor() == 3


async def test_what_has_not_changed_is_not_loaded_again(tmp_path: Path) -> None:
    write(tmp_path, 2)
    async with controlled(tmp_path) as it:
        await it.load()
        before = it.repository.get("net")
        await it.load()
        assert it.repository.get("net") is before
        (tmp_path / "net" / "config.pbtxt").write_text("max_batch_size: 8")
        await it.load()
        assert it.repository.get("net") is not before
        assert it.repository.get("net").config.max_batch_size == 8


async def test_a_version_that_requests_cannot_name_is_loaded_again(tmp_path: Path) -> None:
    write(tmp_path, 2, version=0)
    async with controlled(tmp_path) as it:
        await it.load()
        write(tmp_path, 3, version=0)
        await it.load()
        assert await it.factor() == 3


async def test_a_new_version_leaves_the_loaded_ones_alone(tmp_path: Path) -> None:
    write(tmp_path, 2)
    config = tmp_path / "net" / "config.pbtxt"
    config.write_text(ALL)
    async with controlled(tmp_path) as it:
        await it.load()
        one = it.repository.get("net", "1")
        write(tmp_path, 3, version=2)
        await it.load()
        assert it.repository.get("net", "1") is one
        assert await it.factor() == 3
        assert it.states == {"net:1": "READY", "net:2": "READY"}
        config.write_text("version_policy { latest { num_versions: 1 } }")
        two = it.repository.get("net", "2")
        await it.load()
        assert it.repository.get("net") is two
        assert two.config.version_policy.latest.num_versions == 1
        await it.until(lambda: it.states == {"net:1": "UNAVAILABLE unloaded", "net:2": "READY"})


async def test_a_failed_load_leaves_the_old_versions_serving_and_says_why(tmp_path: Path) -> None:
    write(tmp_path, 2)
    async with controlled(tmp_path) as it:
        await it.load()
        (tmp_path / "net" / "1" / "model.onnx").write_bytes(b"broken")
        why = await it.refusal(it.load())
        assert why.startswith(
            "load failed for model 'net': version 1 is at UNAVAILABLE state: Internal: onnx runtime "
        )
        assert why.endswith(";\n")
        assert it.states == {"net:1": "READY"}
        assert await it.factor() == 2
        (tmp_path / "net" / "config.pbtxt").write_text("max_batch_size: x")
        why = await it.refusal(it.load())
        assert why.startswith(
            "failed to load 'net', failed to poll from model repository: Invalid argument: "
        )
        assert await it.factor() == 2
        (tmp_path / "net" / "config.pbtxt").unlink()
        write(tmp_path, 4)
        await it.load()
        assert await it.factor() == 4


async def test_all_versions_of_a_load_serve_or_none(tmp_path: Path) -> None:
    write(tmp_path, 2)
    (tmp_path / "net" / "config.pbtxt").write_text(ALL)
    async with controlled(tmp_path) as it:
        await it.load()
        write(tmp_path, 3)
        write(tmp_path, 4, version=2)
        (write(tmp_path, 5, version=3)).write_bytes(b"broken")
        why = await it.refusal(it.load())
        assert "version 3 is at UNAVAILABLE state" in why
        assert await it.factor() == 2
        assert it.states["net:1"] == "READY"
        assert it.states["net:2"] == "UNAVAILABLE unloaded: another version failed to load"
        assert not it.repository.all_ready()


async def test_requests_that_were_taken_before_the_swap_are_answered_by_the_old_model(tmp_path: Path) -> None:
    write(tmp_path, 2)
    async with controlled(tmp_path) as it:
        await it.load()
        old = it.repository.get("net")
        write(tmp_path, 3)
        await it.load()
        # bound just before the swap, submitted just after
        early = [ask(old) for _ in range(5)]
        assert it.control.retirement.draining == [old]
        assert await asyncio.gather(*early) == [2.0] * 5
        await it.until(lambda: not it.control.retirement.draining)
        with pytest.raises(NotReady):
            await ask(old)


@pytest.mark.parametrize(
    ("steps", "sizes"),
    [
        ("config plain", [3, 4]),
        ("plain config plain plain", [4, 3, 3, 3]),
        ("config other plain", [3, 2, 2]),
        ("plain config wrong plain", [4, 3, 3, 3]),
        ("plain config touch plain plain", [4, 3, 4, 4]),
        ("plain config file plain plain", [4, 3, 4, 4]),
        ("plain config unload plain", [4, 3, 4]),
        ("plain config unload config plain", [4, 3, 3, 3]),
        ("plain files plain", [4, 5, 4]),
        ("plain config files plain", [4, 3, 5, 4]),
    ],
)
async def test_a_configuration_of_a_request_holds_until_the_files_change_or_the_model_is_unloaded(
    tmp_path: Path, steps: str, sizes: list[int]
) -> None:
    """As a real Triton 2.51 does; one that a model is loaded with for the first time holds for that load."""
    bringing = {"config": 3, "other": 2, "files": 5}
    write(tmp_path, 2)
    seen = []
    async with controlled(tmp_path) as it:
        for step in steps.split():
            if step in bringing:
                brought: dict[str, LoadParameter] = {"config": json.dumps({"max_batch_size": bringing[step]})}
                if step == "files":
                    brought["file:1/model.onnx"] = times(9).SerializeToString()
                await it.load_with(brought)
            elif step == "wrong":
                await it.refusal(it.load(config=json.dumps({"name": "other"})))
            elif step == "plain":
                await it.load()
            elif step == "touch":
                (tmp_path / "net" / "config.pbtxt").touch()
            elif step == "file":
                write(tmp_path, 3)
            else:
                await it.unload()
            if step not in ("touch", "file", "unload"):
                seen.append(it.repository.get("net").config.max_batch_size)
    assert seen == sizes


async def test_a_configuration_of_a_request_holds_after_a_load_whose_versions_failed(tmp_path: Path) -> None:
    override = json.dumps({"max_batch_size": 3, "version_policy": {"specific": {"versions": [1]}}})
    write(tmp_path, 2)
    write(tmp_path, 5, version=2).write_bytes(b"broken")
    (tmp_path / "net" / "config.pbtxt").write_text(ALL)
    async with controlled(tmp_path) as it:
        assert "version 2 is at UNAVAILABLE state" in await it.refusal(it.load())
        await it.load(config=override)
        await it.load()
        assert it.repository.get("net").config.max_batch_size == 3


async def test_a_configuration_of_another_model_is_refused_and_what_serves_goes_on(tmp_path: Path) -> None:
    write(tmp_path, 2)
    async with controlled(tmp_path) as it:
        await it.load()
        why = await it.refusal(it.load(config=json.dumps({"name": "other"})))
        assert "unexpected directory name 'net' for model 'other'" in why
        assert it.repository.get("net").config.max_batch_size == 4


async def test_a_request_can_bring_a_whole_model_which_is_gone_with_it(tmp_path: Path) -> None:
    write(tmp_path, 2)
    brought = {"config": "{}", "file:7/model.onnx": times(9).SerializeToString()}
    async with controlled(tmp_path) as it:
        await it.load_with(brought, "guest")
        assert await it.factor(name="guest") == 9
        assert it.repository.get("guest").version == 7
        assert set(await it.control.names_on_disk()) == {ModelId("net")}
        assert it.states == {"guest:7": "READY"}
        await it.load()
        await it.load_with(brought)
        assert await it.factor() == 9
        await it.load()
        assert await it.factor() == 2
        why = await it.refusal(it.load(name="guest"))
        assert why == "failed to load 'guest', failed to poll from model repository"
        assert await it.factor(name="guest") == 9


async def test_what_a_request_brings_and_cannot_be_loaded_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    (tmp_path / "empty").mkdir()
    async with controlled(tmp_path / "empty") as it:
        for files in (
            {"file:1/model.onnx": b"broken"},
            {"file:model.onnx": b"no version"},
            {"file:1/x": b"", "file:1/x/y": b""},
        ):
            for name in ("a", "b"):
                await it.refusal(it.load_with({"config": "{}", **files}, name))
        await it.control.tasks.finish()
        assert it.states == {}
        assert it.repository.all_ready()
        assert list(temporary.iterdir()) == []
        good = {"config": "{}", "file:1/model.onnx": times(3).SerializeToString()}
        await it.load_with(good)
        assert len(list(temporary.iterdir())) == 1
        await it.load_with(good)
        await it.unload()
        await it.until(lambda: not list(temporary.iterdir()))
        await it.load_with(good)
    assert list(temporary.iterdir()) == []


async def test_a_name_in_two_repositories_is_not_loaded_and_what_serves_goes_on(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    write(one, 2)
    two.mkdir()
    async with controlled(one, two) as it:
        await it.load()
        write(two, 3)
        why = await it.refusal(it.load())
        assert "failed to poll from model repository: model appears in two or more repositories" in why
        assert await it.factor() == 2
        await it.unload()
        await it.refusal(it.load())
        assert it.states["net:-"].startswith("UNAVAILABLE model appears in two or more repositories: ")
        (two / "net").rename(two / ".net")
        await it.load()
        assert it.states == {"net:1": "READY"}


@pytest.mark.parametrize(
    ("config", "ready"),
    [
        ("what: 3", True),
        ("max_batch_size: -1", True),
        ("name: 'other'", True),
        ("platform: 'mine'", True),
        ("version_policy { specific { versions: 7 } }", False),
        ("input [{ name: 'x' data_type: TYPE_FP32 dims: [ 0 ] }]", False),
        ("backend: 'mine'", False),
    ],
)
async def test_a_directory_that_is_told_to_be_no_model_does_not_keep_the_server_from_being_ready(
    tmp_path: Path, config: str, ready: bool
) -> None:
    """Asked of a real Triton 2.51, one by one."""
    write(tmp_path, 2)
    write(tmp_path, 2, name="good")
    (tmp_path / "net" / "config.pbtxt").write_text(config)
    async with controlled(tmp_path, mode="none") as it:
        assert it.repository.failures() == ["net"]
        assert it.repository.all_ready() == ready
        assert it.repository.is_ready("good")
        [state] = [state for name, state in it.states.items() if name.startswith("net")]
        assert state.startswith("UNAVAILABLE ")


async def test_loads_of_one_model_follow_each_other(tmp_path: Path) -> None:
    write(tmp_path, 2)
    async with controlled(tmp_path) as it:
        sizes = range(1, 9)
        await asyncio.gather(*(it.load(config=json.dumps({"max_batch_size": n})) for n in sizes))
        assert it.repository.get("net").config.max_batch_size in sizes
        await asyncio.gather(*(it.load() if n % 2 else it.unload() for n in range(16)))
        await it.load()
        assert await it.factor() == 2
        assert it.states == {"net:1": "READY"}


async def test_nothing_is_loaded_on_request_unless_the_mode_is_explicit(tmp_path: Path) -> None:
    write(tmp_path, 2)
    async with controlled(tmp_path, mode="none") as it:
        assert it.states == {"net:1": "READY"}
        for verb in (it.load, it.unload):
            with pytest.raises(NotReady) as caught:
                await verb()
            assert caught.value.message == (
                "explicit model load / unload is not allowed if polling is enabled"
            )
        assert await it.control.names_on_disk() == {}


async def test_a_server_on_its_way_out_loads_nothing(tmp_path: Path) -> None:
    write(tmp_path, 2)
    async with controlled(tmp_path) as it:
        it.control.stop()
        with pytest.raises(NotReady, match="Server exiting"):
            await it.load()


async def test_a_server_that_cannot_wait_leaves_no_files_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    async with controlled() as it:
        await it.load_with({"config": "{}", "file:1/model.onnx": times(3).SerializeToString()})
        assert left(tmp_path) == 1
        it.control.abandon()
        assert left(tmp_path) == 0


async def test_startup_models_are_loaded_and_a_missing_one_is_a_failure(tmp_path: Path) -> None:
    write(tmp_path, 2)
    write(tmp_path, 3, name="other")
    async with controlled(tmp_path, load_model=("net", "absent")) as it:
        assert it.states == {
            "absent:-": "UNAVAILABLE failed to load 'absent', failed to poll from model repository: no "
            "repository has it",
            "net:1": "READY",
        }
        assert it.repository.failures() == ["absent"]
    async with controlled(tmp_path, load_model=("othre",)) as it:
        assert "no repository has it (did you mean 'other'?)" in it.states["othre:-"]
    async with controlled(tmp_path, load_model=("*",)) as it:
        assert set(it.states) == {"net:1", "other:1"}


async def test_a_file_where_a_model_belongs_is_told_at_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "net.onnx").write_bytes(b"")
    async with controlled(tmp_path, mode="none"):
        assert f"'{tmp_path}/net.onnx' is not served" in caplog.text


async def test_a_load_is_tried_again_as_often_as_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, 2).write_bytes(b"broken")
    async with controlled(tmp_path, model_load_retry_count=2) as it:
        await it.refusal(it.load())
    assert caplog.text.count("failed to load 'net' version 1") == 3


async def test_the_chosen_configuration_is_used_where_there_is_one(tmp_path: Path) -> None:
    write(tmp_path, 2)
    (tmp_path / "net" / "config.pbtxt").write_text("max_batch_size: 2")
    async with controlled(tmp_path, model_config_name="big") as it:
        await it.load()
        assert it.repository.get("net").config.max_batch_size == 2
        chosen = tmp_path / "net" / "configs" / "big.pbtxt"
        chosen.parent.mkdir()
        chosen.write_text("max_batch_size: 64")
        await it.load()
        assert it.repository.get("net").config.max_batch_size == 64
        chosen.unlink()
        await it.load()
        assert it.repository.get("net").config.max_batch_size == 2


async def test_without_a_configuration_a_model_of_no_known_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "net" / "1").mkdir(parents=True)
    async with controlled(tmp_path) as it:
        assert "Could not determine backend for model 'net'" in await it.refusal(it.load())
        unversioned: dict[str, LoadParameter] = {"config": '{"backend": "onnxruntime"}', "file:x": b""}
        assert await it.refusal(it.load_with(unversioned)) == (
            "load failed for model 'net': at least one version must be available under the version "
            "policy of model 'net'\n"
        )
        config = json.dumps({"backend": "../../x"})
        assert "unable to find backend library for backend '../../x'" in await it.refusal(
            it.load(config=config)
        )
        with pytest.raises(InvalidRequest):
            await it.load(config=json.dumps({"default_model_filename": "../../x"}))
