"""Trials on several nodes in parallel, one per node, for a search that asks for one at a time.

While the requested trial is measured, idle nodes speculatively measure the trials that the search will
probably request next. Outcomes reach the search and the journal in the order of the requests, so the
run is the same as on one node, only faster. A wrong guess costs only idle time. Final rounds all run on
one node, so that they are comparable.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Protocol, TypeVar

import msgspec

from tpx.analyzer.machine import MachineType
from tpx.analyzer.results.journal import VariantPrepared
from tpx.analyzer.results.measurement import (
    Configuration,
    LoadPoint,
    Measurement,
    Outcome,
    ServerOnly,
    Trial,
    Variant,
)
from tpx.analyzer.trial import Ahead
from tpx.analyzer.variants import OutputRepository
from tpx.errors import NodeLost, ServerLost, TpxError

T = TypeVar("T")
LOOKED_AHEAD = 200
"""Number of expected trials from which the next one for an idle node is chosen."""

Content = tuple[object, ...]
"""A variant without its names, because the search's names depend on what it tried before."""
Key = tuple[Content, LoadPoint, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialResult:
    """The outcome of a trial, and how the node's server took on its configuration."""

    outcome: Outcome
    prepared: VariantPrepared | None


class TrialNode(Protocol):
    """A node or GPU that measures one trial at a time. Calls raise NodeLost once it is gone."""

    name: str

    async def run(self, configuration: Configuration, trial: Trial) -> TrialResult: ...

    async def default_config(self, model: str) -> dict[str, object]: ...

    async def server_only(self, duration_s: float) -> ServerOnly | None: ...

    async def log_tail(self) -> tuple[str, ...]: ...

    async def close(self) -> None: ...


class SideBySide:
    """Implements Trials on several nodes."""

    def __init__(
        self,
        nodes: Sequence[TrialNode],
        machine: MachineType,
        repository: OutputRepository,
        say: Callable[[str], None],
    ) -> None:
        """`machine` is the type that all nodes share; `say` reports a lost node."""
        self.machine = machine
        self.prepared: VariantPrepared | None = None
        self._nodes = list(nodes)
        self._repository = repository
        self._say = say
        self._tail: tuple[str, ...] = ()
        self._names: dict[Content, str] = {}
        self._served: dict[str, Content] = {}
        """Variant that each node measured last and still has loaded, by node name."""
        self._running: dict[asyncio.Task[TrialResult], tuple[TrialNode, Key]] = {}
        self._ended: dict[Key, TrialResult | TpxError] = {}

    async def default_config(self, model: str) -> dict[str, object]:
        return await self._call_first_node(lambda node: node.default_config(model))

    async def server_only(self, duration_s: float) -> ServerOnly | None:
        return await self._call_first_node(lambda node: node.server_only(duration_s))

    async def run(self, configuration: Configuration, trial: Trial, ahead: Ahead) -> Outcome:
        self._repository.write(configuration)
        key = _make_trial_key(trial)
        while key not in self._ended:
            if key not in self._running_keys and (node := self._choose_node(trial)):
                self._start_trial(node, configuration, trial)
            # the requested trial goes first; nothing is speculated during final rounds
            if key in self._running_keys and not trial.round:
                self._start_expected(ahead)
            await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
            self._collect_ended()
        result = self._ended.pop(key)
        if isinstance(result, TpxError):
            raise result
        named = trial.variant
        self.prepared = result.prepared and msgspec.structs.replace(result.prepared, variant=named.name)
        return _restore_names(result.outcome, named)

    def log_tail(self) -> tuple[str, ...]:
        return self._tail

    async def close(self) -> None:
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.wait(self._running)
        await asyncio.gather(*(node.close() for node in self._nodes))

    @property
    def _running_keys(self) -> set[Key]:
        """Keys of the trials being measured."""
        return {key for _, key in self._running.values()}

    @property
    def _idle_nodes(self) -> list[TrialNode]:
        busy = {node.name for node, _ in self._running.values()}
        return [node for node in self._nodes if node.name not in busy]

    def _choose_node(self, trial: Trial) -> TrialNode | None:
        """Return an idle node, preferably with the variant loaded, or None; final rounds use the first."""
        idle = self._idle_nodes
        if trial.round:
            return self._nodes[0] if self._nodes[0] in idle else None
        content = _make_content_key(trial.variant)
        return next((node for node in idle if self._served.get(node.name) == content), next(iter(idle), None))

    def _start_trial(self, node: TrialNode, configuration: Configuration, trial: Trial) -> None:
        self._served[node.name] = _make_content_key(trial.variant)
        named = self._rename_configuration(configuration)
        task = asyncio.ensure_future(node.run(named, replace(trial, variant=named.variant)))
        self._running[task] = node, _make_trial_key(trial)

    def _start_expected(self, ahead: Ahead) -> None:
        """Start an expected trial on idle nodes: of the loaded variant, or of one that no other node has."""
        if not self._idle_nodes:
            return
        taken = self._running_keys
        expected = [
            each
            for each in islice(ahead(self._find_outcome), LOOKED_AHEAD)
            if _make_trial_key(each[1]) not in taken
        ]
        for node in self._idle_nodes[: len(expected)]:
            own, others = self._served.get(node.name), self._served.values()
            contents = [_make_content_key(trial.variant) for _, trial in expected]
            ranks = [0 if content == own else 1 + (content in others) for content in contents]
            configured, trial = expected.pop(ranks.index(min(ranks)))
            self._start_trial(node, configured(), trial)

    def _find_outcome(self, trial: Trial) -> Outcome | None:
        result = self._ended.get(_make_trial_key(trial))
        return _restore_names(result.outcome, trial.variant) if isinstance(result, TrialResult) else None

    def _collect_ended(self) -> None:
        """Collect the trials that have ended; a trial whose node was lost is measured again."""
        for task in [task for task in self._running if task.done()]:
            node, key = self._running.pop(task)
            try:
                self._ended[key] = task.result()
            except NodeLost as exc:
                self._drop_node(node, exc)
            except TpxError as exc:
                self._ended[key] = exc

    def _drop_node(self, node: TrialNode, why: NodeLost) -> None:
        """Drop a lost node. Raises ServerLost if it was the last."""
        self._nodes.remove(node)
        self._served.pop(node.name, None)
        self._say(f"{node.name} is gone, its trial is measured again: {why.message}")
        if not self._nodes:
            raise ServerLost(f"no node is left: {node.name} was the last")

    async def _call_first_node(self, call: Callable[[TrialNode], Awaitable[T]]) -> T:
        """Return the result from the first node, moving to the next if it is lost."""
        while True:
            node = self._nodes[0]
            self._served.pop(node.name, None)
            try:
                return await call(node)
            except NodeLost as exc:
                self._drop_node(node, exc)
            except TpxError:
                self._tail = await node.log_tail()
                raise

    def _rename_configuration(self, configuration: Configuration) -> Configuration:
        """Return the configuration with names that identify its content, unlike the search's names."""
        return replace(
            configuration,
            variant=self._rename_variant(configuration.variant),
            members=tuple(map(self._rename_configuration, configuration.members)),
        )

    def _rename_variant(self, variant: Variant) -> Variant:
        content = _make_content_key(variant)
        if content not in self._names:
            taken = variant.name in self._names.values()
            self._names[content] = f"{variant.name}.{len(self._names)}" if taken else variant.name
        members = tuple(map(self._rename_variant, variant.members))
        return replace(variant, name=self._names[content], members=members)


def _make_content_key(variant: Variant) -> Content:
    return (
        variant.model,
        json.dumps(variant.delta, sort_keys=True),
        tuple(map(_make_content_key, variant.members)),
    )


def _make_trial_key(trial: Trial) -> Key:
    return _make_content_key(trial.variant), trial.load, trial.round


def _restore_names(outcome: Outcome, variant: Variant) -> Outcome:
    """Return the outcome under the search's name for its variant."""
    if isinstance(outcome, Measurement) and outcome.members:
        pairs = zip(outcome.members, variant.members, strict=True)
        outcome = replace(outcome, members=tuple(replace(each, variant=of.name) for each, of in pairs))
    return replace(outcome, variant=variant.name)
