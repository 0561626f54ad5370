#!/usr/bin/env python3
"""Compares `aqt serve` with ONNX Runtime int8 behind uvicorn on this machine, taking turns.

  examples/minilm/fetch.py /tmp/minilm
  ./bazelw build //serving/cli:aqt
  VENV/bin/python tests/benchmarks/serving/compare_serving.py /tmp/minilm

Needs torch, transformers, onnx, onnxruntime, onnxscript, tokenizers, starlette and uvicorn. Both servers answer the same requests of
/v1/embeddings (base64) from the same clients, which share the machine with them. Every round asks each server for each number of texts
in turn; a figure is the median over the rounds. ONNX Runtime's model is that of compare_encoders.py.

The last lines are the overhead of a request with one text from one client: the time that the client waits, less the time that the
engine needs for the text (queue and batch, from the statistics of the server), as means over the same requests. Making tokens of the
text, JSON and sockets are thus overhead.
"""
import argparse
import base64
import json
import math
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path.insert(0, str(HERE.parent / "encoders"))
import compare_encoders  # noqa: E402  pylint: disable=wrong-import-position


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path, help="a BertModel with mean pooling, such as all-MiniLM-L6-v2")
    parser.add_argument("--preset", default="int8_hadamard", help="of aqt serve (default %(default)s)")
    parser.add_argument("--threads", type=int, default=0, help="of both servers; 0: one for each CPU")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=3, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "bazel-bin/serving/cli/aqt")
    return parser.parse_args()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    def __init__(self, name, command, port, **environment):
        self.name, self.port = name, port
        self.process = subprocess.Popen(command, env={**os.environ, **environment}, stdout=subprocess.DEVNULL)
        while True:
            try:
                self.get("/healthz")
                return
            except OSError:
                if self.process.poll() is not None:
                    sys.exit(f"compare_serving: {name} did not start")
                time.sleep(0.1)

    def get(self, path):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=60) as answer:
            return answer.read()

    def stop(self):
        self.process.terminate()
        self.process.wait(timeout=60)


class Client:
    """One connection. It does as little as it can, because it shares the CPUs."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, request):
        self.socket.sendall(request)
        data = self.socket.recv(1 << 16)
        while (end := data.find(b"\r\n\r\n")) < 0:
            data += self.socket.recv(1 << 16)
        head = data[:end].lower()
        if not head.startswith(b"http/1.1 200 "):
            raise SystemExit(data)
        length = int(head.split(b"content-length:", 1)[1].split(b"\r\n", 1)[0])
        parts, size = [data[end + 4:]], len(data) - end - 4
        while size < length:
            parts.append(self.socket.recv(1 << 20))
            size += len(parts[-1])
        return b"".join(parts)


def request_of(texts):
    body = json.dumps({"model": "m", "input": texts, "encoding_format": "base64"}).encode()
    return (b"POST /v1/embeddings HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)) + body


def measure(server, requests, clients, seconds):
    """Latencies in seconds, and requests per second."""
    latencies, begin = [], time.perf_counter()

    def run(offset):
        client, number = Client(server.port), offset
        while (now := time.perf_counter()) < begin + seconds:
            client.ask(requests[number % len(requests)])
            latencies.append(time.perf_counter() - now)
            number += clients

    threads = [threading.Thread(target=run, args=(i,)) for i in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    latencies.sort()
    return latencies, len(latencies) / (time.perf_counter() - begin)


def check_same(servers, texts):
    """Both servers answer with embeddings of the same texts."""
    import numpy as np
    rows = []
    for server in servers:
        data = json.loads(Client(server.port).ask(request_of(texts)))["data"]
        rows.append(np.stack([np.frombuffer(base64.b64decode(item["embedding"]), np.float32) for item in data]))
    cosines = (rows[0] * rows[1]).sum(1)
    if cosines.min() < 0.95:
        sys.exit(f"compare_serving: the servers differ: a cosine of {cosines.min():.3f}")


def engine_seconds(server):
    stats = json.loads(server.get("/v2/models/m/stats"))["model_stats"][0]["inference_stats"]
    return (stats["queue"]["ns"] + stats["compute_infer"]["ns"]) / 1e9


def overhead(server, requests, count=500):
    client = Client(server.port)
    for request in requests:  # compiles
        client.ask(request)
    before, begin = engine_seconds(server), time.perf_counter()
    for i in range(count):
        client.ask(requests[i % len(requests)])
    waited = time.perf_counter() - begin
    return (waited - (engine_seconds(server) - before)) / count, waited / count


def compare(args, servers, sentences):
    figures = {}
    for batch in (1, 32):
        texts = [sentences[i:i + batch] for i in range(0, len(sentences) - batch + 1, batch)]
        requests = [request_of(part) for part in texts]
        for server in servers:
            measure(server, requests, args.clients, args.seconds / 2)  # compiles
        for _ in range(args.rounds):
            for server in servers:
                latencies, rate = measure(server, requests, args.clients, args.seconds)
                figures.setdefault((batch, server.name), []).append(
                    (rate * batch, latencies[len(latencies) // 2] * 1e3, latencies[len(latencies) * 99 // 100] * 1e3))
    print(f"| {args.clients} clients | texts in a request | texts/s | p50, ms | p99, ms |\n|---|---|---|---|---|")
    for (batch, name), rows in figures.items():
        texts, p50, p99 = (statistics.median(column) for column in zip(*rows))
        print(f"| {name} | {batch} | {texts:.0f} | {p50:.2f} | {p99:.2f} |")
    for batch in (1, 32):
        ours, theirs = (figures[batch, server.name] for server in servers)
        for column, what in enumerate(("texts/s", "p50", "p99")):
            ratios = [(a[column] / b[column]) ** (1 if column == 0 else -1) for a, b in zip(ours, theirs)]
            mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
            print(f"{batch} texts, {what}: {mean:.2f} x ({', '.join(f'{ratio:.2f}' for ratio in ratios)})")


def main():
    args = arguments()
    threads = args.threads or len(os.sched_getaffinity(0))
    sentences = compare_encoders.read_sentences()
    with tempfile.TemporaryDirectory() as work:
        float_path, int8_path = (str(pathlib.Path(work) / name) for name in ("float.onnx", "int8.onnx"))
        import torch
        import transformers
        compare_encoders.export_onnx(transformers.AutoModel.from_pretrained(args.folder, dtype=torch.float32).eval(), float_path,
                                     int8_path)
        ports = free_port(), free_port()
        servers = [
            Server(f"aqt {args.preset}", [args.bin, "serve", f"m={args.folder}", "--preset", args.preset, "--port", str(ports[0]),
                                          "--threads", str(threads)], ports[0]),
            Server("ONNX Runtime int8, uvicorn",
                   [sys.executable, "-m", "uvicorn", "onnx_app:app", "--app-dir", str(HERE), "--port", str(ports[1]), "--log-level",
                    "warning"], ports[1], ONNX_MODEL=int8_path, ONNX_TOKENIZER=str(args.folder / "tokenizer.json"),
                   ONNX_THREADS=str(threads))]
        try:
            check_same(servers, sentences[:32])
            compare(args, servers, sentences)
            requests = [request_of(sentences[0])]
            rounds = [overhead(servers[0], requests) for _ in range(args.rounds)]
            print("overhead of a request with one text: " + ", ".join(f"{o * 1e6:.0f}" for o, _ in rounds) +
                  f" us; median {statistics.median(o for o, _ in rounds) * 1e6:.0f} us of " +
                  f"{statistics.median(w for _, w in rounds) * 1e6:.0f} us")
        finally:
            for server in servers:
                server.stop()


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    main()
