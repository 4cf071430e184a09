"""Several models that are measured at once: which they are, and each one's own figures."""

from collections.abc import Sequence
from dataclasses import dataclass

from tpx.perf.latency import summarize
from tpx.perf.records import Rows, models_of, succeeded
from tpx.perf.results import MemberFigures
from tpx.perf.server_statistics import Snapshot, Statistics


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One model of a mix; of all requests, its weight's part are its own."""

    model: str
    weight: float
    statistics: Statistics


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """The requests that a level's figures are made of, and the server's counters before and behind them."""

    rows: Rows
    duration_ns: int
    batch_size: int
    before: Snapshot | None
    after: Snapshot | None


def member_figures(members: Sequence[Member], stretch: Stretch) -> tuple[MemberFigures, ...]:
    """Each model's part of a stretch."""
    numbers = models_of(stretch.rows)
    return tuple(_figures(m, stretch.rows[numbers == i], stretch) for i, m in enumerate(members))


def _figures(member: Member, rows: Rows, stretch: Stretch) -> MemberFigures:
    good = succeeded(rows)
    per_s = len(good) * stretch.batch_size * 1e9 / max(stretch.duration_ns, 1)
    return MemberFigures(
        model=member.model,
        weight=member.weight,
        requests=len(good),
        failed=len(rows) - len(good),
        throughput_infer_per_s=per_s,
        latency=summarize(good["end_ns"] - good["intended_ns"]) if len(good) else None,
        server=member.statistics.between(stretch.before, stretch.after),
    )
