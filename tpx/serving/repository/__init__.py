"""Model repositories: reading them, configuring their models, and loading those.

`layout` and `stores/` read repositories on disk and in object stores, `discovery` finds models and
detects changes, `overrides` parses load requests. `configuration` and `scheduling` complete and
validate a configuration; `loading` makes one version from it. The `coordinator` decides what to load
and when; `loads` carries out one load, `on_demand` starts loads for requests, `memory` enforces the
memory limit, `ensembles` composes models from other models, `retirement` closes what was replaced.
`table` holds the versions that serve, and the reasons why others do not. `agents/` holds repository
agents.
"""
