"""Search a model's configurations: the driver asks a strategy for trials and sends it their outcomes.

A strategy is a generator over a spec and a history: brute search and the user's list `sweep` every
configuration; `local_search` (quick, pareto), `budgeted` and `tpe` move through a grid (`space`, built by
`axes`) with an `explorer`. Final rounds conclude every search. Pure, deterministic and replayable.
"""
