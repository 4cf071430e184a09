"""What `tpx analyze doctor` finds, by what is missing."""

import asyncio
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.answering import no_http
from tpx.analyzer.options import ProfileSpec
from tpx.analyzer.options.models import ModelToProfile
from tpx.cli.analyze import main
from tpx.cli.analyze_doctor import MISSING_MODEL, Check, CheckState, check_machine, check_models, check_remote
from tpx.errors import MeasurementError
from tpx.options import build
from tpx.perf.clients.model import IndexEntry


class FakeControl:
    """A running server, or none."""

    def __init__(self, *, live: bool = True, refuses: str = "", models: tuple[IndexEntry, ...] = ()) -> None:
        self._live = live
        self._refuses = refuses
        self._models = models
        self.loaded: list[str] = []

    async def live(self) -> bool:
        return self._live

    async def index(self) -> tuple[IndexEntry, ...]:
        return self._models

    async def load(self, model: str, config: Mapping[str, Any] | None, timeout_s: float) -> None:
        self.loaded.append(model)
        raise MeasurementError(self._refuses or f"the server could not load model '{model}'")

    async def unload(self, model: str) -> None: ...

    async def config(self, model: str) -> dict[str, Any]:
        return {}


class FakeReader:
    """Serves `net` alone."""

    async def default_config(self, model: str) -> dict[str, Any]:
        if model != "net":
            raise MeasurementError("it does not load")
        return {"max_batch_size": 8}


def config(**options: Any) -> ProfileSpec:
    return build(ProfileSpec, {"profile_models": (ModelToProfile(name="net"),), **options})


def by_name(checks: list[Check]) -> dict[str, Check]:
    return {check.what: check for check in checks}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / "models" / "net").mkdir(parents=True)
    return tmp_path / "models"


def test_what_is_in_order_is_ok(repository: Path, tmp_path: Path) -> None:
    found = by_name(
        list(
            check_machine(
                config(
                    model_repository=repository,
                    export_path=tmp_path / "out",
                    output_model_repository_path=tmp_path / "variants",
                )
            )
        )
    )
    for what in ("configuration of net", "export path", "run.jsonl", "output model repository"):
        assert found[what].state in (CheckState.OK, CheckState.DOUBTFUL), found[
            what
        ]  # a full disk is doubtful
    assert not (tmp_path / "out").exists()


def test_a_broken_configuration_a_used_directory_and_a_missing_program_stop_a_run(
    repository: Path, tmp_path: Path
) -> None:
    (repository / "net" / "config.pbtxt").write_text("max_batch: 4")
    (tmp_path / "variants" / "x").mkdir(parents=True)
    (tmp_path / "file").write_text("")
    found = by_name(
        list(
            check_machine(
                config(
                    model_repository=repository,
                    export_path=tmp_path / "file" / "out",
                    output_model_repository_path=tmp_path / "variants",
                    triton_server_path="no-such-server-program",
                )
            )
        )
    )
    failed = {what for what, check in found.items() if check.state is CheckState.FAILED}
    assert failed >= {
        "configuration of net",
        "output model repository",
        "export path",
        "server program",
    }
    assert "max_batch" in found["configuration of net"].found
    assert "--override-output-model-repository" in found["output model repository"].remedy


def test_a_missing_model_is_told_the_nearest(repository: Path) -> None:
    (repository / "nets").mkdir()
    (repository / "net").rmdir()
    found = by_name(list(check_machine(config(model_repository=repository))))
    assert "did you mean 'nets'" in found["configuration of net"].found
    found = by_name(list(check_machine(config(model_repository=repository / "none"))))
    assert found["model repository"].state is CheckState.FAILED


def test_models_are_served_to_know_that_they_can_be() -> None:
    both = build(ProfileSpec, {"profile_models": (ModelToProfile(name="net"), ModelToProfile(name="broken"))})
    net, broken = asyncio.run(check_models(both, FakeReader()))
    assert (net.state, net.found) == (CheckState.OK, "max_batch_size 8")
    assert (broken.state, broken.found) == (CheckState.FAILED, "it does not load")


def test_a_server_that_loads_by_request_is_told_by_a_load_that_changes_nothing() -> None:
    control = FakeControl(models=(IndexEntry(name="other", state="READY"),))
    with no_http() as address:
        found = by_name(asyncio.run(check_remote(config(triton_metrics_url=f"http://{address}"), control)))
    assert control.loaded == [MISSING_MODEL]
    assert found["models are loaded by request"].state is CheckState.OK
    assert (found["other models on the server"].state, found["other models on the server"].found) == (
        CheckState.DOUBTFUL,
        "other",
    )
    assert found["metrics"].state is CheckState.DOUBTFUL
    assert found["metrics"].found.endswith("no page of metrics")


def test_a_server_without_model_control_is_told_with_both_ways_out() -> None:
    control = FakeControl(refuses="explicit model load / unload is not allowed if polling is enabled")
    found = by_name(asyncio.run(check_remote(config(), control)))
    assert found["models are loaded by request"].state is CheckState.FAILED
    assert "--reload-model-disable" in found["models are loaded by request"].remedy
    as_it_is = by_name(
        asyncio.run(check_remote(config(reload_model_disable=True, triton_launch_mode="remote"), control))
    )
    assert as_it_is["models are loaded by request"].state is CheckState.OK


def test_no_server_is_one_fault_and_nothing_else_is_asked() -> None:
    [check] = asyncio.run(check_remote(config(client_protocol="http"), FakeControl(live=False)))
    assert (check.state, check.found) == (CheckState.FAILED, "nothing answers at localhost:8000")


@pytest.mark.e2e
@pytest.mark.slow
def test_the_command_serves_the_models_and_says_what_it_found(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", "-m", str(repository), "--profile-models", "net"]) == 1
    out = capsys.readouterr().out
    # the width of the first column depends on what else the machine has
    assert re.search(r"^ok +options", out, re.MULTILINE)
    assert re.search(r"^failed +model net can be served", out, re.MULTILINE)


def test_without_a_repository_the_command_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--profile-models", "net"]) == 1
    assert "no model repository; name the directory" in capsys.readouterr().out
