"""Axes of engines of language models: the parameters that decide their speed, and the values worth trying."""

import itertools

from tpx.analyzer.search.space import Choice, Dimension
from tpx.analyzer.search.spec import PARALLEL, axes_of
from tpx.analyzer.variants import ModelFacts

_DEFAULT_PARALLEL = {"vllm": 256}


def engine_dimensions(facts: ModelFacts, cores: int) -> list[Dimension]:
    """Return the dimensions of a model whose backend is an engine of language models; none for others."""
    doublings = tuple(itertools.takewhile(lambda n: n < cores, (2**i for i in itertools.count())))
    return [
        Dimension(
            name=name,
            choices=tuple(_choose(name, value, facts) for value in values or (*doublings, cores)),
        )
        for name, values in axes_of(facts.backend, by_tpx=facts.by_tpx).items()
    ]


def parallel_of(facts: ModelFacts) -> int:
    """Return the sequences that the default's engine computes together; 0 for other backends."""
    if not axes_of(facts.backend, by_tpx=facts.by_tpx):
        return 0
    given = [int(facts.parameters[name]) for name in PARALLEL if facts.parameters.get(name)]
    return max(given, default=_DEFAULT_PARALLEL.get(facts.backend, 4))


def _choose(name: str, value: int, facts: ModelFacts) -> Choice:
    """Return a choice of a parameter; a context that is given stays as long for each sequence."""
    texts = {name: str(value)}
    context = facts.parameters.get("n_ctx")
    if name in PARALLEL and context:
        texts["n_ctx"] = str(int(context) * value // parallel_of(facts))
    delta = {"parameters": {key: {"string_value": text} for key, text in texts.items()}}
    return Choice(label=str(value), delta=delta, amount=value)
