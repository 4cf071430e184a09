"""From a complete configuration to how its requests are scheduled and stacked."""

from functools import partial
from pathlib import Path
from typing import Any

from tpx.serving.repository.initial_states import states_of, varying_shapes_of
from tpx.serving.scheduling.base import Scheduler, SequenceScheduler
from tpx.serving.scheduling.direct import DirectScheduler
from tpx.serving.scheduling.dynamic import DynamicBatcher
from tpx.serving.scheduling.iterative import IterativeSequences
from tpx.serving.scheduling.queue import QueuePolicies, QueuePolicy
from tpx.serving.scheduling.sequences import SequenceTable
from tpx.serving.scheduling.strategies import DirectSequences, OldestSequences
from tpx.serving.stacking.base import Stacking
from tpx.serving.stacking.plain import PlainStacking
from tpx.serving.stacking.ragged import RaggedStacking, added_inputs_of
from tpx.serving.stacking.sequences import SequenceStacking, check_correlation_id, controls_of


def scheduler_of(config: Any) -> Scheduler:
    """The policy that the configuration chooses."""
    choice = config.WhichOneof("scheduling_choice")
    if choice == "sequence_batching":
        return _sequences(config)
    if choice == "dynamic_batching":
        return _dynamic(config)
    return DirectScheduler()


def stacking_of(config: Any, directory: Path) -> Stacking:
    """How its requests become arrays; `directory` is the model's. Raises ConfigError."""
    batched = config.max_batch_size > 0
    stacking = _stacking_of_inputs(config, batched=batched)
    if not config.HasField("sequence_batching"):
        return stacking
    return SequenceStacking(controls_of(config), states_of(config, directory), stacking, batched=batched)


def _stacking_of_inputs(config: Any, *, batched: bool) -> Stacking:
    ragged = frozenset(item.name for item in config.input if item.allow_ragged_batch)
    if not (ragged or config.batch_input or config.batch_output):
        return PlainStacking(batched=batched)
    scattered = {name: item.source_input[0] for item in config.batch_output for name in item.target_name}
    return RaggedStacking(ragged, added_inputs_of(config), scattered, batched=batched)


def _dynamic(config: Any) -> Scheduler:
    batching = config.dynamic_batching
    policies = QueuePolicies(
        levels=batching.priority_levels,
        default_level=batching.default_priority_level,
        default=_policy(batching.default_queue_policy),
        by_level={level: _policy(policy) for level, policy in batching.priority_queue_policy.items()},
    )
    if config.max_batch_size <= 1 and policies.plain:
        return DirectScheduler()
    return DynamicBatcher(
        config.max_batch_size,
        list(batching.preferred_batch_size),
        batching.max_queue_delay_microseconds * 1000,
        policies,
    )


def _policy(policy: Any) -> QueuePolicy:
    return QueuePolicy(
        timeout_ns=policy.default_timeout_microseconds * 1000,
        delays=policy.timeout_action == policy.DELAY,
        allow_timeout_override=policy.allow_timeout_override,
        max_queue_size=policy.max_queue_size,
    )


def _sequences(config: Any) -> Scheduler:
    batching = config.sequence_batching
    oldest = batching.HasField("oldest")
    rows = max(1, config.max_batch_size)
    slots = batching.oldest.max_candidate_sequences or rows
    table = SequenceTable(
        config.name,
        lanes=0,
        slots=slots,
        idle_ns=batching.max_sequence_idle_microseconds * 1000,
        check_id=partial(check_correlation_id, config.name, controls_of(config)),
        varying_shapes=varying_shapes_of(config),
    )
    strategy = _oldest(batching, table, rows) if oldest else _direct(batching, table, rows)
    return IterativeSequences(strategy, table, config.name) if batching.iterative_sequence else strategy


def _direct(batching: Any, table: SequenceTable, rows: int) -> SequenceScheduler:
    direct = batching.direct
    delay_ns = direct.max_queue_delay_microseconds * 1000
    return DirectSequences(table, rows, delay_ns, direct.minimum_slot_utilization)


def _oldest(batching: Any, table: SequenceTable, rows: int) -> SequenceScheduler:
    settings = batching.oldest
    preferred, delay_ns = list(settings.preferred_batch_size), settings.max_queue_delay_microseconds * 1000
    return OldestSequences(table, lambda: DynamicBatcher(rows, preferred, delay_ns))
