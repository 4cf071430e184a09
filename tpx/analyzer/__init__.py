"""The search for the best configuration of a model on the hardware at hand.

`options` are what a run is told. `profile` drives a `search` through trials; a trial (`trial`) writes a
variant of the configuration (`variants`), brings it onto a server and measures it (`runners`) while
`monitors` watch the machine. Every outcome goes to the journal (`results`), from which everything else
is computed: `objectives` and `limits` rank, `conclusion`, `gains` and `verdict` say what may be
believed, `reports` and `comparison` show it, `application` puts it into a model repository.
"""
