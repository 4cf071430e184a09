"""Traces of single requests: which ones, what happened to them and when, and the file they go to."""
