"""Trace and log settings over gRPC."""

from dataclasses import asdict
from typing import Any

from tpx.protocol import messages
from tpx.serving.dataplane import DataPlane
from tpx.serving.frontends.grpc_verbs import Rpc, rpc
from tpx.serving.frontends.log_changes import LogValue, changed, refuse_log_file
from tpx.serving.tracing.settings import parse_update


class GrpcSettings:
    """What of the server can be asked and changed while it runs."""

    def __init__(self, plane: DataPlane) -> None:
        self._plane = plane

    def rpcs(self) -> list[Rpc]:
        return [rpc("TraceSetting", "trace", self._trace), rpc("LogSettings", "logging", self._log)]

    def _trace(self, request: Any) -> Any:
        """An empty list of values clears."""
        model = self._plane.traced_model(request.model_name) if request.model_name else ""
        if request.settings:
            given = {name: list(setting.value) or None for name, setting in request.settings.items()}
            tracer = self._plane.tracer
            tracer.update(parse_update(given, tracer.setting().fixed), model)
        response = messages.TraceSettingResponse()
        for name, texts in self._plane.tracer.setting(model).as_texts().items():
            response.settings[name].value.extend(texts)
        return response

    def _log(self, request: Any) -> Any:
        if "log_file" in request.settings:
            refuse_log_file()
        if request.settings:
            given = {name: _value(setting) for name, setting in request.settings.items()}
            self._plane.logs.update(changed(self._plane.logs.settings, given, "GRPC"))
        response = messages.LogSettingsResponse()
        for name, value in asdict(self._plane.logs.settings).items():
            setting = response.settings[name]
            if isinstance(value, bool):
                setting.bool_param = value
            elif isinstance(value, int):
                setting.uint32_param = value
            else:
                setting.string_param = value
        return response


def _value(setting: Any) -> LogValue | None:
    """The value of a SettingValue, None where it has none."""
    kind = setting.WhichOneof("parameter_choice")
    value: LogValue | None = getattr(setting, kind) if kind else None
    return value
