"""Families whose modelling code is not part of the transformers library, and hub layouts that the library no longer
writes. Names and shapes come from the public files that each source names, scaled down.

Syntax of the lists: ("module", class, shape) means a tensor `module.weight`. A class with a reason in WHY is kept for
that reason, `Linear` is quantized, `Linear:why` is a Linear that is kept. A name that ends in `=` is the tensor's full
name. `{i}` means layers 0 and 1, `{e}` four experts, `{n}` two of anything."""

H, KV, FF, V, P = 64, 32, 128, 96, 40  # hidden, keys and values, intermediate, vocabulary, positions
WHY = {"Embedding": "embedding", "Conv1d": "conv", "Conv2d": "conv", "Conv1D": "conv1d_in_out",
       "Parameter": "parameter",
       "Buffer": "buffer", "Norm": "norm", "NormHead": "head", "Router": "router", "Experts": "fused_experts"}


def expand(name):
    for key, count in (("{i}", 2), ("{e}", 4), ("{n}", 2)):
        if key in name:
            return [m for k in range(count) for m in expand(name.replace(key, str(k), 1))]
    return [name]


def hand(family, source, config, modules, tied=(), ask=(), towers=None, integers=()):
    out = {"family": family, "source": source, "config": config, "tensors": {}, "classes": {}, "tied": [],
           "quantized": [],
           "kept": {}, "either": [], "ignore": [], "experts": [], "ask": [], "ask_quantized": [],
           "towers": towers or {}}
    for pattern, kind, shape in modules:
        cls, _, why = kind.partition(":")
        for name in expand(pattern):
            tensor = name[:-1] if name.endswith("=") else name + ".weight"
            module = tensor.rsplit(".", 1)[0] if "." in tensor else ""
            out["tensors"][tensor] = list(shape)
            if len(shape) < 2:
                continue
            if cls != "Buffer":
                out["classes"][module] = cls
            why_kept = why or WHY.get(cls)
            if cls == "Linear" and why == "either":
                out["either"].append(module)
            elif why_kept is None:
                out["quantized"].append(module)
            else:
                out["kept"][tensor] = why_kept
                if cls == "Linear":
                    out["ignore"].append(module)
                elif why_kept == "router":
                    out["ask"].append(module)
                elif why_kept == "fused_experts":
                    out["experts"].append(module)
    out["tied"] = list(tied)
    for name in tied:
        out["classes"][name] = "Linear"
    out["ignore"] += list(tied)
    out["ask"] += [n for a in ask for n in expand(a)]
    if integers:
        out["integers"] = list(integers)
    out["tensors"] = dict(sorted(out["tensors"].items()))
    return out


def norms(*names, size=H):
    return [(n, "Norm", (size,)) for n in names]


def llama_layer(at, experts=None):
    return [(at + ".self_attn.q_proj", "Linear", (H, H)), (at + ".self_attn.k_proj", "Linear", (KV, H)),
            (at + ".self_attn.v_proj", "Linear", (KV, H)), (at + ".self_attn.o_proj", "Linear", (H, H)),
            *(experts if experts is not None else mlp(at + ".mlp")),
            *norms(at + ".input_layernorm", at + ".post_attention_layernorm")]


def mlp(at, size=FF):
    return [(at + ".gate_proj", "Linear", (size, H)), (at + ".up_proj", "Linear", (size, H)), (at + ".down_proj",
            "Linear", (H, size))]


def llama(prefix="model.", head="lm_head"):
    return [(prefix + "embed_tokens", "Embedding", (V, H)), *llama_layer(prefix + "layers.{i}"),
            *norms(prefix + "norm"),
            (head, "Linear:head", (V, H))]


