"""Putting load on a server, one kind of it a module; `perf/levels.py` has the table of kinds.

`base` is the seam to measuring; it opens the load of a level, as far as this machine can hold it. `senders`
has what all loads of one process share: a `Sender` per connection slot, and `SlotLoad`. On it stand `closed`
(requests in flight, conversations), `queries` (several requests at once), `periodic` (a concurrency that
grows) and `rate` (an open loop, whose times are those of `schedules`, kept by `pacing`). `workers` deals a
load out to processes (`worker`), whose rows come back through shared memory (`ring`).
"""
