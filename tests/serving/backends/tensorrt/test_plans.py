"""Plans as files, what they were built with, and the settings that they are loaded with."""

from pathlib import Path
from typing import Any

import pytest

from tests.serving.backends.tensorrt.conftest import Driver
from tests.serving.backends.tensorrt.fake_tensorrt import plan
from tests.serving.backends.tensorrt.opened import GROUP, Opened, X, Y
from tpx.errors import ConfigError, LoadError
from tpx.serving.backends.tensorrt.engines import mismatch, plan_version


def test_a_device_may_have_a_plan_of_its_own(opened: Opened) -> None:
    opened.write([{**X, "profiles": [[[1, 2], [2, 2], [32, 2]]]}, Y], name="hopper.plan")
    text = "cc_model_filenames { key: '9.0' value: 'hopper.plan' } "
    assert opened.completed(text + GROUP % "").max_batch_size == 32
    assert opened.completed(text + (GROUP % "").replace("[ 0 ]", "[ 1 ]")).max_batch_size == 4


def test_a_plan_of_another_version_is_explained(opened: Opened, tmp_path: Path) -> None:
    (tmp_path / "model.plan").write_bytes(plan([X, Y], version="10.3.0.26"))
    with pytest.raises(LoadError) as caught:
        opened.model()
    assert "on GPU 0: Version tag does not match (it was built with TensorRT 10.3.0.26, here is " in str(
        caught.value
    )
    assert opened.completed(settings={"version-compatible": "true"}).max_batch_size == 4


def test_what_is_no_plan_is_said() -> None:
    assert plan_version(b"zzzz" + bytes(40)) == ""
    assert plan_version(plan([X, Y], version="10.3.0.26")) == "10.3.0.26"
    assert mismatch(b"PK", "11.4.0.106") == " (the file is not a TensorRT plan)"
    assert "the kind of GPU that it was built on" in mismatch(plan([X, Y]), "11.4.0.106")


def test_a_plan_that_is_not_there_is_named(opened: Opened, tmp_path: Path) -> None:
    (tmp_path / "model.plan").unlink()
    with pytest.raises(LoadError, match=r"unable to find '.*model\.plan' for model 'net'"):
        opened.model()


def test_plugins_are_loaded_before_the_engine(opened: Opened, driver: Driver, tmp_path: Path) -> None:
    opened.model(settings={"plugins": driver.path})
    assert opened.trt.registry.loaded == [driver.path]
    broken = tmp_path / "broken.so"
    broken.write_text("no library", encoding="utf-8")
    with pytest.raises(LoadError, match=r"tensorrt cannot load the plugin '.*broken\.so'"):
        opened.model(settings={"plugins": f"{driver.path};{broken}"})
    with pytest.raises(LoadError, match=r"unable to find the TensorRT plugin 'nothing\.so'"):
        opened.model(settings={"plugins": "nothing.so"})


@pytest.mark.parametrize(
    ("text", "settings", "message"),
    [
        (
            "parameters { key: 'execution_context_allocation_strategy' value { string_value: 'LAZY' } } ",
            {},
            "must be one of STATIC, ON_PROFILE_CHANGE, got 'LAZY'",
        ),
        ("", {"execution-policy": "WHENEVER"}, "must be one of DEVICE_BLOCKING, BLOCKING, got 'WHENEVER'"),
        (
            "",
            {"version-compatible": "perhaps"},
            "tensorrt must be true or false, got 'perhaps'",
        ),
        ("", {"coalesce-request-input": "2"}, "of --backend-config tensorrt must be true or false, got '2'"),
    ],
)
def test_a_setting_that_makes_no_sense_is_named(
    opened: Opened, text: str, settings: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        opened.model(text + GROUP % "", settings)


def test_what_has_no_effect_is_warned_of(opened: Opened, caplog: pytest.LogCaptureFixture) -> None:
    opened.model("optimization { cuda { graphs: true } } " + GROUP % "")
    assert "optimization.cuda.graphs of model 'net' has no effect" in caplog.text


def test_the_strategy_of_memory_is_passed_on(opened: Opened) -> None:
    key = "execution_context_allocation_strategy"
    text = f"parameters {{ key: '{key}' value {{ string_value: 'ON_PROFILE_CHANGE' }} }} "
    [executor] = opened.executors(text + GROUP % "")
    contexts: dict[int, Any] = executor._contexts  # type: ignore[attr-defined]
    assert [context.strategy.name for context in contexts.values()] == ["ON_PROFILE_CHANGE"]
