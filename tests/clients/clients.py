#!/usr/bin/env python3
"""Clients of PyPI, unchanged, against `aqt serve`: see README.md. usage: clients.py AQT MODEL"""
import shutil
import subprocess
import sys
import urllib.request

import numpy as np
import openai
import prometheus_client.parser
import tritonclient.http

import server

TEXTS = ["w7 w8", "w9", "w10 w11 w12 w13"]


def check_openai(running, expected):
    client = openai.OpenAI(base_url=running.url + "/v1", api_key="none", max_retries=0)
    assert [model.id for model in client.models.list()] == ["m"]
    assert client.models.retrieve("m").id == "m"
    for encoding in ({}, {"encoding_format": "float"}, {"encoding_format": "base64"}):
        answer = client.embeddings.create(model="m", input=TEXTS, **encoding)
        if encoding.get("encoding_format") != "base64":
            got = [item.embedding for item in answer.data]
            assert np.array_equal(np.float32(got), np.float32(expected)), encoding
    one = client.embeddings.create(model="m", input=TEXTS[0], dimensions=8).data[0].embedding
    cut = np.float64(np.float32(expected[0][:8]))
    assert np.allclose(one, cut / np.linalg.norm(cut), rtol=1e-6), "one rounding to f32"
    for error, call in (
            (openai.NotFoundError, lambda: client.embeddings.create(model="gone", input="a")),
            (openai.BadRequestError, lambda: client.embeddings.create(model="m", input="")),
            (openai.BadRequestError, lambda: client.embeddings.create(model="m", input=[1, 2])),
            (openai.BadRequestError, lambda: client.embeddings.create(model="m", input="w7 " * 10000))):
        try:
            call()
        except error as e:
            assert e.body["message"], e
        else:
            raise AssertionError(error)


def check_triton(running, expected):
    client = tritonclient.http.InferenceServerClient(f"127.0.0.1:{running.port}")
    assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("m")
    assert client.get_server_metadata()["name"] == "aqt"
    assert client.get_model_metadata("m", "1")["inputs"][0]["datatype"] == "BYTES"
    assert client.get_model_config("m")["name"] == "m"
    assert client.get_model_repository_index()[0]["state"] == "READY"
    for binary_input in (False, True):
        for outputs in (None, [tritonclient.http.InferRequestedOutput("embedding", binary_data=False)],
                        [tritonclient.http.InferRequestedOutput("embedding", binary_data=True)]):
            tensor = tritonclient.http.InferInput("text", [len(TEXTS)], "BYTES")
            tensor.set_data_from_numpy(np.array([text.encode() for text in TEXTS], dtype=object), binary_data=binary_input)
            answer = client.infer("m", [tensor], outputs=outputs)
            assert np.array_equal(answer.as_numpy("embedding"), np.float32(expected))
    assert client.get_inference_statistics("m")["model_stats"][0]["inference_stats"]["success"]["count"] > 0
    client.unload_model("m")
    assert not client.is_model_ready("m")
    client.load_model("m")
    assert client.is_model_ready("m")
    client.close()


def check_prometheus(running):
    with urllib.request.urlopen(running.url + "/metrics") as page:
        families = {family.name: family for family in
                    prometheus_client.parser.text_string_to_metric_families(page.read().decode())}
    tokens = families["aqt_model_tokens"].samples
    assert tokens[0].labels == {"model": "m"} and tokens[0].value > 0
    assert families["aqt_http_request_seconds"].type == "histogram"


def check_schemathesis(aqt, model):
    if shutil.which("schemathesis") is None:
        return print("schemathesis: is not installed")
    # It finds the model's name and unloads it where it can; everything else is then 503.
    with server.Server(aqt, "m=" + model, "--model-control", "off") as running:
        subprocess.run(["schemathesis", "run", "docs/serving-openapi.json", "--url", running.url, "--checks",
                        "not_a_server_error", "--max-examples", "50"], check=True)
    return print("schemathesis: done")


def main(aqt, model):
    expected = server.embeddings(aqt, model, TEXTS)
    with server.Server(aqt, "m=" + model) as running:
        check_openai(running, expected)
        print("openai: done")
        check_triton(running, expected)
        print("tritonclient: done")
        check_prometheus(running)
        print("prometheus_client: done")
    check_schemathesis(aqt, model)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
