#!/usr/bin/env python3
"""Records the folders beside this file: tiny encoders with random weights, and what transformers and sentence-transformers
compute with them.

    pip install torch==2.15.0 transformers==4.57.6 sentence-transformers==6.2.0 compressed-tensors==0.20.0 safetensors numpy
    python3 record.py [FOLDER ...]

and with transformers==5.24.0 the two folders whose names end in _5.

Each folder is that of a model. expected.safetensors has ids, lengths and types (s32), the hidden states of transformers in
float32 and, if there is a modules.json, the embeddings of sentence-transformers' modules, or, if the model has classes, their
logits and the scores that transformers' pipeline or CrossEncoder.predict gives. ids.1, lengths.1, ... are a second batch."""
import copy
import json
import os
import shutil
import sys

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import tokenizers
import torch
import transformers as tf
from safetensors.torch import save_file
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers import models as st

from nomic_bert import NomicBert

HERE = os.path.dirname(os.path.abspath(__file__))
COMMON = dict(vocab_size=50, hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=40)
SMALL = dict(COMMON, num_hidden_layers=1, max_position_embeddings=20)
DISTIL = dict(vocab_size=50, dim=24, n_layers=2, n_heads=3, hidden_dim=40, max_position_embeddings=20)
# Every third layer sees all tokens, the others 3 on each side.
MODERN = dict(vocab_size=50, hidden_size=24, num_hidden_layers=4, num_attention_heads=3, intermediate_size=36,
              max_position_embeddings=64, local_attention=6, local_rope_theta=100.0, global_rope_theta=1600.0,
              pad_token_id=0, bos_token_id=2, eos_token_id=3, cls_token_id=2, sep_token_id=3)
NOMIC = dict(vocab_size=50, n_embd=24, n_layer=2, n_head=3, n_inner=40, n_positions=64, type_vocab_size=2,
             activation_function="swiglu", qkv_proj_bias=False, mlp_fc1_bias=False, mlp_fc2_bias=False,
             layer_norm_epsilon=1e-12, rotary_emb_fraction=1.0, rotary_emb_base=1000, rotary_emb_interleaved=False)
# The other fields of the model nomic-embed-text-v1.5.
NOMIC_FILE = dict(model_type="nomic_bert", attn_pdrop=0.0, causal=False, dense_seq_output=True, embd_pdrop=0.0,
                  fused_bias_fc=True, fused_dropout_add_ln=True, initializer_range=0.02, max_trained_positions=32,
                  pad_vocab_size_multiple=1, parallel_block=False, parallel_block_tied_norm=False, prenorm=False,
                  reorder_and_upcast_attn=False, resid_pdrop=0.0, rotary_emb_scale_base=None, rotary_scaling_factor=None,
                  scale_attn_by_inverse_layer_idx=False, scale_attn_weights=True, summary_activation=None,
                  summary_first_dropout=0.0, summary_proj_to_labels=True, summary_type="cls_index", summary_use_proj=True,
                  use_cache=True, use_flash_attn=True, use_rms_norm=False, use_xentropy=True)
NAMES = {"id2label": {0: "negative", 1: "neutral", 2: "positive"}, "label2id": {"negative": 0, "neutral": 1, "positive": 2}}
BIO = {"id2label": {0: "O", 1: "B-PER", 2: "I-PER"}, "label2id": {"O": 0, "B-PER": 1, "I-PER": 2}}
F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16


def pooling(*modes):
    return st.Pooling(24, **{f"pooling_mode_{m}": m in modes for m in
                             ("cls_token", "max_tokens", "mean_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens",
                              "lasttoken")})


def bert(cls="BertModel", **more):
    return lambda: getattr(tf, cls)(tf.BertConfig(**dict(SMALL, **more)))


def roberta(cls, config, **more):
    return lambda: getattr(tf, cls)(config(**dict(SMALL, type_vocab_size=1, **more)))


def distil(cls, **more):
    return lambda: getattr(tf, cls)(tf.DistilBertConfig(**dict(DISTIL, n_layers=1, **more)))


