"""Which strategy a run asks for, made ready: the one place that knows them all."""

import importlib
from collections.abc import Mapping
from typing import Literal

from tpx.analyzer.search.base import Search
from tpx.analyzer.search.finals import Repeated
from tpx.analyzer.search.known import Known
from tpx.analyzer.search.question import Question
from tpx.analyzer.search.walk import Strategy, Walk

Mode = Literal["brute", "manual", "quick", "optuna", "pareto", "budgeted"]
MODES: tuple[Mode, ...] = ("brute", "manual", "quick", "optuna", "pareto", "budgeted")


_STRATEGIES: Mapping[Mode, str] = {
    "brute": "tpx.analyzer.search.brute:BruteSearch",
    "manual": "tpx.analyzer.search.manual:ManualSearch",
    "quick": "tpx.analyzer.search.quick:QuickSearch",
    "optuna": "tpx.analyzer.search.tpe:OptunaSearch",
    "pareto": "tpx.analyzer.search.pareto:ParetoSearch",
    "budgeted": "tpx.analyzer.search.budgeted:BudgetedSearch",
}


def open_search(mode: Mode, question: Question) -> Search:
    """The search of this mode, with its final repetitions.

    Raises UsageError where a mode cannot search this space, or needs a package that is missing.
    """
    known = Known(question.goals, question.limits)
    return Walk(Repeated(open_strategy(mode, question, known), known, question.limits))


def open_strategy(mode: Mode, question: Question, known: Known) -> Strategy:
    """The strategy alone; `known` has its goals and its limits."""
    module, _, name = _STRATEGIES[mode].partition(":")
    strategy: Strategy = getattr(importlib.import_module(module), name)(question, known)
    return strategy
