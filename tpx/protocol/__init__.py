"""Definitions that both ends of the wire share: datatypes, tensors, codecs, model configs, HTTP and gRPC."""
