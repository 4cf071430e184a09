"""A client process that is killed: it works on many connections at once and never ends by itself.

Only the standard library: it must start in hundredths of a second.
"""

import json
import socket
import sys
from pathlib import Path


def request(method: str, path: str, body: bytes = b"") -> bytes:
    """An HTTP request."""
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def main(http_port: int, grpc_port: int, key: str) -> None:
    """Register a region of the file `key`, begin streams, leave requests half sent, then infer for ever."""
    file = Path("/dev/shm") / key
    file.write_bytes(bytes(4096))
    place = {"shared_memory_region": "victim", "shared_memory_byte_size": 8}
    item = {"name": "x", "datatype": "FP32", "shape": [1, 2], "parameters": place}
    infer = request(
        "POST",
        "/v2/models/double/infer",
        json.dumps({"inputs": [item], "outputs": [{"name": "y", "parameters": place}]}).encode(),
    )
    slowly = json.dumps({"IN": [1] * 100, "DELAY": [10] * 100, "WAIT": [0]}).encode()
    main_connection, *others = [socket.create_connection(("127.0.0.1", http_port)) for _ in range(4)]
    over_http2 = socket.create_connection(("127.0.0.1", grpc_port))
    over_http2.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0)))
    region = json.dumps({"key": key, "offset": 0, "byte_size": 4096}).encode()
    main_connection.sendall(request("POST", "/v2/systemsharedmemory/region/victim/register", region))
    main_connection.recv(1 << 16)
    others[0].sendall(request("POST", "/v2/models/repeat/generate_stream", slowly))
    others[1].sendall(infer[:-10])
    others[2].sendall(infer * 20)
    working = False
    while True:
        main_connection.sendall(infer)
        answer = main_connection.recv(1 << 16)
        if not working:
            working = True
            word = b"working\n" if b" 200 OK" in answer else answer.replace(b"\n", b" ") + b"\n"
            sys.stdout.buffer.write(word)
            sys.stdout.buffer.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
