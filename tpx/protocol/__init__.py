"""Definitions shared by servers and clients: datatypes, tensors, codecs, model configs, HTTP and gRPC."""
