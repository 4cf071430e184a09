"""Inputs: from the user's data to requests that are ready to be sent.

`base` has the options, `dataset` opens the data: streams of `steps`, read from JSON (`json_files`, by
`values`) or directories, or made (`makers`). `requests` makes every request once and a `feed` of them,
or one of `sequences`; `validation` compares responses, `shared_memory` holds tensors
that the server shares.
"""
