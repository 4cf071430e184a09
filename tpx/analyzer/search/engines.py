"""Axes of engines of language models: the parameters that decide their speed, and the values worth trying."""

import itertools

from tpx.analyzer.search.space import Choice, Dimension
from tpx.analyzer.search.spec import ENGINES, PARALLEL
from tpx.analyzer.variants import ModelFacts

DEFAULT_PARALLEL = 4


def engine_dimensions(facts: ModelFacts, cores: int) -> list[Dimension]:
    """Return the dimensions of a model whose backend is an engine of language models; none for others."""
    doublings = tuple(itertools.takewhile(lambda n: n < cores, (2**i for i in itertools.count())))
    return [
        Dimension(
            name=name,
            choices=tuple(_choose(name, value, facts) for value in values or (*doublings, cores)),
        )
        for name, values in ENGINES.get(facts.backend, {}).items()
    ]


def parallel_of(facts: ModelFacts) -> int:
    """Return the sequences that the default's engine computes together; 0 for other backends."""
    if facts.backend not in ENGINES:
        return 0
    return int(facts.parameters.get(PARALLEL) or DEFAULT_PARALLEL)


def _choose(name: str, value: int, facts: ModelFacts) -> Choice:
    """Return a choice of a parameter; a context that is given stays as long for each sequence."""
    texts = {name: str(value)}
    context = facts.parameters.get("n_ctx")
    if name == PARALLEL and context:
        texts["n_ctx"] = str(int(context) * value // parallel_of(facts))
    delta = {"parameters": {key: {"string_value": text} for key, text in texts.items()}}
    return Choice(label=str(value), delta=delta, amount=value)
