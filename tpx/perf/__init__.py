"""The load generator: how a server behaves under load.

`session` is the one way to measure: a `SessionSpec` (`options`) in, a `LevelResult` (`results`) per level
out. It opens the model under test (`connecting`: `clients`, `inputs`), opens each level's load (`levels`,
`loads`) and has it measured (`measure`). A run of the command line (`run`, `dry_run`), servers in turns
(`in_turns`) and the analyzer's trials are its callers. Every request leaves a row in `records`; `capture`
keeps what files of single requests need beside it, `server_statistics` and `metrics` what the server says of
itself, `statistics` and `objectives` what samples allow to be said, `answers` what several levels or runs say
together. `report` fills the outputs; `self_test` with `null_server` measures the load generator itself.
"""