def mpnet(cls, **more):
    return lambda: getattr(tf, cls)(tf.MPNetConfig(**dict(SMALL, **more)))


def modern(cls, **more):
    return lambda: getattr(tf, cls)(tf.ModernBertConfig(**dict(MODERN, **more)))


# Folder -> model, modules after the transformer, length of the longest text, dtype of the file. The first eight are sorted
# before the others: their random numbers are those of the first version of this file.
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
FIRST = sorted(CASES)
CASES |= {
    "modernbert": (modern("ModernBertModel"), lambda: [pooling("cls_token"), st.Normalize()], 23, F32),
    "modernbert_mlm_bf16": (modern("ModernBertForMaskedLM", attention_bias=True, mlp_bias=True, norm_bias=True, norm_eps=1e-3,
                                   global_attn_every_n_layers=2, local_attention=3, hidden_activation="silu",
                                   local_rope_theta=None), None, 40, BF16),
    "nomic": (lambda: NomicBert(**NOMIC), lambda: [pooling("mean_tokens"), st.Normalize()], 40, F32),
    "nomic_partial_f16": (lambda: NomicBert(**dict(NOMIC, activation_function="geglu", rotary_emb_fraction=0.5,
                                                   rotary_emb_interleaved=True, qkv_proj_bias=True, mlp_fc2_bias=True,
                                                   type_vocab_size=0, n_layer=1)), None, 17, F16),
    # Classes of texts.
    "bert_classes": (bert("BertForSequenceClassification", **NAMES), None, 12, F32),
    "roberta_classes": (roberta("RobertaForSequenceClassification", tf.RobertaConfig, num_labels=1, problem_type="regression"),
                        None, 9, F32),
    "camembert_classes": (roberta("CamembertForSequenceClassification", tf.CamembertConfig), None, 7, F32),
    "distilbert_classes": (distil("DistilBertForSequenceClassification", num_labels=4,
                                  problem_type="multi_label_classification"), None, 10, F32),
    "mpnet_classes": (mpnet("MPNetForSequenceClassification", num_labels=5), None, 8, F32),
    "modernbert_classes": (modern("ModernBertForSequenceClassification", classifier_pooling="mean", classifier_bias=True,
                                  classifier_activation="gelu_pytorch_tanh", norm_bias=True, num_hidden_layers=2, **NAMES),
                           None, 13, F32),
    "nomic_classes": (lambda: NomicBert(labels=3, **dict(NOMIC, n_layer=1)), None, 11, F32),
    # Pairs of texts.
    "bert_pairs": (bert("BertForSequenceClassification", num_labels=1), None, 15, F32),
    "xlm_roberta_pairs": (roberta("XLMRobertaForSequenceClassification", tf.XLMRobertaConfig, num_labels=1), None, 12, F32),
    "modernbert_pairs": (modern("ModernBertForSequenceClassification", num_labels=2, num_hidden_layers=2), None, 14, F16),
    # Classes of tokens.
    "bert_tokens": (bert("BertForTokenClassification", **BIO), None, 12, F32),
    "roberta_tokens": (roberta("RobertaForTokenClassification", tf.RobertaConfig, **BIO), None, 10, F32),
    "distilbert_tokens": (distil("DistilBertForTokenClassification", num_labels=2), None, 9, F32),
    "mpnet_tokens": (mpnet("MPNetForTokenClassification", num_labels=3), None, 11, F32),
    "modernbert_tokens": (modern("ModernBertForTokenClassification", num_hidden_layers=2, **BIO), None, 16, F32),
    "nomic_tokens": (lambda: NomicBert(labels=2, tokens=True, **dict(NOMIC, n_layer=1)), None, 11, F32),
    # Quantized by compressed-tensors.
    "bert_w8": (bert("BertForSequenceClassification", num_labels=3), None, 12, F32),
    "modernbert_w4": (modern("ModernBertModel", num_hidden_layers=2, intermediate_size=40), None, 15, F32),
    # A folder of sentence-transformers 6.2 with a prompt and a limit of 9 tokens.
    "bert_prompt": (bert(), None, 9, F32),
    # Texts that contain the padding token.
    "roberta_padding": (roberta("RobertaModel", tf.RobertaConfig), None, 9, F32),
    "mpnet_padding": (mpnet("MPNetModel"), None, 9, F32),
    # Other activations and poolings.
    "bert_last": (bert(hidden_act="quick_gelu"),
                  lambda: [pooling("weightedmean_tokens", "lasttoken"), st.Dense(48, 16, activation_function=torch.nn.GELU())],
                  11, F32),
    "roberta_weighted": (roberta("RobertaModel", tf.RobertaConfig, hidden_act="gelu_fast"),
                         lambda: [pooling("weightedmean_tokens"), st.Dense(24, 8, activation_function=torch.nn.SiLU())], 9, F32),
}
# With transformers 5, whose config.json has other fields for these families.
CASES_5 = {
    "modernbert_5": (lambda: tf.ModernBertForSequenceClassification(tf.ModernBertConfig(
        **{k: v for k, v in MODERN.items() if "theta" not in k}, num_labels=3,
        layer_types=["sliding_attention", "full_attention", "sliding_attention", "sliding_attention"],
        rope_parameters={"full_attention": {"rope_theta": 1600.0, "rope_type": "default"},
                         "sliding_attention": {"rope_theta": 100.0, "rope_type": "default"}})), None, 16, F32),
    "nomic_5": (lambda: tf.NomicBertForSequenceClassification(tf.NomicBertConfig(
        **COMMON, max_position_embeddings=64, num_labels=2, rope_parameters={"rope_theta": 500.0, "rope_type": "default"})),
        None, 17, F32),
}
if tf.__version__.startswith("5."):
    CASES = CASES_5
