"""Clients that send prepared requests to a server, and controls that query its models.

`base` has the seams (`Client`, `Control`, `Slot`), `model` the descriptions that controls return,
`endpoint` the table of services and transports, `wire` and `tls` their options. `transport` chooses what
carries the bytes: tpx's own connections, or `httpx_library` and `grpc_library`, which `proxies` may
require. `http` and `grpc` send requests of the v2 protocol, `grpc_stream` sends them over streams;
`control` (over HTTP) and `grpc_control` query the server. `openai`, `torchserve`, `tfserving` and
`dynamic_grpc` are other services.
"""
