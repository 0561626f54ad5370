"""AQT for NumPy: quantized contractions, quantizers, saved programs, text encoders, and the conversion of checkpoints.

    import numpy as np
    import aqt_native.numpy as aqt

    w = np.random.rand(64, 32).astype(np.float32)
    plan = aqt.DotGeneral("fully_quantized_int8", ((5, 64), np.float32), w)
    y = plan(np.ones((5, 64), np.float32), plan.prepare("rhs", w))

    aqt.convert("model/", "model-w8a8/", preset="w8a8_dynamic")
    embeddings = aqt.Embedder("all-MiniLM-L6-v2").embed(["a sentence", "another one"])

Arrays are not copied, whatever their strides, if they are aligned. bfloat16, float8 and int4 are those of ml_dtypes; it is
needed only where they occur.

Errors are exceptions with the library's message: `AqtError` and its subclasses, which are also ValueError,
FileNotFoundError and so on.

Threads: objects may be used by several threads at a time, except Residuals. Calls do not hold Python's lock. Objects can
be pickled, except Residuals, Executor and what `Prepared.without_values` returns. After a fork, a child can use every
object but an Executor of its parent.
"""

from __future__ import annotations

from aqt_native.numpy._contraction import DotGeneral, Prepared, Residuals, Statistic
from aqt_native.numpy._convert import convert, dequantize
from aqt_native.numpy._embedder import Embedder, Embeddings
from aqt_native.numpy._errors import (AqtError, CancelledError, DataLossError, ExistsError, FailedPreconditionError,
                                      InvalidArgumentError, MissingError, NotPermittedError, NotSupportedError,
                                      ResourceExhaustedError)
from aqt_native.numpy._executor import Executor
from aqt_native.numpy._library import check_environment, simd_target, supported_targets, version
from aqt_native.numpy._program import Program, Slot
from aqt_native.numpy._quantizer import QuantizedTensor, Quantizer

__all__ = [
    "AqtError", "CancelledError", "DataLossError", "DotGeneral", "Embedder", "Embeddings", "Executor", "ExistsError",
    "FailedPreconditionError", "InvalidArgumentError", "MissingError", "NotPermittedError", "NotSupportedError",
    "Prepared", "Program", "QuantizedTensor", "Quantizer", "Residuals", "ResourceExhaustedError", "Slot", "Statistic",
    "check_environment", "convert", "dequantize", "simd_target", "supported_targets", "version",
]
