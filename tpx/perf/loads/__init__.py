"""Keeping a server under a given load."""
