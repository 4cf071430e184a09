"""Connections to a server that carry requests made beforehand, and that ask it about its models."""
