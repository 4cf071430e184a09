"""A server's metrics page while it is measured."""
