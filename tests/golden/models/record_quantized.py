#!/usr/bin/env python3
"""Records the folders *_ct_*: encoders that the compressed-tensors package has quantized, and what they compute there.

    pip install torch==2.15.0 transformers==4.57.6 compressed-tensors==0.20.0 safetensors numpy
    python3 record_quantized.py

The weights are random; the ranges are those of the weights (calculate_qparams), as one-shot tools find them without data.
expected.safetensors has ids, lengths and types (s32), `hidden` of the quantized model, whose linear layers the package computes
with quantized inputs and weights in float32, and `float_hidden` of the model before that; both are zero where a token does not
count."""
import os
import shutil

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch
import transformers as tf
from compressed_tensors.compressors import ModelCompressor
from compressed_tensors.quantization import (QuantizationArgs, QuantizationConfig, QuantizationScheme, QuantizationStatus,
                                             apply_quantization_config, preset_name_to_scheme)
from compressed_tensors.quantization.utils import calculate_qparams
from safetensors.torch import save_file

HERE = os.path.dirname(os.path.abspath(__file__))
COMMON = dict(vocab_size=50, hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=40)
DISTIL = dict(vocab_size=50, dim=24, n_layers=2, n_heads=3, hidden_dim=40, max_position_embeddings=20)
CASES = {
    "bert_ct_w8a8": (lambda: tf.BertModel(tf.BertConfig(**COMMON, max_position_embeddings=20)),
                     lambda: preset_name_to_scheme("W8A8", ["Linear"])),
    "mpnet_ct_w4a16": (lambda: tf.MPNetModel(tf.MPNetConfig(**COMMON, max_position_embeddings=40)),
                       lambda: QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(num_bits=4, group_size=8))),
    "distilbert_ct_fp8": (lambda: tf.DistilBertModel(tf.DistilBertConfig(**DISTIL)),
                          lambda: preset_name_to_scheme("FP8_DYNAMIC", ["Linear"])),
}
LENGTH = 11


def record(name):
    build, scheme = CASES[name]
    generator = torch.Generator().manual_seed(sorted(CASES).index(name))
    torch.manual_seed(1)
    model = build().eval()
    for parameter in model.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator) * (0.5 if parameter.dim() == 1 else 0.3)
    ids = torch.randint(5, 50, (3, LENGTH), generator=generator)
    lengths = torch.tensor([LENGTH, 1, (LENGTH + 1) // 2])
    mask = (torch.arange(LENGTH)[None] < lengths[:, None]).long()
    inputs = {"input_ids": torch.where(mask.bool(), ids, model.config.pad_token_id), "attention_mask": mask}
    expected = {"ids": inputs["input_ids"].int(), "lengths": lengths.int()}
    if getattr(model.config, "type_vocab_size", 0) > 1:
        inputs["token_type_ids"] = torch.randint(0, model.config.type_vocab_size, ids.shape, generator=generator)
        expected["types"] = inputs["token_type_ids"].int()
    with torch.no_grad():
        expected["float_hidden"] = model(**inputs).last_hidden_state * mask[:, :, None]
    apply_quantization_config(model, QuantizationConfig(config_groups={"group_0": scheme()}, ignore=["pooler.dense"]))
    for module in model.modules():
        if getattr(module, "quantization_scheme", None) is None:
            continue
        args = module.quantization_scheme.weights
        weight = module.weight.data
        units = weight.unflatten(-1, (-1, args.group_size)) if args.strategy == "group" else weight.unsqueeze(-2)
        scale, zero = calculate_qparams(units.amin(-1), units.amax(-1), args)
        module.weight_scale.data = scale.reshape(module.weight_scale.shape)
        if hasattr(module, "weight_zero_point"):
            module.weight_zero_point.data = zero.reshape(module.weight_zero_point.shape).to(module.weight_zero_point.dtype)
        module.quantization_status = QuantizationStatus.FROZEN
    with torch.no_grad():
        expected["hidden"] = model(**inputs).last_hidden_state * mask[:, :, None]
    folder = os.path.join(HERE, name)
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    compressor = ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    save_file({k: v.detach().contiguous() for k, v in model.state_dict().items()},
              os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
    model.config.save_pretrained(folder)
    compressor.update_config(folder)
    save_file({k: v.contiguous() for k, v in expected.items()}, os.path.join(folder, "expected.safetensors"))


if __name__ == "__main__":
    for case in CASES:
        record(case)
