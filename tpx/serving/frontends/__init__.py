"""The endpoints: they decode, call the data plane, encode, and map errors to their protocol's codes."""
