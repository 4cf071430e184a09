"""Load generation, one module per kind of load; `perf/levels.py` has the table of kinds.

`base` is the interface to the measuring code; it also checks that this machine can open a level's load.
`senders` has what all loads of one process share: a `Sender` per connection slot, and `SlotLoad`. The
kinds of load build on it: `closed` (requests in flight, a growing concurrency), `users` (who think, and have
conversations) and `rate` (an open loop that sends at the times of `schedules`). `workers` splits a load among
processes (`worker`, with `nodes` on several machines), which report their rows.
"""
