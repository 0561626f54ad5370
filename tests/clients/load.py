#!/usr/bin/env python3
"""64 clients of many kinds against `aqt serve`: see README.md. usage: load.py AQT MODEL [--seconds S] [-- SERVE ARGUMENTS]"""
import argparse
import base64
import collections
import http.client
import json
import random
import socket
import struct
import threading
import time

import server

TEXTS = [" ".join(f"w{5 + (i * 7 + k * 3) % 20}" for k in range(1 + i % 9)) for i in range(40)]
KINDS = ["text"] * 44 + ["batch"] * 6 + ["cancel"] * 4 + ["large"] * 2 + ["nonsense"] * 4 + ["slow"] * 4


class Load:
    def __init__(self, running, expected, seconds):
        self.running, self.expected = running, expected
        self.end = time.monotonic() + seconds
        self.counts, self.latencies, self.errors = collections.Counter(), [], []
        self.lock = threading.Lock()

    def note(self, what, seconds=None):
        with self.lock:
            self.counts[what] += 1
            if seconds is not None:
                self.latencies.append(seconds)

    def post(self, connection, texts):
        begin = time.monotonic()
        connection.request("POST", "/v1/embeddings", json.dumps(
            {"model": "m", "input": [TEXTS[i] for i in texts], "encoding_format": "base64"}))
        answer = connection.getresponse()
        body = answer.read()
        if answer.status == 429:
            return self.note("429")
        if answer.status != 200:
            raise AssertionError((answer.status, body))
        for i, item in zip(texts, json.loads(body)["data"]):
            if base64.b64decode(item["embedding"]) != self.expected[i]:
                raise AssertionError(f"text {i}: another embedding than that of aqt run")
        self.note(f"{len(texts)} texts", time.monotonic() - begin)

    def raw(self, data, wait=0.0, read=True):
        with socket.create_connection(("127.0.0.1", self.running.port), timeout=30) as client:
            try:
                for part in data:
                    client.sendall(part)
                    time.sleep(wait)
                return client.recv(100) if read else b""
            except (ConnectionResetError, BrokenPipeError):
                return b""

    def step(self, kind, rng, connection):
        head = b"POST /v1/embeddings HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n"
        if kind == "text":
            self.post(connection, [rng.randrange(len(TEXTS))])
        elif kind == "batch":
            self.post(connection, [rng.randrange(len(TEXTS)) for _ in range(32)])
        elif kind == "cancel":
            body = json.dumps({"model": "m", "input": TEXTS}).encode()
            self.raw([head % len(body), body[:rng.randrange(len(body) + 1)]], read=False)
            self.note(kind)
        elif kind == "large":
            answer = self.raw([head % (1 << 40)])
            assert answer.startswith(b"HTTP/1.1 413 "), answer
            answer = self.raw([head % (34 << 20)] + [b"x" * (1 << 20)] * 33)
            assert answer == b"" or answer.startswith(b"HTTP/1.1 413 "), answer
            self.note(kind)
        elif kind == "nonsense":
            answer = self.raw([rng.randbytes(rng.randrange(1, 2000)) + b"\r\n\r\n"])
            assert answer == b"" or answer.startswith(b"HTTP/1.1 4") or answer.startswith(b"HTTP/1.1 50"), answer
            body = rng.randbytes(rng.randrange(1, 2000))
            answer = self.raw([head % len(body), body])
            assert answer.startswith(b"HTTP/1.1 400 "), answer
            self.note(kind)
        elif kind == "slow":
            self.raw([b"G", b"E", b"T", b" ", b"/"], wait=0.5, read=False)
            self.note(kind)

    def client(self, number, kind):
        rng = random.Random(number)
        connection = http.client.HTTPConnection("127.0.0.1", self.running.port, timeout=60)
        while time.monotonic() < self.end and not self.errors:
            try:
                self.step(kind, rng, connection)
            except Exception as error:  # pylint: disable=broad-except
                self.errors.append((kind, repr(error)))
        connection.close()


def report(load, seconds):
    latencies = sorted(load.latencies)
    print(dict(load.counts))
    if latencies:
        print(f"{len(latencies) / seconds:.0f} requests/s, p50 {latencies[len(latencies) // 2] * 1e3:.2f} ms, "
              f"p99 {latencies[len(latencies) * 99 // 100] * 1e3:.2f} ms")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("aqt")
    parser.add_argument("model")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("serve", nargs="*", help="further arguments of aqt serve")
    arguments = parser.parse_args()
    expected = [struct.pack(f"<{len(row)}f", *row) for row in server.embeddings(arguments.aqt, arguments.model, TEXTS)]
    with server.Server(arguments.aqt, "m=" + arguments.model, *arguments.serve) as running:
        load = Load(running, expected, arguments.seconds)
        threads = [threading.Thread(target=load.client, args=item) for item in enumerate(KINDS)]
        for thread in threads:
            thread.start()
        rss = []
        while time.monotonic() < load.end and not load.errors:
            time.sleep(min(5, arguments.seconds / 4))
            rss.append(round(running.rss_mib(), 1))
        for thread in threads:
            thread.join()
        print("resident MiB over time:", *rss)
        report(load, arguments.seconds)
        if load.errors:
            raise SystemExit(load.errors[:3])
        alone = http.client.HTTPConnection("127.0.0.1", running.port)
        load.latencies.clear()
        load.counts.clear()
        begin = time.monotonic()
        for i in range(500):
            load.post(alone, [i % len(TEXTS)])
        print("one client:")
        report(load, time.monotonic() - begin)


if __name__ == "__main__":
    main()
