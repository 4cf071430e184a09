"""Instances that compute batches in threads, and the path of their results to the event loop."""
