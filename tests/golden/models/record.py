#!/usr/bin/env python3
"""Records the folders beside this file: tiny encoders with random weights, and what transformers and sentence-transformers
compute with them.

    pip install torch==2.15.0 transformers==4.57.6 sentence-transformers==6.2.0 safetensors numpy
    python3 record.py

Each folder is that of a model. expected.safetensors has ids, lengths and types (s32), the hidden states of transformers in
float32 and, if there is a modules.json, the embeddings of sentence-transformers' modules."""
import json
import os
import shutil

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch
import transformers as tf
from safetensors.torch import save_file
from sentence_transformers import models as st

HERE = os.path.dirname(os.path.abspath(__file__))
COMMON = dict(vocab_size=50, hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=40)
DISTIL = dict(vocab_size=50, dim=24, n_layers=2, n_heads=3, hidden_dim=40, max_position_embeddings=20)


def pooling(*modes):
    return st.Pooling(24, **{f"pooling_mode_{m}": m in modes for m in
                             ("cls_token", "max_tokens", "mean_tokens", "mean_sqrt_len_tokens")})


# Folder -> model, modules after the transformer, length of the longest text, dtype of the file.
CASES = {
    "bert": (lambda: tf.BertModel(tf.BertConfig(**COMMON, max_position_embeddings=20)),
             lambda: [pooling("mean_tokens"), st.Normalize()], 12, torch.float32),
    "bert_relu_bf16": (lambda: tf.BertForMaskedLM(tf.BertConfig(
        **COMMON, max_position_embeddings=20, hidden_act="relu", type_vocab_size=3, layer_norm_eps=1e-5)),
        lambda: [pooling("cls_token", "max_tokens"), st.Dense(48, 16), st.Normalize()], 20, torch.bfloat16),
    "roberta": (lambda: tf.RobertaModel(tf.RobertaConfig(**COMMON, max_position_embeddings=20, type_vocab_size=1)),
                lambda: [pooling("mean_sqrt_len_tokens")], 18, torch.float32),
    "xlm_roberta": (lambda: tf.XLMRobertaForMaskedLM(tf.XLMRobertaConfig(
        **COMMON, max_position_embeddings=20, type_vocab_size=1, pad_token_id=3, hidden_act="gelu_new")), None, 9,
        torch.float32),
    "distilbert": (lambda: tf.DistilBertModel(tf.DistilBertConfig(**DISTIL)),
                   lambda: [pooling("max_tokens"), st.Dense(24, 8, bias=False, activation_function=torch.nn.Identity())],
                   11, torch.float32),
    "distilbert_f16": (lambda: tf.DistilBertForMaskedLM(tf.DistilBertConfig(**DISTIL, sinusoidal_pos_embds=True)), None, 20,
                       torch.float16),
    "mpnet": (lambda: tf.MPNetModel(tf.MPNetConfig(**COMMON, max_position_embeddings=400)),
              lambda: [pooling("mean_tokens"), st.Normalize()], 14, torch.float32),
    "mpnet_long": (lambda: tf.MPNetForMaskedLM(tf.MPNetConfig(**dict(COMMON, num_hidden_layers=1), max_position_embeddings=202)),
                   None, 200, torch.float32),
}


def record(name):
    build, modules, length, dtype = CASES[name]
    generator = torch.Generator().manual_seed(sorted(CASES).index(name))
    torch.manual_seed(1)
    model = build().eval()
    for parameter in model.parameters():  # stored values, so that f16 and bf16 files hold exactly these
        values = torch.randn(parameter.shape, generator=generator) * (0.5 if parameter.dim() == 1 else 0.3)
        parameter.data = values.to(dtype).float()
    folder = os.path.join(HERE, name)
    shutil.rmtree(folder, ignore_errors=True)
    model.to(dtype).save_pretrained(folder)
    model.float()
    for extra in ("generation_config.json",):
        if os.path.exists(os.path.join(folder, extra)):
            os.remove(os.path.join(folder, extra))
    batch = 1 if length > 100 else 3
    ids = torch.randint(5, 50, (batch, length), generator=generator)
    lengths = torch.tensor([length, 1, (length + 1) // 2][:batch])
    mask = (torch.arange(length)[None] < lengths[:, None]).long()
    pad = model.config.pad_token_id
    ids = torch.where(mask.bool(), ids, pad)
    inputs = {"input_ids": ids, "attention_mask": mask}
    expected = {"ids": ids.int(), "lengths": lengths.int()}
    if getattr(model.config, "type_vocab_size", 0) > 1:
        inputs["token_type_ids"] = torch.randint(0, model.config.type_vocab_size, ids.shape, generator=generator)
        expected["types"] = inputs["token_type_ids"].int()
    base = getattr(model, model.base_model_prefix, model)
    with torch.no_grad():
        hidden = base(**inputs).last_hidden_state
    expected["hidden"] = hidden * mask[:, :, None]
    if name == "bert":  # for runs from text
        with open(os.path.join(folder, "vocab.txt"), "w") as f:
            f.writelines(w + "\n" for w in ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] + [f"w{i}" for i in range(5, 50)])
    if modules:
        listed = [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}]
        features = {"token_embeddings": hidden, "attention_mask": mask}
        torch.manual_seed(2)
        for i, module in enumerate(modules(), 1):
            kind = type(module).__name__
            path = f"{i}_{kind}"
            os.makedirs(os.path.join(folder, path))
            module.save(os.path.join(folder, path))
            listed.append({"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"})
            with torch.no_grad():
                features = module(features)
        with open(os.path.join(folder, "modules.json"), "w") as f:
            json.dump(listed, f, indent=2)
        with open(os.path.join(folder, "sentence_bert_config.json"), "w") as f:
            json.dump({"max_seq_length": length, "do_lower_case": False}, f, indent=2)
        expected["embeddings"] = features["sentence_embedding"]
    save_file({k: v.contiguous() for k, v in expected.items()}, os.path.join(folder, "expected.safetensors"))


if __name__ == "__main__":
    for case in CASES:
        record(case)
