"""The load generator: measures how a server behaves under load.

Every measurement goes through `session`: a `SessionSpec` (`options`) goes in, one `LevelResult`
(`results`) per level comes out. A session connects to the model under test (`connecting`: `clients`,
`inputs`), opens each level's load (`levels`, `pace`, `loads`) and measures it (`measure`). Its callers are a
command-line run (`run`, `dry_run`), the comparison of servers in turns (`in_turns`), and the analyzer's
trials. Every request leaves a row in `records`; `capture` stores request inputs and response bodies for
files of single requests. `server_statistics` reads the server's own figures, `statistics` and
`objectives` determine what the samples show, and `compare` compares runs. `report` writes the outputs.
"""
