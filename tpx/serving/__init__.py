"""The inference server: frontends, data plane, repository, models, schedulers, instances, backends."""
