"""gRPC over our HTTP/2: server and client."""
