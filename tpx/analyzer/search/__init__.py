"""Search a model's configurations: the driver asks a strategy for trials and sends it their outcomes.

A strategy is a generator over a spec and a history: the `exhaustive` ones sweep every configuration
(`sweep`); `quick`, `budgeted`, `pareto` and `tpe` move through a grid (`space`, built by `axes`) with
an `explorer`. `finals` concludes every search. Pure, deterministic and replayable.
"""
