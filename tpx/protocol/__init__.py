"""What both ends of the wire must agree on: datatypes, tensors, codecs, model configs, HTTP and gRPC."""
