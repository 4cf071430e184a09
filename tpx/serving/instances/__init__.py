"""Instances of a model, which compute batches, and the path of their results to the event loop."""