ACTIVATIONS = {"xlm_roberta_pairs": torch.nn.Identity(), "modernbert_pairs": torch.nn.Tanh()}
WITH_WORDS = ("bert", "bert_classes", "bert_tokens")
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] + [f"w{i}" for i in range(5, 50)]


def save_model(name, model, dtype, folder):
    if isinstance(model, NomicBert):
        os.makedirs(folder)
        kind = "Model" if not hasattr(model, "classifier") else "ForTokenClassification" if model.tokens else \
            "ForSequenceClassification"
        config = dict(NOMIC_FILE, architectures=["NomicBert" + kind], torch_dtype=str(dtype)[6:], **model.config)
        if hasattr(model, "classifier"):
            config["num_labels"] = model.classifier.out_features
        with open(os.path.join(folder, "config.json"), "w") as f:
            json.dump(config, f, indent=2, sort_keys=True)
        strip = not hasattr(model, "classifier")
        save_file({k.removeprefix("bert.") if strip else k: v.to(dtype).contiguous() for k, v in model.state_dict().items()},
                  os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
        return
    copy.deepcopy(model).to(dtype).save_pretrained(folder)  # a copy: .to also rounds the frequencies of rotary positions
    for extra in ("generation_config.json",):
        if os.path.exists(os.path.join(folder, extra)):
            os.remove(os.path.join(folder, extra))


def quantize(name, model, folder):
    """Stores the model with compressed-tensors, and gives it the weights that were stored."""
    from compressed_tensors.compressors import ModelCompressor
    from compressed_tensors.quantization import (QuantizationArgs, QuantizationConfig, QuantizationScheme, QuantizationStatus,
                                                 apply_quantization_config)
    from compressed_tensors.quantization.utils import calculate_qparams
    args = QuantizationArgs(num_bits=8, strategy="channel") if name == "bert_w8" else QuantizationArgs(num_bits=4, group_size=8)
    apply_quantization_config(model, QuantizationConfig(
        config_groups={"group_0": QuantizationScheme(targets=["Linear"], weights=args)}, ignore=["classifier"],
        quantization_status=QuantizationStatus.FROZEN, format="pack-quantized"))
    for module in model.modules():
        if getattr(getattr(module, "quantization_scheme", None), "weights", None) is None:
            continue
        w = module.weight.data
        w = w.unflatten(-1, (-1, args.group_size)) if args.group_size else w[:, None]
        scale, zero = calculate_qparams(w.amin(-1), w.amax(-1), args)
        module.weight_scale.data.copy_(scale)
        if hasattr(module, "weight_zero_point"):
            module.weight_zero_point.data.copy_(zero)
    compressor = ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    os.makedirs(folder)
    save_file({k: v.detach().contiguous() for k, v in model.state_dict().items()}, os.path.join(folder, "model.safetensors"),
              metadata={"format": "pt"})
    model.config.architectures = [type(model).__name__]
    with open(os.path.join(folder, "config.json"), "w") as f:
        f.write(model.config.to_json_string())
    compressor.update_config(folder)
    compressor.decompress_model(model)


def hidden_states(model, inputs):
    if isinstance(model, NomicBert):
        return model.hidden(inputs["input_ids"], inputs["attention_mask"], inputs.get("token_type_ids"))
    return getattr(model, model.base_model_prefix, model)(**inputs).last_hidden_state


def scores(name, model, logits):
    """Those of CrossEncoder.predict for pairs; else those of the pipelines text-classification and token-classification."""
    if name.endswith("_pairs"):
        return ACTIVATIONS.get(name, torch.nn.Sigmoid())(logits)
    problem = getattr(model.config, "problem_type", None)
    if name.endswith("_tokens"):
        return logits.softmax(-1)
    if problem == "regression":
        return logits
    return logits.sigmoid() if problem == "multi_label_classification" or logits.shape[-1] == 1 else logits.softmax(-1)


def one_batch(name, model, batch, length, generator, modules):
    ids = torch.randint(5, 50, (batch, length), generator=generator)
    lengths = torch.tensor([length, 1, (length + 1) // 2][:batch])
    mask = (torch.arange(length)[None] < lengths[:, None]).long()
    pad = 0 if isinstance(model, NomicBert) else model.config.pad_token_id
    ids = torch.where(mask.bool(), ids, pad)
    if name.endswith("_padding"):  # these tokens count
        ids[:, 1] = ids[:, 3] = pad
    inputs = {"input_ids": ids, "attention_mask": mask}
    expected = {"ids": ids.int(), "lengths": lengths.int()}
    types = model.config["type_vocab_size"] if isinstance(model, NomicBert) else getattr(model.config, "type_vocab_size", 0)
    if types > 1:
        inputs["token_type_ids"] = torch.randint(0, types, ids.shape, generator=generator)
        expected["types"] = inputs["token_type_ids"].int()
    with torch.no_grad():
        hidden = hidden_states(model, inputs)
        expected["hidden"] = hidden * mask[:, :, None]
        if hasattr(model, "classifier"):
            logits = model.logits(hidden) if isinstance(model, NomicBert) else model(**inputs).logits
            expected["logits"] = logits * mask[:, :, None] if logits.dim() == 3 else logits
            expected["scores"] = scores(name, model, expected["logits"])
        features = {"token_embeddings": hidden, "attention_mask": mask}
        for module in modules:
            features = module(features)
    if modules:
        expected["embeddings"] = features["sentence_embedding"]
    return expected


def save_modules(folder, modules, length):
    listed = [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}]
    for i, module in enumerate(modules, 1):
        kind = type(module).__name__
        path = f"{i}_{kind}"
        os.makedirs(os.path.join(folder, path))
        module.save(os.path.join(folder, path))
        listed.append({"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"})
    with open(os.path.join(folder, "modules.json"), "w") as f:
        json.dump(listed, f, indent=2)
    with open(os.path.join(folder, "sentence_bert_config.json"), "w") as f:
        json.dump({"max_seq_length": length, "do_lower_case": False}, f, indent=2)


def write_vocabulary(folder):
    with open(os.path.join(folder, "vocab.txt"), "w") as f:
        f.writelines(w + "\n" for w in VOCABULARY)


def save_cross_encoder(name, folder):
    """Writes the folder again, as sentence-transformers 6.2 does."""
    write_vocabulary(folder)
    tokenizer = tf.BertTokenizerFast(os.path.join(folder, "vocab.txt"))
    if name != "bert_pairs":  # models without segments
        tokenizer.backend_tokenizer.post_processor = tokenizers.processors.RobertaProcessing(("[SEP]", 3), ("[CLS]", 2)) \
            if name == "xlm_roberta_pairs" else tokenizers.processors.TemplateProcessing(
                single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
        names = dict(pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]", mask_token="[MASK]")
        tokenizer = tf.PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend_tokenizer, **names,
                                               model_input_names=["input_ids", "attention_mask"])
    tokenizer.model_max_length = {"bert_pairs": 20, "xlm_roberta_pairs": 18, "modernbert_pairs": 15}[name]
    tokenizer.save_pretrained(folder)
    encoder = CrossEncoder(folder, activation_fn=ACTIVATIONS.get(name), device="cpu")
    encoder.save_pretrained(folder + ".new")
    shutil.rmtree(folder)
    os.rename(folder + ".new", folder)
    for extra in ("README.md", "special_tokens_map.json", "vocab.txt"):
        if os.path.exists(os.path.join(folder, extra)):
            os.remove(os.path.join(folder, extra))
    return encoder


def save_sentence_transformer(folder):
    """Writes the folder again, as sentence-transformers 6.2 does, with a prompt before each text."""
    write_vocabulary(folder)
    tokenizer = tf.BertTokenizerFast(os.path.join(folder, "vocab.txt"))
    tokenizer.save_pretrained(folder)
    model = SentenceTransformer(folder, prompts={"query": "w5 w6: "}, default_prompt_name="query", device="cpu")
    model.max_seq_length = 9
    model.save_pretrained(folder + ".new")
    shutil.rmtree(folder)
    os.rename(folder + ".new", folder)
    for extra in ("README.md", "special_tokens_map.json", "vocab.txt"):
        if os.path.exists(os.path.join(folder, extra)):
            os.remove(os.path.join(folder, extra))
    return model


def record(name):
    build, modules, length, dtype = CASES[name]
    generator = torch.Generator().manual_seed(FIRST.index(name) if name in FIRST else 100 + list(CASES).index(name))
    torch.manual_seed(1)
    model = build().eval()
    for parameter in model.parameters():  # stored values, so that f16 and bf16 files hold exactly these
        values = torch.randn(parameter.shape, generator=generator) * (0.5 if parameter.dim() == 1 else 0.3)
        parameter.data = values.to(dtype).float()
    folder = os.path.join(HERE, name)
    shutil.rmtree(folder, ignore_errors=True)
    if name in ("bert_w8", "modernbert_w4"):
        quantize(name, model, folder)
    else:
        save_model(name, model, dtype, folder)
    torch.manual_seed(2)
    made = modules() if modules else []
    expected = one_batch(name, model, 1 if length > 100 else 3, length, generator, made)
    if length <= 100:
        second = one_batch(name, model, 1, max(1, length - 4), generator, made)
        expected |= {k + ".1": v for k, v in second.items()}
    if name in WITH_WORDS:  # for runs from text
        write_vocabulary(folder)
    if modules:
        save_modules(folder, made, length)
    if name == "bert_prompt":
        encoder = save_sentence_transformer(folder)
        expected["encoded"] = torch.tensor(encoder.encode(["w7 w8", "w9 w10 w11 w12 w13 w14 w15 w16"]))
    if name.endswith("_pairs"):
        encoder = save_cross_encoder(name, folder)
        pairs = [("w7 w8 w9", "w10"), ("w20", "w21 w22 w23 w24 w25 w26 w27 w28 w29 w30 w31 w32 w33 w34 w35 w36 w37"),
                 ("w11 w12 w13 w14 w15 w16 w17 w18", "w19 w20 w21 w22 w23 w24 w25 w26 w27 w28 w29 w30 w31")]
        expected["predicted"] = torch.tensor(encoder.predict(pairs))
    save_file({k: v.clone().contiguous() for k, v in expected.items()}, os.path.join(folder, "expected.safetensors"))


if __name__ == "__main__":
    for case in sys.argv[1:] or CASES:
        record(case)
