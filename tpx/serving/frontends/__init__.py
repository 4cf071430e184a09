"""The frontends: they decode, call the data plane, encode, and map errors to their protocol's codes.

`http` and `grpc` know every verb. `http_infer`, `http_generate`, `grpc_infer` and `grpc_stream` are
inference, `http_control` and `grpc_control` everything else. `http_routes`, `http_answers` and `grpc_verbs`
are how verbs are found and answered, `outputs` what both do with outputs. `access` and `forwarding` read keys
and headers, `traced` traces requests, `openapi` and `api_page` describe the HTTP API.
"""
