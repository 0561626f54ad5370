"""The rooms of the library: what each folder holds, and which folders it may use.

This table is the only source. tests/repo/arrows refuses any dependency or #include that it does not allow. bazel/room_picture.py
generates the table and the picture in docs/design/architecture.md from it and from the BUILD files.
"""
import dataclasses


@dataclasses.dataclass(frozen=True)
class Room:
    holds: str
    uses: tuple  # the rooms that it may use directly; the rooms that those may use are included
    testonly: bool = False


def _room(holds, uses="", testonly=False):
    return Room(holds, tuple(uses.split()), testonly)


# Folders with rooms. In `uses` such a folder stands for all its rooms, except those for tests. A house may also be a room itself.
HOUSES = ("aqt/core", "aqt/graph", "aqt/io", "aqt/kernels", "aqt/models", "aqt/nn", "aqt/ops", "aqt/quant", "aqt/runtime", "aqt/tokenizers",
          "aqt/transforms",
          "serving")

ROOMS = {
    "aqt/core": _room("arrays, dtypes, shapes, dimension numbers, random keys"),
    "aqt/core/machine": _room("the machine: SIMD targets, threads, verbosity", "aqt/core"),
    "aqt/collective": _room("collective operations of several processes, and their transports: threads, MPI",
                            "aqt/core"),
    "aqt/io": _room("files, JSON, printable text", "aqt/core"),
    "aqt/io/tensors": _room("file formats that hold tensors: safetensors, checkpoints in several files; their common interface `TensorSource`",
                            "aqt/io"),
    "aqt/io/archives": _room("ZIP archives, deflated files, parts of files", "aqt/io"),
    "aqt/io/containers": _room("tensors in the files of NumPy, PyTorch and flax", "aqt/io/archives aqt/io/tensors"),
    "aqt/tokenizers/text": _room("characters, their properties, and patterns that find them", "aqt/io"),
    "aqt/tokenizers/splitting": _room("from a text to words: normalizers and pre-tokenizers", "aqt/tokenizers/text"),
    "aqt/tokenizers/vocabularies": _room("from words to ids: BPE, Unigram, WordPiece", "aqt/tokenizers/text"),
    "aqt/tokenizers": _room("text to token ids, from `tokenizer.json` or `vocab.txt` ([tokenizers.md](../tokenizers.md))",
                            "aqt/tokenizers/splitting aqt/tokenizers/vocabularies"),
    "aqt/kernels/simd": _room("shared SIMD code: targets, conversions, arithmetic, math", "aqt/core/machine"),
    "aqt/kernels/random": _room("noise for stochastic rounding", "aqt/kernels/simd"),
    "aqt/kernels/quantize": _room("absmax, quantization of rows to integers, rotation, packed words", "aqt/kernels/random"),
    "aqt/kernels/small_floats": _room("floats of 4 to 8 bits: quantization to FP8 and to scaled blocks, decoding", "aqt/kernels/quantize"),
    "aqt/kernels/panels": _room("matrices as strided memory and as panels: description, packing, interleaving, decoding",
                                "aqt/kernels/small_floats"),
    "aqt/kernels/gemm": _room("matrix products; `isa/` has one file per instruction set", "aqt/kernels/panels"),
    "aqt/kernels/digits": _room("f32 products as exact sums of integer products", "aqt/kernels/gemm"),
    "aqt/kernels/elementwise": _room("elementwise operations, fused strips, conversion of arrays", "aqt/kernels/simd"),
    "aqt/kernels/reduce": _room("sums and maxima along axes and over windows, cumulative sums", "aqt/kernels/simd"),
    "aqt/kernels/move": _room("gather and pad", "aqt/kernels/simd"),
    "aqt/kernels/attention": _room("attention by blocks of queries whose scores stay in cache", "aqt/kernels/gemm aqt/kernels/elementwise"),
    "aqt/kernels": _room("plain contractions of arrays, on the kernels of the rooms below", "aqt/kernels/digits"),
    "aqt/quant/config": _room("configuration: plain structs, builders, tilings, rules of arithmetic, call options",
                              "aqt/core/machine"),
    "aqt/quant/numerics": _room("arithmetic on numbers and rows: rounding, clipping, noise", "aqt/quant/config aqt/kernels"),
    "aqt/quant/weights": _room("stored weights: the arithmetic and packing of checkpoints", "aqt/quant/numerics"),
    "aqt/quant/tensor": _room("QTensor, calibration, quantizer, GPTQ", "aqt/quant/numerics"),
    "aqt/quant/text": _room("configurations to and from textprotos", "aqt/quant/tensor"),
    "aqt/quant/contraction": _room("plans of contractions: dot_general, einsum, convolution, ragged; `engine/` has the implementation",
                                   "aqt/quant/tensor"),
    "aqt/quant/reference": _room("the slow, obvious contractions that tests compare with", "aqt/quant/contraction",
                                 testonly=True),
    "aqt/quant": _room("aliases of the documented libraries"),
    "aqt/stored": _room("checkpoints whose weights are quantized already, read as float tensors or as their integers",
                        "aqt/io aqt/quant/weights aqt/native"),
    "aqt/gguf": _room("GGUF files: the container, and models as float tensors", "aqt/io aqt/quant/weights"),
    "aqt/native": _room("our own layout of quantized weights in files", "aqt/io aqt/quant/tensor"),
    "aqt/graph": _room("programs: values, operations, tracing; independent of quantization", "aqt/kernels"),
    "aqt/graph/interpret": _room("evaluation, gradients, dependences and rewriting of programs", "aqt/graph"),
    "aqt/graph/draw": _room("programs as pictures", "aqt/graph"),
    "aqt/graph/saved": _room("programs to and from files", "aqt/graph/interpret"),
    "aqt/ops": _room("code shared by the rooms of `aqt/ops`: dimensions, descriptions, functions of values",
                     "aqt/quant aqt/graph"),
    "aqt/ops/expand": _room("quantization written out in basic operations, and the operations that only it needs", "aqt/ops"),
    "aqt/ops/contraction": _room("contractions of every kind, float and quantized, as operations of a program", "aqt/ops/expand"),
    "aqt/ops/fp8": _room("FP8 scaling with histories, and products with it",
                         "aqt/ops/contraction aqt/ops/collective"),
    "aqt/ops/scaling": _room("scaled values, sums in low precision, debug callbacks", "aqt/ops"),
    "aqt/ops/attention": _room("attention as one operation of a program", "aqt/ops"),
    "aqt/ops/collective": _room("exchanges between processes", "aqt/ops aqt/collective"),
    "aqt/ops/saved": _room("operations to and from saved programs", "aqt/ops/attention aqt/ops/contraction aqt/ops/fp8 aqt/ops/scaling"),
    "aqt/transforms": _room("transforms of programs: simplify, expand, remove unused equations", "aqt/ops"),
    "aqt/transforms/quantize": _room("inject quantization, fold weights, serve", "aqt/transforms"),
    "aqt/transforms/precision": _room("mixed precision, loss scaling, Scalify", "aqt/transforms"),
    "aqt/transforms/parallel": _room("programs for several processes", "aqt/transforms"),
    "aqt/runtime/memory": _room("arenas and pools", "aqt/ops"),
    "aqt/runtime/fusion": _room("elementwise operations and reductions in one pass", "aqt/runtime/memory"),
    "aqt/runtime": _room("programs compiled to run many times ([runtime.md](../runtime.md)); prepared programs with packed weights",
                         "aqt/runtime/fusion aqt/transforms"),
    "aqt/nn/layers": _room("parameters and layers", "aqt/ops"),
    "aqt/nn/serve": _room("trained models made ready to answer", "aqt/nn/layers aqt/transforms aqt/runtime"),
    "aqt/nn/train": _room("optimizers, trainer, files of training state", "aqt/nn/layers aqt/transforms aqt/runtime aqt/io"),
    "aqt/nn/weights": _room("parameters from checkpoints", "aqt/nn/layers aqt/io aqt/stored"),
    "aqt/models/families": _room("architectures: one file per family of models, and the layers that they share", "aqt/nn aqt/io"),
    "aqt/models": _room("models built from their folders: architecture, weights, pooling, heads", "aqt/models/families aqt/stored"),
    "aqt/models/text": _room("from text to embeddings and classes: a tokenizer with a model", "aqt/models aqt/tokenizers"),
    "aqt/jax": _room("JAX: handlers for XLA, and the Python package `aqt_native` ([jax.md](../jax.md)); its targets are manual",
                     "aqt/runtime aqt/io"),
    "aqt/testing": _room("test code shared by several rooms", "aqt/nn", testonly=True),
    "configs": _room("what users write: the protos of configurations, and presets"),
    "serving/tools": _room("exit codes, wording, progress, threads", "aqt/io"),
    "serving/formats": _room("the layouts of quantized checkpoints", "serving/tools aqt/stored"),
    "serving/families": _room("kinds of modules: the table of model families, and evidence from shapes",
                              "serving/formats configs"),
    "serving/plan": _room("the decision for each tensor: configuration, rules, plan", "serving/families"),
    "serving/convert": _room("conversion, verification and inspection of checkpoints", "serving/plan aqt/gguf"),
    "serving/compare": _room("what a checkpoint holds, and how it differs from another", "serving/convert"),
    "serving/gguf": _room("GGUF files with other types: rules, and the conversion", "serving/convert aqt/gguf"),
    "serving/engine": _room("models that answer requests on many threads ([serving-engine.md](../serving-engine.md))",
                            "serving/tools aqt/models"),
    "serving/http/wire": _room("HTTP: messages, parsing, the server", "aqt/core"),
    "serving/http/models": _room("models by name: what they answer, loading and unloading", "serving/http/wire serving/tools aqt/models"),
    "serving/http/api": _room("the endpoints", "serving/http/models"),
    "serving/http": _room("models served over HTTP ([serving-http.md](../serving-http.md))", "serving/http/api serving/engine"),
    "serving/grpc": _room("the same models over gRPC, in builds with `--config=grpc` ([serving-grpc.md](../serving-grpc.md))",
                          "serving/http"),
    "serving/cli/flags": _room("flags that commands share, and how a command runs", "serving/convert aqt/gguf"),
    "serving/cli/help": _room("the command line described by itself: completion, the man page", "serving/cli/flags"),
    "serving/cli/checkpoints": _room("the commands for checkpoints", "serving/cli/flags serving/compare serving/gguf"),
    "serving/cli/programs": _room("the commands for programs and configurations", "serving/cli/flags serving/engine"),
    "serving/cli/models": _room("the commands for models: run, bench, serve", "serving/cli/programs serving/grpc"),
    "serving/cli": _room("the `aqt` command", "serving/cli/help serving/cli/checkpoints serving/cli/models"),
    "serving/c": _room("the C interface `aqt/c_api.h` ([c-api.md](../c-api.md)), which conversion is a part of, and its shared library",
                       "serving/cli/checkpoints serving/cli/programs"),
    "serving/python": _room("the wheel `aqt-native` ([python.md](../python.md))", "serving/c serving/cli aqt/jax"),
    "serving": _room("the public targets", "serving/python"),
}


def rooms_in(house):
    """The rooms of a house, without the house itself."""
    return [name for name in ROOMS if house in HOUSES and name.startswith(house + "/")]


def house_of(folder):
    """The house of a folder: "aqt/quant" for itself and for "aqt/quant/config". Any other folder is its own house."""
    return next((house for house in HOUSES if folder.startswith(house + "/")), folder)


def named(name, user):
    """The rooms that a name in the `uses` of `user` stands for. Within a house, its name means only the folder itself."""
    rooms = [] if house_of(user) == name else [room for room in rooms_in(name) if not ROOMS[room].testonly]
    return rooms + [name] * (name in ROOMS)


def may_use(room):
    """All rooms that a room may use, without itself. ValueError for a circle."""
    found, todo = set(), [(room, (room,))]
    while todo:
        user, way = todo.pop()
        for name in ROOMS[user].uses:
            for other in named(name, user):
                if other in way:
                    raise ValueError("a circle: " + " -> ".join((*way, other)))
                if other not in found:
                    found.add(other)
                    todo.append((other, (*way, other)))
    return found
