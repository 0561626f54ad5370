#!/usr/bin/env python3
"""What goes wrong around `aqt serve`: see README.md. usage: faults.py AQT MODEL [--moments N]"""
import argparse
import base64
import http.client
import json
import os
import pathlib
import random
import resource
import signal
import socket
import struct
import subprocess
import tempfile
import threading
import time

import server

TEXTS = [" ".join(f"w{5 + (i * 7 + k * 3) % 20}" for k in range(1 + i % 9)) for i in range(20)]


def ask(connection, index, expected):
    connection.request("POST", "/v1/embeddings", json.dumps({"model": "m", "input": TEXTS[index], "encoding_format": "base64"}))
    answer = connection.getresponse()
    body = answer.read()
    assert answer.status == 200, (answer.status, body)
    assert base64.b64decode(json.loads(body)["data"][0]["embedding"]) == expected[index], "another embedding than that of aqt run"


def start(aqt, model, *arguments, port=0, limit=None):
    """The process and its port. `limit`: the largest file that it may write, in bytes."""
    def preexec():
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    process = subprocess.Popen([aqt, "serve", "m=" + model, "--port", str(port), *arguments], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True, preexec_fn=preexec)  # pylint: disable=subprocess-popen-preexec-fn
    for line in process.stdout:
        if line.startswith("listening on http://"):
            return process, int(line.rsplit(":", 1)[1])
    raise SystemExit("the server did not start: " + process.stderr.read())


def stop(process):
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, process.returncode
    return err


def full_log(aqt, model, expected, path, limit):
    process, port = start(aqt, model, "--log-file", str(path), limit=limit)
    connection = http.client.HTTPConnection("127.0.0.1", port)
    for i in range(200):
        ask(connection, i % len(TEXTS), expected)
    connection.request("GET", "/metrics")
    dropped = [line for line in connection.getresponse().read().decode().splitlines()
               if line.startswith("aqt_log_lines_dropped_total ")]
    assert int(dropped[0].split()[1]) > 0, dropped
    connection.close()
    err = stop(process)
    assert err.count("cannot write the log file") == 1, err


def full_disk(aqt, model, expected, folder):
    """A file system without room, that has some again later."""
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", folder], check=False).returncode != 0:
        return "not done, because only root can mount one"
    try:
        log, rest = folder / "log", folder / "rest"
        full_log(aqt, model, expected, log, None)
        lines, broken = check_log(log)
        assert lines > 20 and broken <= 1, (lines, broken)
        log.unlink()
        rest.write_bytes(bytes(12 << 10))
        process, port = start(aqt, model, "--log-file", str(log))
        connection = http.client.HTTPConnection("127.0.0.1", port)
        for i in range(100):
            ask(connection, i % len(TEXTS), expected)
        before = check_log(log)[0]
        rest.unlink()
        for i in range(20):
            ask(connection, i, expected)
        connection.close()
        stop(process)
        after, broken = check_log(log)
        assert before < 100 and after >= before + 20 and broken <= 1, (before, after, broken)
        return f"done; {before} of 100 lines, then 20 of 20, {broken} of them in part"
    finally:
        subprocess.run(["umount", folder], check=True)


class Clients:
    """Four clients that ask until the server is gone. Every answer that they get is whole and right."""

    def __init__(self, port, expected):
        self.answers, self.wrong = 0, []
        self.threads = [threading.Thread(target=self.run, args=(port, expected, i)) for i in range(4)]
        for thread in self.threads:
            thread.start()

    def run(self, port, expected, seed):
        rng = random.Random(seed)
        while True:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            try:
                while True:
                    ask(connection, rng.randrange(len(TEXTS)), expected)
                    self.answers += 1
            except ConnectionRefusedError:
                return
            except (ConnectionError, http.client.HTTPException):
                connection.close()  # a connection without a request may end
            except AssertionError as error:
                self.wrong.append(error)
                return

    def join(self):
        for thread in self.threads:
            thread.join()
        assert not self.wrong, self.wrong
        return self.answers


def check_log(path):
    """Every line is whole, except those before which a server was killed."""
    lines = path.read_text(encoding="utf-8").split("\n")
    broken = 0
    for line in lines[:-1]:
        try:
            json.loads(line)
        except ValueError:
            broken += 1
    return len(lines) - 1, broken


def any_moment(aqt, model, expected, log, number, moments):
    """Signals at moments between the start and half a second later. The next server has the same port and log."""
    rng, port, answers = random.Random(number), 0, 0
    for _ in range(moments):
        process, port = start(aqt, model, "--log-file", str(log), port=port)
        clients = Clients(port, expected)
        time.sleep(rng.random() * 0.5)
        process.send_signal(number)
        process.communicate(timeout=60)
        assert process.returncode == (0 if number == signal.SIGTERM else -number), process.returncode
        answers += clients.join()
    lines, broken = check_log(log)
    assert broken <= (0 if number == signal.SIGTERM else moments), broken
    return f"{moments} times, {answers} answers, all right; {lines} lines in the log, {broken} of them in part"


def one_port(aqt, model, expected):
    process, port = start(aqt, model)
    second = subprocess.run([aqt, "serve", "m=" + model, "--port", str(port)], capture_output=True, text=True, check=False,
                            timeout=60)
    assert second.returncode != 0 and f"port {port} of 127.0.0.1 is taken by another process" in second.stderr, second
    connection = http.client.HTTPConnection("127.0.0.1", port)
    ask(connection, 0, expected)
    connection.close()
    stop(process)


def reset(aqt, model):
    """Clients that end their connections with a reset, or half-close them, while they are answered."""
    process, port = start(aqt, model)
    body = json.dumps({"model": "m", "input": TEXTS * 50}).encode()
    head = b"POST /v1/embeddings HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body)
    for i in range(50):
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(head + body)
            if i % 2 == 0:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(head + body)
        client.shutdown(socket.SHUT_WR)
        answer = b"".join(iter(lambda: client.recv(1 << 16), b""))
        assert b"HTTP/1.1 200 OK\r\n" in answer, answer[:100]
    stop(process)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("aqt")
    parser.add_argument("model")
    parser.add_argument("--moments", type=int, default=10)
    arguments = parser.parse_args()
    aqt, model = arguments.aqt, arguments.model
    expected = [struct.pack(f"<{len(row)}f", *row) for row in server.embeddings(aqt, model, TEXTS)]
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        full_log(aqt, model, expected, "/dev/full", None)
        print("a full disk for the log: done")
        full_log(aqt, model, expected, folder / "limited", 4096)
        lines, broken = check_log(folder / "limited")
        print(f"a limit for the log (ulimit -f): done; {lines} lines, {broken} of them in part")
        (folder / "disk").mkdir()
        print("a full tmpfs for the log:", full_disk(aqt, model, expected, folder / "disk"))
        one_port(aqt, model, expected)
        print("two servers on one port: done")
        reset(aqt, model)
        print("clients that go away: done")
        for number in (signal.SIGTERM, signal.SIGKILL):
            print(f"{number.name} at any moment:",
                  any_moment(aqt, model, expected, folder / number.name, number, arguments.moments))


if __name__ == "__main__":
    main()
