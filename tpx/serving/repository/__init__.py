"""Model repositories: reading them, configuring their models, and loading those.

`options` has the flags. `layout` and `stores/` read repositories on disk and in object stores;
`discovery` finds models there and in load requests, and detects changes. `agents/` holds repository
agents. `configuration` and `scheduling` complete and validate a configuration; `loading` makes one
version from it.

Each of the following holds only objects that precede it. `table` has the `records` of all models:
versions that serve, and reasons why others do not; `retirement` closes versions that no longer serve;
`ensembles` composes models from other models, and unloads models; `in_use` has the locks of loads and
what waits for them; `memory` enforces the limit; `loads` carries out one load, and `on_demand` begins
those of requests in lazy mode; `coordinator` owns all of them and decides what to load and when. Only
`ModelHost` leads back up: a model's code may load models.
"""
