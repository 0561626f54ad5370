"""A running `aqt serve`, and the answers of `aqt run`."""
import json
import re
import signal
import subprocess


class Server:
    """grpc_port is set if the arguments have --grpc-port."""

    def __init__(self, aqt, *arguments):
        self.grpc_port = None
        self.process = subprocess.Popen([aqt, "serve", *arguments, "--port", "0"], stdout=subprocess.PIPE, text=True)
        for line in self.process.stdout:
            if match := re.fullmatch(r"listening on grpc://127\.0\.0\.1:(\d+)\n", line):
                self.grpc_port = int(match[1])
            if match := re.fullmatch(r"listening on (http://127\.0\.0\.1:(\d+))\n", line):
                self.url, self.port = match[1], int(match[2])
                return
        raise SystemExit("the server did not start")

    def rss_mib(self):
        with open(f"/proc/{self.process.pid}/status", encoding="ascii") as status:
            return int(re.search(r"VmRSS:\s+(\d+) kB", status.read())[1]) / 1024

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(timeout=30)
        if code != 0:
            raise SystemExit(f"the server ended with {code}")


def embeddings(aqt, model, texts):
    """Each text's embedding by `aqt run`."""
    arguments = [argument for text in texts for argument in ("--text", text)]
    output = subprocess.run([aqt, "run", model, "--json", *arguments], check=True, capture_output=True, text=True).stdout
    return [text["embedding"] for text in json.loads(output)["texts"]]
