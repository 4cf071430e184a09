"""The inference server: frontends, data plane, repository, models, schedulers, instances, backends.

`server` builds it of its `options` and ends it (`shutdown`); `endpoints` listen for the `frontends`, which
call the `dataplane`: every verb of the protocol once, free of transport. `repository` loads models, `model`
and `ensemble` serve them.
"""
