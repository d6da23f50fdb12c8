"""The time to the first token of `mkvm serve` (or any OpenAI endpoint), one request at a time, by a plain socket that
waits: what a client sees, with as little of its own as Python allows.

    python3 first_token.py http://127.0.0.1:8080 [--requests 50] [--in 512] [--key K]

Prints one line of JSON, milliseconds (p50, p99): `health_ms`, a request that the server answers by itself, on a
connection of its own, so what connection, socket and client take; `first_ms`, from before the connection to the first
event of the stream, of prompts of random ids that no two requests share. Five requests warm up. The engine's own time
to the first token is that of `mkvm bench --load --concurrency 1`.
"""

import argparse
import json
import random
import socket
import time
import urllib.parse


def ask(o, message, wanted):
    """Sends a request; the milliseconds until `wanted` has come. Reads the answer to its end."""
    start = time.perf_counter()
    with socket.create_connection((o.host, o.port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(message)
        answer, came = b"", None
        while data := connection.recv(1 << 16):
            answer += data
            if came is None and wanted in answer:
                came = time.perf_counter() - start
    if came is None or not answer.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(f"the server says {answer[:300]!r}")
    return came * 1e3


def request(o, seed):
    numbers = random.Random(seed)
    body = json.dumps({"prompt": [numbers.randrange(10, o.vocabulary) for _ in range(o.length)], "max_tokens": 4,
                       "temperature": 0, "stream": True, "ignore_eos": True}).encode()
    key = f"Authorization: Bearer {o.key}\r\n" if o.key else ""
    return (f"POST /v1/completions HTTP/1.1\r\nHost: {o.host}\r\nContent-Type: application/json\r\n{key}"
            f"Connection: close\r\nContent-Length: {len(body)}\r\n\r\n").encode() + body


def percentiles(times):
    times = sorted(times)
    return [round(times[len(times) // 2], 3), round(times[min(len(times) * 99 // 100, len(times) - 1)], 3)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--requests", type=int, default=50)
    parser.add_argument("--in", dest="length", type=int, default=512)
    parser.add_argument("--vocabulary", type=int, default=32000)
    parser.add_argument("--key")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    o = parser.parse_args()
    url = urllib.parse.urlsplit(o.url)
    o.host, o.port = url.hostname, url.port or 80
    health = f"GET /health HTTP/1.1\r\nHost: {o.host}\r\nConnection: close\r\n\r\n".encode()
    messages = [request(o, o.seed * 1000 + i) for i in range(o.requests + 5)]
    for message in messages[:5]:
        ask(o, message, b"data: {")
    print(json.dumps({"in": o.length, "requests": o.requests,
                      "health_ms": percentiles([ask(o, health, b"HTTP/1.1") for _ in range(o.requests)]),
                      "first_ms": percentiles([ask(o, message, b"data: {") for message in messages[5:]])}))


if __name__ == "__main__":
    main()
