"""Services of the server for a model's process: calls and loads of other models, logging, metrics."""

import asyncio
import base64
import json
import logging
from collections.abc import Callable, Sequence
from typing import Any

from tpx.errors import TpxError
from tpx.protocol.json_values import JsonObject
from tpx.serving.backends.python.calls import ModelCalls
from tpx.serving.backends.python.connection import WorkerConnection
from tpx.serving.backends.python.worker import frames
from tpx.serving.custom_metrics import KINDS, CustomFamily, CustomSeries, Labels
from tpx.serving.host import Host

log = logging.getLogger(__name__)

_LEVELS = (logging.INFO, logging.WARNING, logging.ERROR, logging.DEBUG)
"""Log levels by their pb_utils numbers."""


class Services:
    """Serves one process, on the event loop, until it is closed."""

    def __init__(self, connection: WorkerConnection, host: Host, model: str) -> None:
        self._connection = connection
        self._host = host
        self._model = model
        self._calls = ModelCalls(connection, host)
        self._tasks: set[asyncio.Task[None]] = set()
        self._families: dict[int, CustomFamily] = {}
        self._series: dict[int, tuple[CustomFamily, Labels, CustomSeries]] = {}
        self._verbs: dict[str, Callable[[JsonObject], Any]] = {
            "log": write_log,
            "ready": lambda words: self._host.is_ready(words["model"], words["version"]),
            "family": self._family,
            "drop_family": self._drop_family,
            "metric": self._metric,
            "increment": self._increment,
            "set": self._set,
            "observe": lambda words: self._series[words["id"]][2].observe(words["value"]),
            "value": lambda words: self._series[words["id"]][2].value,
        }

    def take(self, kind: int, body: memoryview, trace_of: Callable[[int], Any]) -> None:
        """Handle a frame that requests a service. Raises ValueError for any other frame."""
        if kind == frames.CALL:
            self._calls.begin(body, trace_of)
        elif kind == frames.CANCEL_CALL:
            self._calls.cancel(frames.NUMBER.unpack(body)[0])
        elif kind == frames.TAKEN:
            self._calls.taken(*frames.CREDIT_BODY.unpack(body))
        elif kind == frames.CONTROL:
            self._control(json.loads(bytes(body)))
        else:
            raise ValueError(f"there is no frame {kind}")

    def give_up_calls(self) -> None:
        """Cancel the calls of a process whose result is no longer needed."""
        self._calls.give_up()

    def close(self) -> None:
        """Cancel the calls of a process that has exited, and release what it held."""
        self._calls.close()
        self._drop_series(list(self._series))
        for family in self._families.values():
            self._host.metrics.drop_family(family)
        self._families.clear()

    def _control(self, words: JsonObject) -> None:
        verb, number = words["verb"], words["number"]
        if verb in ("load", "unload"):
            task = asyncio.get_running_loop().create_task(self._finish(number, words))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return
        try:
            value = self._verbs[verb](words)
        except TpxError as exc:
            self._answer(number, {"error": exc.message})
        else:
            self._answer(number, {"value": value})

    def _answer(self, number: int, answer: JsonObject) -> None:
        if number and self._connection.open:
            self._connection.send(frames.RESULT, [json.dumps({"number": number, **answer}).encode()])

    # other models

    async def _finish(self, number: int, words: JsonObject) -> None:
        try:
            if words["verb"] == "load":
                files = {path: base64.b64decode(content) for path, content in words["files"].items()}
                await self._host.load(words["model"], words["config"], files)
            else:
                await self._host.unload(words["model"], unload_dependents=words["dependents"])
        except TpxError as exc:
            self._answer(number, {"error": exc.message})
        except Exception as exc:  # one worker's boundary: the model gets an internal error
            log.exception("a request of model '%s' failed", self._model)
            self._answer(number, {"error": f"internal error: {type(exc).__name__}"})
        else:
            self._answer(number, {"value": None})

    # metrics

    def _family(self, words: JsonObject) -> None:
        self._families[words["id"]] = self._host.metrics.hold_family(
            words["name"], words["help"], KINDS[words["kind"]]
        )

    def _drop_family(self, words: JsonObject) -> None:
        self._drop_series(words["metrics"])
        family = self._families.pop(words["id"], None)
        if family is not None:
            self._host.metrics.drop_family(family)

    def _metric(self, words: JsonObject) -> None:
        family = self._families[words["family"]]
        key, series = self._host.metrics.hold_series(family, words["labels"], words["buckets"])
        self._series[words["id"]] = family, key, series

    def _drop_series(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            held = self._series.pop(number, None)
            if held is not None:
                self._host.metrics.drop_series(held[0], held[1])

    def _increment(self, words: JsonObject) -> None:
        self._series[words["id"]][2].value += words["value"]

    def _set(self, words: JsonObject) -> None:
        self._series[words["id"]][2].value = words["value"]


def write_log(words: JsonObject) -> None:
    """Write a log line of a model with the source position in the model."""
    level = _LEVELS[words["level"]]
    if log.isEnabledFor(level):
        log.handle(log.makeRecord(log.name, level, words["file"], words["line"], words["message"], (), None))
