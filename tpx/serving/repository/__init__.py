"""Model repositories: what lies in them, how it is configured, and what of it is loaded.

`layout` and `stores/` read repositories on disk and in object stores, `discovery` knows what changed in them,
`overrides` what load requests bring. `configuration` and `scheduling` complete and validate a configuration;
`loading` makes a version of it. The `coordinator` decides what is loaded when; `loads` carries
one load out, `on_demand` begins loads for requests, `memory` keeps them under a limit, `ensembles` composes
models of models, `retirement` ends what was replaced. `table` is what serves, and why the rest does not.
`agents/` are repository agents.
"""
