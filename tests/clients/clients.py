#!/usr/bin/env python3
"""Clients of PyPI, unchanged, against `aqt serve`: see README.md. usage: clients.py AQT MODEL [--grpc]"""
import argparse
import json
import pathlib
import queue
import shutil
import subprocess
import sys
import tempfile
import urllib.request

import grpc
import numpy as np
import openai
import prometheus_client.parser
import tritonclient.grpc
import tritonclient.http
import tritonclient.utils

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


def check_triton(module, address, expected, **tensors):
    """`module` is tritonclient.http or tritonclient.grpc. A keyword has the values that an option of tensors may have."""
    client = module.InferenceServerClient(address)
    as_dict = {"as_json": True} if module.__name__.endswith("grpc") else {}
    assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("m")
    assert client.get_server_metadata(**as_dict)["name"] == "aqt"
    assert client.get_model_metadata("m", "1", **as_dict)["inputs"][0]["datatype"] == "BYTES"
    config = client.get_model_config("m", **as_dict)
    assert config.get("config", config)["name"] == "m"
    index = client.get_model_repository_index(**as_dict)
    assert (index["models"] if as_dict else index)[0]["state"] == "READY"
    option, values = next(iter(tensors.items()), (None, [None]))
    for value in values:
        keyword = {} if option is None else {option: value}
        for outputs in (None, [module.InferRequestedOutput("embedding", **keyword)]):
            tensor = module.InferInput("text", [len(TEXTS)], "BYTES")
            tensor.set_data_from_numpy(np.array([text.encode() for text in TEXTS], dtype=object), **keyword)
            answer = client.infer("m", [tensor], outputs=outputs, request_id="7")
            assert np.array_equal(answer.as_numpy("embedding"), np.float32(expected))
    stats = client.get_inference_statistics("m", **as_dict)["model_stats"][0]["inference_stats"]
    for name in ("success", "queue", "compute_infer"):
        assert int(stats[name]["count"]) > 0 and int(stats[name]["ns"]) > 0, name
    wrong = module.InferInput("wrong", [1], "BYTES")
    wrong.set_data_from_numpy(np.array([b"a"], dtype=object))
    try:
        client.infer("m", [wrong])
    except tritonclient.utils.InferenceServerException as error:
        assert "'text' of BYTES" in error.message(), error
    else:
        raise AssertionError("an unknown input was accepted")
    client.unload_model("m")
    assert not client.is_model_ready("m")
    client.load_model("m")
    assert client.is_model_ready("m")
    client.close()


def check_triton_stream(address, expected):
    client = tritonclient.grpc.InferenceServerClient(address)
    answers = queue.Queue()
    client.start_stream(lambda result, error: answers.put((result, error)))
    for i in range(30):
        tensor = tritonclient.grpc.InferInput("text", [1], "BYTES")
        text = TEXTS[i % len(TEXTS)] if i % 7 != 6 else ""
        tensor.set_data_from_numpy(np.array([text.encode()], dtype=object))
        client.async_stream_infer("m", [tensor], request_id=str(i))
    for i in range(30):
        result, error = answers.get(timeout=60)
        if i % 7 == 6:
            assert result is None and "is empty" in error.message(), error
        else:
            assert error is None and result.get_response().id == str(i), (i, error)
            assert np.array_equal(result.as_numpy("embedding")[0], np.float32(expected[i % len(TEXTS)]))
    client.stop_stream()
    client.close()


def check_grpc_health(address):
    with grpc.insecure_channel(address) as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        assert check(b"") == check(b"\x0a\x01m") == b"\x08\x01", "SERVING"
        try:
            check(b"\x0a\x04gone")
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.NOT_FOUND, error
        else:
            raise AssertionError("a model that there is not")


def check_kserve(running, expected):
    given = {"url": running.url, "grpc": running.grpc_port and f"127.0.0.1:{running.grpc_port}", "texts": TEXTS, "expected": expected}
    subprocess.run([sys.executable, pathlib.Path(__file__).with_name("kserve_client.py")], input=json.dumps(given), text=True, check=True)


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
    checks = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
    page = pathlib.Path("docs/serving-openapi.json").resolve()
    with server.Server(aqt, "m=" + model, "--model-control", "off") as running, tempfile.TemporaryDirectory() as cache:
        subprocess.run(["schemathesis", "run", page, "--url", running.url, "--checks", checks, "--max-examples", "50"],
                       check=True, cwd=cache)
    return print("schemathesis: done")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("aqt")
    parser.add_argument("model")
    parser.add_argument("--grpc", action="store_true", help="the build has gRPC")
    arguments = parser.parse_args()
    aqt, model = arguments.aqt, arguments.model
    expected = server.embeddings(aqt, model, TEXTS)
    with server.Server(aqt, "m=" + model, *(["--grpc-port", "0"] if arguments.grpc else [])) as running:
        check_openai(running, expected)
        print("openai: done")
        check_triton(tritonclient.http, f"127.0.0.1:{running.port}", expected, binary_data=[False, True])
        print("tritonclient.http: done")
        check_kserve(running, expected)
        if arguments.grpc:
            check_triton(tritonclient.grpc, f"127.0.0.1:{running.grpc_port}", expected)
            check_triton_stream(f"127.0.0.1:{running.grpc_port}", expected)
            check_grpc_health(f"127.0.0.1:{running.grpc_port}")
            print("tritonclient.grpc: done")
        check_prometheus(running)
        print("prometheus_client: done")
    check_schemathesis(aqt, model)


if __name__ == "__main__":
    main()
