"""HTTP/2 as gRPC uses it: framing, settings, flow control and header compression, for both sides."""
