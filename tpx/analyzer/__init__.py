"""The search for the best configuration of a model on the available hardware.

`options` define a run. `profile` drives a `search` through trials; a trial (`trial`) writes a variant
of the configuration (`variants`), serves and measures it (`runners`) while `probes` watch the machine.
Every outcome goes to the journal (`results`), from which everything else is computed: `metrics` read its
figures, `objectives` rank, `conclusion` and `verdict` draw conclusions, `reports` and `comparison` present
them, `application` writes the result to a model repository.
"""
