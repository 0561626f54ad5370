"""What compare_serving.py compares with: ONNX Runtime behind uvicorn, with the answers of /v1/embeddings that clients need."""
import base64
import os

import numpy as np
import onnxruntime
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse
from starlette.routing import Route
import tokenizers

_options = onnxruntime.SessionOptions()
_options.intra_op_num_threads = int(os.environ["ONNX_THREADS"])
_options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
_session = onnxruntime.InferenceSession(os.environ["ONNX_MODEL"], _options, providers=["CPUExecutionProvider"])
_tokenizer = tokenizers.Tokenizer.from_file(os.environ["ONNX_TOKENIZER"])
_tokenizer.enable_padding()
_tokenizer.enable_truncation(256)


def embed(texts):
    encodings = _tokenizer.encode_batch(texts)
    ids = np.array([encoding.ids for encoding in encodings], np.int64)
    mask = np.array([encoding.attention_mask for encoding in encodings], np.int64)
    hidden = _session.run(None, {"input_ids": ids, "attention_mask": mask})[0]
    mean = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)
    return (mean / np.linalg.norm(mean, axis=1, keepdims=True)).astype(np.float32)


async def embeddings(request):
    texts = (await request.json())["input"]
    rows = await run_in_threadpool(embed, [texts] if isinstance(texts, str) else texts)
    return JSONResponse({"object": "list", "data": [{"object": "embedding", "index": i,
                                                      "embedding": base64.b64encode(row.tobytes()).decode()}
                                                     for i, row in enumerate(rows)]})


async def health(_):
    return JSONResponse({"status": "ok"})


app = Starlette(routes=[Route("/v1/embeddings", embeddings, methods=["POST"]), Route("/healthz", health)])
