"""Measurement of one level, from its load to its result.

`level` runs the load window by window and passes each window border to the `ledger`, which uses `rules`
and `estimates` to decide when to stop. `verdict` builds the result from the measured figures, and the
`collectors` extend it, using `wakeups` and the `scraper` of the server's metrics page. Only `level` and
the collectors use a clock or a server.
"""
