"""Carry out trials.

`served` puts load (`load`) on configurations that `loader` brings onto a server process: a child (`local`,
`docker`) or one that runs already (`control`). `inprocess` has the engine in this process.
"""
