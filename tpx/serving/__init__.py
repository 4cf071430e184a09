"""The inference server: frontends, data plane, repository, models, schedulers, instances, backends.

`server` builds the object graph from the `options`, and `shutdown` ends it. `endpoints` listen for the
`frontends`, which call the `dataplane`: every protocol verb once, independent of transport.
`repository` loads models; `model` and `ensemble` serve them.
"""
