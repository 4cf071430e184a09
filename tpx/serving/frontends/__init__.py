"""Frontends: decode requests, call the data plane, encode responses, and map errors to protocol codes.

`http` and `grpc` assemble all verbs. `http_infer`, `http_generate`, `grpc_infer` and `grpc_stream`
serve inference, `inference` holds what both transports share; `http_control` and `grpc_control` serve
everything else. `http_verbs` and `grpc_verbs` look up verbs and send responses, `outputs` converts
outputs for both protocols. `access` and `forwarding` read keys and headers, `traced` traces requests,
`openapi` and `api_page` describe the HTTP API.
"""
