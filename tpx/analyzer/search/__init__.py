"""Search a model's configurations: the driver asks a strategy for trials and tells it their outcomes.

A strategy is a generator over a spec and a history: `exhaustive` ones sweep every configuration (`sweep`),
`quick`, `budgeted`, `pareto` and `tpe` jump in a grid (`space`, made by `axes`) with an `explorer`. `finals`
ends every search. Pure, deterministic and replayable.
"""
