"""Inputs: from the user's data to requests that are ready to send.

`base` has the options, `dataset` opens the data: streams of `steps`, read from JSON (using `values`) or
directories, or generated (`makers`). `requests` encodes every request once and builds a `feed` of them,
or one of `sequences`; `shared_memory` places tensors in memory shared with the server.
"""
