"""gRPC over our HTTP/2, both ends of it."""
