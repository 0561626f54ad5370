#!/usr/bin/env python3
"""The clients of KServe, for clients.py. They have a process of their own: kserve and tritonclient.grpc declare the same messages.
Standard input: {"url": "http://...", "grpc": "HOST:PORT" or null, "texts": [...], "expected": [[...], ...]}"""
import asyncio
import json
import sys

import kserve
import numpy as np


def request(texts, binary, model="m"):
    tensor = kserve.InferInput("text", [len(texts)], "BYTES")
    tensor.set_data_from_numpy(np.array([text.encode() for text in texts], dtype=object), binary_data=binary)
    return kserve.InferRequest(model, [tensor])


async def check_rest(url, texts, expected):
    async with kserve.InferenceRESTClient(kserve.RESTConfig(protocol="v2")) as client:
        assert await client.is_server_live(url) and await client.is_server_ready(url)
        assert await client.is_model_ready(url, "m")
        for binary in (False, True):
            answer = await client.infer(url, request(texts, binary), model_name="m")
            assert np.array_equal(answer.outputs[0].as_numpy(), expected), binary


async def check_grpc(address, texts, expected):
    async with kserve.InferenceGRPCClient(address) as client:
        assert await client.is_server_live() and await client.is_server_ready() and await client.is_model_ready("m")
        for binary in (False, True):
            answer = await client.infer(request(texts, binary))
            assert np.array_equal(answer.outputs[0].as_numpy(), expected), binary
        try:
            await client.infer(request(texts, True, model="gone"))
        except Exception as error:  # pylint: disable=broad-except
            assert "does not exist" in str(error), error
        else:
            raise AssertionError("an unknown model was accepted")


def main():
    given = json.load(sys.stdin)
    expected = np.float32(given["expected"])
    asyncio.run(check_rest(given["url"], given["texts"], expected))
    print("kserve, REST: done", flush=True)
    if given["grpc"] is not None:
        asyncio.run(check_grpc(given["grpc"], given["texts"], expected))
        print("kserve, gRPC: done", flush=True)


if __name__ == "__main__":
    main()
