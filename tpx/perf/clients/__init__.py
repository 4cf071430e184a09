"""Connections to a server that carry requests made beforehand, and that ask it about its models.

`base` has the seams (`Client`, `Control`, `Slot`), `model` the descriptions that controls return,
`endpoint` the table of services and transports, `wire` and `tls` their options. `http` and `grpc` make
requests of the v2 protocol, `grpc_stream` over streams; `http_control` and `grpc_control` ask. `openai`
(with `chat`), `torchserve` and `tfserving` are other services. `outputs` reads the tensors of any
client's responses.
"""