def deepseek_attention(at):
    return [(at + ".self_attn.q_a_proj", "Linear", (32, H)), (at + ".self_attn.q_b_proj", "Linear", (128, 32)),
            (at + ".self_attn.kv_a_proj_with_mqa", "Linear", (48, H)), (at + ".self_attn.kv_b_proj", "Linear", (128,
                    32)),
            (at + ".self_attn.o_proj", "Linear", (H, H)), *norms(at + ".self_attn.q_a_layernorm",
                                                                 at + ".self_attn.kv_a_layernorm", size=32),
            *norms(at + ".input_layernorm", at + ".post_attention_layernorm")]


def deepseek_moe(at):
    return [(at + ".mlp.gate", "Router", (4, H)), (at + ".mlp.gate.e_score_correction_bias=", "Parameter", (4,)),
            *mlp(at + ".mlp.experts.{e}", 32), *mlp(at + ".mlp.shared_experts", 32)]


def deepseek_v3(mtp):
    out = [("model.embed_tokens", "Embedding", (V, H)), *deepseek_attention("model.layers.0"),
           *mlp("model.layers.0.mlp"),
           *deepseek_attention("model.layers.1"), *deepseek_moe("model.layers.1"), *norms("model.norm"), ("lm_head",
                   "Linear:head", (V, H))]
    if mtp:  # vLLM builds eh_proj without quantization
        out += [("model.layers.2.embed_tokens", "Embedding", (V, H)), *norms("model.layers.2.enorm",
                "model.layers.2.hnorm"),
                ("model.layers.2.eh_proj", "Linear:either", (H, 2 * H)), *deepseek_attention("model.layers.2"),
                *deepseek_moe("model.layers.2"), *norms("model.layers.2.shared_head.norm"),
                ("model.layers.2.shared_head.head", "Linear:head", (V, H))]
    return out


def t5_encoder(prefix):
    at = prefix + "encoder.block.{i}.layer."
    return [(prefix + "shared", "Embedding", (V, H)), (at + "0.SelfAttention.q", "Linear", (H, H)),
            (at + "0.SelfAttention.k", "Linear", (H, H)),
            (at + "0.SelfAttention.v", "Linear", (H, H)), (at + "0.SelfAttention.o", "Linear", (H, H)),
            (prefix + "encoder.block.0.layer.0.SelfAttention.relative_attention_bias", "Embedding:position_bias", (32,
                    4)),
            (at + "1.DenseReluDense.wi_0", "Linear", (FF, H)), (at + "1.DenseReluDense.wi_1", "Linear", (FF, H)),
            (at + "1.DenseReluDense.wo", "Linear", (H, FF)), *norms(at + "0.layer_norm", at + "1.layer_norm",
                                                                    prefix + "encoder.final_layer_norm")]


def chatglm(layers, config):
    at = "transformer.encoder.layers.{i}"
    return [("transformer.embedding.word_embeddings", "Embedding", (V, H)), ("transformer.rotary_pos_emb.inv_freq=",
            "Buffer", (8,)),
            (at + ".self_attention.query_key_value", "Linear", (128, H)), (at + ".self_attention.query_key_value.bias=",
                    "Parameter", (128,)),
            (at + ".self_attention.dense", "Linear", (H, H)), (at + ".mlp.dense_h_to_4h", "Linear", (2 * FF, H)),
            (at + ".mlp.dense_4h_to_h", "Linear", (H, FF)), *norms(at + ".input_layernorm",
                                                                   at + ".post_attention_layernorm",
                                                                    "transformer.encoder.final_layernorm"),
            ("transformer.output_layer", "Linear:head", (V, H))]


NOMIC = "encoder.layers.{i}"
VLLM = "vLLM 0.33.0, vllm/model_executor/models/"

