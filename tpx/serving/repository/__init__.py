"""Model repositories: reading them, configuring their models, and loading those.

`options` has the flags. `layout` and `stores/` read repositories on disk and in object stores;
`discovery` finds models there and in load requests, and detects changes. `configuration` and
`scheduling` complete and validate a configuration; `loading` makes one version from it. The
`coordinator` decides what to load and when, also for requests in lazy mode; `loads` carries out one
load, `ensembles` composes models from other models, `memory` closes what was replaced and enforces the
memory limit. `table` holds the versions that serve, and the reasons why others do not. `agents/` holds
repository agents.
"""
