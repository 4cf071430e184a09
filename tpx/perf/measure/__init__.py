"""One level, from its load to its result.

`level` runs the load window by window and gives each border to the `ledger`, which decides by `rules` and
`estimates` when it is enough; `verdict` assembles the result from what was measured and the sections of the
`collectors`; `wakeups` is what one of these needs. Only `level` and the collectors touch a
clock or a server.
"""