HAND = [
    hand("chatglm", VLLM + "chatglm.py (the names of THUDM/chatglm2-6b, chatglm3-6b, glm-4-9b)",
         {"model_type": "chatglm", "architectures": ["ChatGLMModel"], "num_layers": 2, "padded_vocab_size": V,
          "hidden_size": H,
          "tie_word_embeddings": False}, chatglm(2, None)),
    hand("internvl_chat", VLLM + "internvl.py, intern_vit.py (the names of OpenGVLab/InternVL2_5-1B)",
         {"model_type": "internvl_chat", "architectures": ["InternVLChatModel"], "llm_config": {
             "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "num_hidden_layers": 2, "vocab_size": V,
             "tie_word_embeddings": False},
          "vision_config": {"model_type": "intern_vit_6b", "num_hidden_layers": 2}},
         [("vision_model.embeddings.class_embedding=", "Parameter", (1, 1, H)),
          ("vision_model.embeddings.patch_embedding", "Conv2d", (H, 3, 8, 8)),
          ("vision_model.embeddings.position_embedding=", "Parameter", (1, 17, H)),
          ("vision_model.encoder.layers.{i}.attn.qkv", "Linear", (3 * H, H)),
          ("vision_model.encoder.layers.{i}.attn.proj", "Linear", (H, H)), ("vision_model.encoder.layers.{i}.mlp.fc1",
                  "Linear", (FF, H)),
          ("vision_model.encoder.layers.{i}.mlp.fc2", "Linear", (H, FF)), ("vision_model.encoder.layers.{i}.ls1=",
                  "Parameter", (H,)),
          *norms("vision_model.encoder.layers.{i}.norm1", "vision_model.encoder.layers.{i}.norm2"),
          *norms("mlp1.0", size=4 * H), ("mlp1.1", "Linear", (H, 4 * H)), ("mlp1.3", "Linear", (H, H)),
          *llama("language_model.model.", "language_model.lm_head")],
         towers={"vision_model.": "vision", "mlp1.": "projector"}),
    hand("internlm2", VLLM + "internlm2.py (the names of internlm/internlm2_5-7b)",
         {"model_type": "internlm2", "architectures": ["InternLM2ForCausalLM"], "num_hidden_layers": 2, "vocab_size": V,
          "tie_word_embeddings": False},
         [("model.tok_embeddings", "Embedding", (V, H)), ("model.layers.{i}.attention.wqkv", "Linear", (128, H)),
          ("model.layers.{i}.attention.wo", "Linear", (H, H)), ("model.layers.{i}.feed_forward.w1", "Linear", (FF, H)),
          ("model.layers.{i}.feed_forward.w2", "Linear", (H, FF)), ("model.layers.{i}.feed_forward.w3", "Linear", (FF,
                  H)),
          *norms("model.layers.{i}.attention_norm", "model.layers.{i}.ffn_norm", "model.norm"), ("output",
                  "Linear:head", (V, H))]),
    hand("qwen_v1", "vllm-project/vllm, vllm/model_executor/models/qwen.py at 9c2cc275 (the names of Qwen/Qwen-7B): c_attn is an nn.Linear",
         {"model_type": "qwen", "architectures": ["QWenLMHeadModel"], "num_hidden_layers": 2, "vocab_size": V,
          "tie_word_embeddings": False},
         [("transformer.wte", "Embedding", (V, H)), ("transformer.h.{i}.attn.c_attn", "Linear", (3 * H, H)),
          ("transformer.h.{i}.attn.c_attn.bias=", "Parameter", (3 * H,)), ("transformer.h.{i}.attn.c_proj", "Linear",
                  (H, H)),
          ("transformer.h.{i}.mlp.w1", "Linear", (FF, H)), ("transformer.h.{i}.mlp.w2", "Linear", (FF, H)),
          ("transformer.h.{i}.mlp.c_proj", "Linear", (H, FF)), *norms("transformer.h.{i}.ln_1",
                                                                      "transformer.h.{i}.ln_2", "transformer.ln_f"),
          ("lm_head", "Linear:head", (V, H))]),
    hand("baichuan2", "vllm-project/vllm, vllm/model_executor/models/baichuan.py at 6b065994 (the names of baichuan-inc/Baichuan2-7B-Chat)",
         {"model_type": "baichuan", "architectures": ["BaichuanForCausalLM"], "num_hidden_layers": 2, "vocab_size": V,
          "tie_word_embeddings": False},
         [("model.embed_tokens", "Embedding", (V, H)), ("model.layers.{i}.self_attn.W_pack", "Linear", (3 * H, H)),
          ("model.layers.{i}.self_attn.o_proj", "Linear", (H, H)), *mlp("model.layers.{i}.mlp"),
          *norms("model.layers.{i}.input_layernorm", "model.layers.{i}.post_attention_layernorm", "model.norm"),
          ("lm_head", "NormHead", (V, H))]),
    hand("minicpm", VLLM + "minicpm.py (the names of openbmb/MiniCPM-2B)",
         {"model_type": "minicpm", "architectures": ["MiniCPMForCausalLM"], "num_hidden_layers": 2, "vocab_size": V},
         llama()[:-1], tied=["lm_head"]),
    hand("deepseek_v3_mtp",
         "deepseek-ai/DeepSeek-V3, README_WEIGHTS.md; vLLM 0.33.0, vllm/model_executor/models/deepseek_mtp.py",
         {"model_type": "deepseek_v3", "architectures": ["DeepseekV3ForCausalLM"], "num_hidden_layers": 2,
          "vocab_size": V,
          "num_nextn_predict_layers": 1, "n_routed_experts": 4, "first_k_dense_replace": 1,
          "tie_word_embeddings": False},
         deepseek_v3(mtp=True)),
    hand("kimi_k2", "moonshotai/Kimi-K2-Instruct: the modelling code of DeepSeek V3 with model_type kimi_k2; no MTP module is published",
         {"model_type": "kimi_k2", "architectures": ["DeepseekV3ForCausalLM"], "num_hidden_layers": 2, "vocab_size": V,
          "num_nextn_predict_layers": 0, "n_routed_experts": 4, "first_k_dense_replace": 1,
          "tie_word_embeddings": False},
         deepseek_v3(mtp=False)),
    hand("qwen3_next_mtp", VLLM + "qwen3_next.py, qwen3_next_mtp.py (the names of Qwen/Qwen3-Next-80B-A3B-Instruct)",
         {"model_type": "qwen3_next", "architectures": ["Qwen3NextForCausalLM"], "num_hidden_layers": 2,
          "vocab_size": V, "num_experts": 4,
          "tie_word_embeddings": False},
         [("model.embed_tokens", "Embedding", (V, H)), ("model.layers.0.linear_attn.in_proj_qkvz", "Linear", (192, H)),
          ("model.layers.0.linear_attn.in_proj_ba", "Linear", (16, H)), ("model.layers.0.linear_attn.conv1d", "Conv1d",
                  (128, 1, 4)),
          ("model.layers.0.linear_attn.out_proj", "Linear", (H, H)), ("model.layers.0.linear_attn.A_log=", "Parameter",
                                                                      (8,)),
          ("model.layers.0.linear_attn.dt_bias=", "Parameter", (8,)), *norms("model.layers.0.linear_attn.norm",
                  size=16),
          ("model.layers.{i}.mlp.gate", "Linear:router", (4, H)), ("model.layers.{i}.mlp.shared_expert_gate",
                                                                   "Linear:router", (1, H)),
          *mlp("model.layers.{i}.mlp.experts.{e}", 32), *mlp("model.layers.{i}.mlp.shared_expert", 32),
          *llama_layer("model.layers.1", experts=[]), *norms("model.layers.0.input_layernorm",
                                                             "model.layers.0.post_attention_layernorm"),
          *norms("model.norm"), ("lm_head", "Linear:head", (V, H)), ("mtp.fc", "Linear:either", (H, 2 * H)),
          *norms("mtp.norm", "mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden"), *llama_layer("mtp.layers.0",
                  experts=[
              ("mtp.layers.0.mlp.gate", "Linear:router", (4, H)), ("mtp.layers.0.mlp.shared_expert_gate",
                                                                   "Linear:router", (1, H)),
              *mlp("mtp.layers.0.mlp.experts.{e}", 32), *mlp("mtp.layers.0.mlp.shared_expert", 32)])]),
    hand("gpt2_hub", "transformers 4.57.6, models/gpt2/modeling_gpt2.py (openai-community/gpt2: no prefix, masks as buffers)",
         {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": 2, "n_embd": H, "vocab_size": V},
         [("wte", "Embedding", (V, H)), ("wpe", "Embedding", (P, H)), ("h.{i}.attn.bias=", "Buffer", (1, 1, P, P)),
          ("h.{i}.attn.c_attn", "Conv1D", (H, 3 * H)), ("h.{i}.attn.c_attn.bias=", "Parameter", (3 * H,)),
          ("h.{i}.attn.c_proj", "Conv1D", (H, H)),
          ("h.{i}.attn.c_proj.bias=", "Parameter", (H,)), ("h.{i}.mlp.c_fc", "Conv1D", (H, 4 * H)),
          ("h.{i}.mlp.c_fc.bias=", "Parameter", (4 * H,)),
          ("h.{i}.mlp.c_proj", "Conv1D", (4 * H, H)), ("h.{i}.mlp.c_proj.bias=", "Parameter", (H,)),
          *norms("h.{i}.ln_1", "h.{i}.ln_2", "ln_f")],
         tied=["lm_head"]),
    hand("wav2vec2_hub", "transformers 4.57.6, models/wav2vec2 (facebook/wav2vec2-base-960h: weight norm as weight_g and weight_v)",
         {"model_type": "wav2vec2", "architectures": ["Wav2Vec2ForCTC"], "num_hidden_layers": 2, "vocab_size": 32,
          "hidden_size": H},
         [("lm_head", "Linear:head", (32, H)), ("wav2vec2.masked_spec_embed=", "Parameter", (H,)),
          ("wav2vec2.feature_extractor.conv_layers.0.conv", "Conv1d", (32, 1, 10)),
          ("wav2vec2.feature_extractor.conv_layers.1.conv", "Conv1d", (32, 32, 3)),
          *norms("wav2vec2.feature_projection.layer_norm", size=32), ("wav2vec2.feature_projection.projection",
                                                                      "Linear", (H, 32)),
          ("wav2vec2.encoder.pos_conv_embed.conv.weight_g=", "Parameter", (1, 1, 16)),
          ("wav2vec2.encoder.pos_conv_embed.conv.weight_v=", "Parameter", (H, 4, 16)),
          *[(f"wav2vec2.encoder.layers.{{i}}.attention.{p}_proj", "Linear", (H, H)) for p in ("q", "k", "v", "out")],
          ("wav2vec2.encoder.layers.{i}.feed_forward.intermediate_dense", "Linear", (FF, H)),
          ("wav2vec2.encoder.layers.{i}.feed_forward.output_dense", "Linear", (H, FF)),
          *norms("wav2vec2.encoder.layers.{i}.layer_norm", "wav2vec2.encoder.layers.{i}.final_layer_norm",
                 "wav2vec2.encoder.layer_norm")]),
    hand("nomic_bert", "nomic-ai/contrastors, src/contrastors/layers/mlp.py, models/encoder/modeling_nomic_bert.py; vLLM 0.33.0, bert_with_rope.py",
         {"model_type": "nomic_bert", "architectures": ["NomicBertModel"], "n_layer": 2, "n_embd": H, "vocab_size": V},
         [("embeddings.word_embeddings", "Embedding", (V, H)), ("embeddings.token_type_embeddings", "Embedding", (2,
                 H)), *norms("emb_ln"),
          (NOMIC + ".attn.Wqkv", "Linear", (3 * H, H)), (NOMIC + ".attn.out_proj", "Linear", (H, H)),
          (NOMIC + ".mlp.fc11", "Linear", (FF, H)),
          (NOMIC + ".mlp.fc12", "Linear", (FF, H)), (NOMIC + ".mlp.fc2", "Linear", (H, FF)), *norms(NOMIC + ".norm1",
                  NOMIC + ".norm2")]),
    hand("nomic_bert_moe",
         "vLLM 0.33.0, vllm/model_executor/models/bert_with_rope.py (the names of nomic-ai/nomic-embed-text-v2-moe)",
         {"model_type": "nomic_bert", "architectures": ["NomicBertModel"], "n_layer": 2, "n_embd": H, "vocab_size": V,
          "num_experts": 4},
         [("embeddings.word_embeddings", "Embedding", (V, H)), ("embeddings.token_type_embeddings", "Embedding", (2,
                 H)), *norms("emb_ln"),
          (NOMIC + ".attn.Wqkv", "Linear", (3 * H, H)), (NOMIC + ".attn.out_proj", "Linear", (H, H)),
          ("encoder.layers.0.mlp.fc1", "Linear", (FF, H)), ("encoder.layers.0.mlp.fc2", "Linear", (H, FF)),
          ("encoder.layers.1.mlp.router.layer", "Linear:router", (4, H)), ("encoder.layers.1.mlp.experts.mlp.w1=",
                  "Parameter", (4 * FF, H)),
          ("encoder.layers.1.mlp.experts.mlp.w2=", "Parameter", (4 * FF, H)), *norms(NOMIC + ".norm1",
                  NOMIC + ".norm2")]),
    hand("gte_new", "vLLM 0.33.0, vllm/model_executor/models/bert_with_rope.py (the names of Alibaba-NLP/gte-multilingual-base)",
         {"model_type": "new", "architectures": ["NewModel"], "num_hidden_layers": 2, "vocab_size": V,
          "hidden_size": H},
         [("embeddings.word_embeddings", "Embedding", (V, H)), ("embeddings.token_type_embeddings", "Embedding", (2,
                 H)), *norms("embeddings.LayerNorm"),
          ("encoder.layer.{i}.attention.qkv_proj", "Linear", (3 * H, H)), ("encoder.layer.{i}.attention.o_proj",
                  "Linear", (H, H)),
          ("encoder.layer.{i}.mlp.up_gate_proj", "Linear", (2 * FF, H)), ("encoder.layer.{i}.mlp.down_proj", "Linear",
                  (H, FF)),
          *norms("encoder.layer.{i}.attn_ln", "encoder.layer.{i}.mlp_ln"), ("pooler.dense", "Linear:either", (H, H)),
          ("classifier", "Linear:classifier", (3, H))]),
    hand("parler_tts", "huggingface/parler-tts, parler_tts/modeling_parler_tts.py, parler_tts/dac_wrapper/modeling_dac.py",
         {"model_type": "parler_tts", "architectures": ["ParlerTTSForConditionalGeneration"], "vocab_size": V,
          "is_encoder_decoder": True,
          "decoder": {"model_type": "parler_tts_decoder", "num_hidden_layers": 2, "num_codebooks": 2, "vocab_size": 80,
                      "hidden_size": H},
          "text_encoder": {"model_type": "t5", "num_layers": 2, "vocab_size": V, "d_model": H},
          "audio_encoder": {"model_type": "dac"}},
         [*t5_encoder("text_encoder."), ("embed_prompts", "Embedding", (V, H)),
          ("audio_encoder.model.encoder.block.0.weight_g=", "Parameter", (16, 1, 1)),
          ("audio_encoder.model.encoder.block.0.weight_v=", "Parameter", (16, 1, 7)),
          ("audio_encoder.model.quantizer.quantizers.{n}.codebook", "Embedding", (64, 8)),
          ("audio_encoder.model.quantizer.quantizers.{n}.in_proj.weight_g=", "Parameter", (8, 1, 1)),
          ("audio_encoder.model.quantizer.quantizers.{n}.in_proj.weight_v=", "Parameter", (8, 16, 1)),
          ("decoder.model.decoder.embed_tokens.{n}", "Embedding", (81, H)), ("decoder.lm_heads.{n}", "Linear:head", (80,
                  H)),
          *[(f"decoder.model.decoder.layers.{{i}}.{a}.{p}_proj", "Linear", (H, H)) for a in ("self_attn",
                  "encoder_attn") for p in ("q", "k", "v", "out")],
          ("decoder.model.decoder.layers.{i}.fc1", "Linear", (FF, H)), ("decoder.model.decoder.layers.{i}.fc2",
                  "Linear", (H, FF)),
          *norms("decoder.model.decoder.layers.{i}.self_attn_layer_norm",
                 "decoder.model.decoder.layers.{i}.encoder_attn_layer_norm",
                 "decoder.model.decoder.layers.{i}.final_layer_norm", "decoder.model.decoder.layer_norm")],
         towers={"audio_encoder.": "audio", "text_encoder.": "text"}),
    hand("bert_hub", "transformers 4.57.6, models/bert (google-bert/bert-base-uncased: BertForMaskedLM with the pooler and gamma, beta of the first release)",
         {"model_type": "bert", "architectures": ["BertForMaskedLM"], "num_hidden_layers": 2, "vocab_size": V,
          "hidden_size": H},
         [("bert.embeddings.word_embeddings", "Embedding", (V, H)), ("bert.embeddings.position_embeddings", "Embedding",
                                                                     (P, H)),
          ("bert.embeddings.token_type_embeddings", "Embedding", (2, H)), ("bert.embeddings.LayerNorm.gamma=", "Norm",
                  (H,)),
          *[(f"bert.encoder.layer.{{i}}.attention.self.{p}", "Linear", (H, H)) for p in ("query", "key", "value")],
          ("bert.encoder.layer.{i}.attention.output.dense", "Linear", (H, H)),
          ("bert.encoder.layer.{i}.intermediate.dense", "Linear", (FF, H)),
          ("bert.encoder.layer.{i}.output.dense", "Linear", (H, FF)), ("bert.pooler.dense", "Linear:either", (H, H)),
          ("cls.predictions.bias=", "Parameter", (V,)), ("cls.predictions.transform.dense", "Linear:either", (H, H)),
          ("cls.predictions.transform.LayerNorm.gamma=", "Norm", (H,)), ("cls.seq_relationship", "Linear:classifier",
                  (2, H))],
         tied=["cls.predictions.decoder"]),
    hand("mixtral_original",
         "mistralai/mistral-inference, src/mistral_inference/transformer.py, moe.py (the names of consolidated safetensors files)",
         {"dim": H, "n_layers": 2, "vocab_size": V, "moe": {"num_experts": 4, "num_experts_per_tok": 2}},
         [("tok_embeddings", "Embedding", (V, H)), ("layers.{i}.attention.wq", "Linear", (H, H)),
          ("layers.{i}.attention.wk", "Linear", (KV, H)),
          ("layers.{i}.attention.wv", "Linear", (KV, H)), ("layers.{i}.attention.wo", "Linear", (H, H)),
          ("layers.{i}.feed_forward.gate", "Linear:router", (4, H)), ("layers.{i}.feed_forward.experts.{e}.w1",
                                                                      "Linear", (FF, H)),
          ("layers.{i}.feed_forward.experts.{e}.w2", "Linear", (H, FF)), ("layers.{i}.feed_forward.experts.{e}.w3",
                  "Linear", (FF, H)),
          *norms("layers.{i}.attention_norm", "layers.{i}.ffn_norm", "norm"), ("output", "Linear:head", (V, H))]),
]
