"""The families that record.py records: the class, a tiny configuration, and what a class cannot tell.

`keep` has patterns of module names in the checkpoint and why the weight stays in floating point. It holds only the
modules whose class is like that of a layer that is quantized: routers, classifiers, and heads that
get_output_embeddings does not return; and tables of relative positions, which are embeddings to the library.
`either` has the modules of which one cannot say that one of both is wrong. `experts` has the module for which vLLM
asks where fused experts are stored under another name, "" where vLLM does not know the model. `towers` has the prefixes of what is not the language model. Both are read from the modelling code."""
import importlib
import inspect

import transformers

# One size per meaning; vocab_size is equal to no other.
SIZES = dict(
    vocab_size=96, hidden_size=64, n_embd=64, d_model=64, dim=64, intermediate_size=128, ffn_dim=128, d_ff=128, n_inner=128,
    ffn_hidden_size=128, encoder_ffn_dim=128, decoder_ffn_dim=128, num_hidden_layers=2, n_layer=2, n_layers=2, num_layers=2,
    encoder_layers=2, decoder_layers=2, num_decoder_layers=2, num_attention_heads=4, n_head=4, n_heads=4, num_heads=4,
    encoder_attention_heads=4, decoder_attention_heads=4, num_key_value_heads=2, head_dim=16, d_kv=16,
    max_position_embeddings=40, n_positions=40, max_source_positions=40, max_target_positions=40, type_vocab_size=2,
    num_experts=4, num_local_experts=4, n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=32,
    shared_expert_intermediate_size=32, pad_token_id=0, bos_token_id=1, eos_token_id=2, image_size=32, patch_size=8,
    projection_dim=32, embedding_size=32, sliding_window=16, encoder_hidden_size=64, decoder_start_token_id=2)


def find(cls):
    """A class by its name in the library, or `module.Name` of one that it does not export."""
    if not isinstance(cls, str):
        return cls
    if "." not in cls:
        return getattr(transformers, cls)
    module, name = cls.split(".")
    return getattr(importlib.import_module(f"transformers.models.{module}.configuration_{module}"), name)


def tiny(cls, **given):
    """A configuration of the class with the sizes above, where its constructor takes them, and those given."""
    cls = find(cls)
    known = set(inspect.signature(cls.__init__).parameters)
    args = {k: v for k, v in SIZES.items() if k in known}
    args.update(given)
    return cls(**{k: v for k, v in args.items() if v != "drop"})


class Family:
    def __init__(self, name, cls, config=None, keep=None, towers=None, either=None, experts=None, note="", **given):
        self.name, self.cls, self.note = name, cls, note
        self.config, self.given = config, given
        self.keep, self.towers, self.either, self.experts = keep or {}, towers or {}, either or [], experts or {}

    def build(self):
        cls = getattr(transformers, self.cls)
        config = self.config() if self.config else tiny(cls.config_class, **self.given)
        return cls(config)


F = Family
ROUTER = {r".*\.mlp\.gate": "router"}
VISION = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, image_size=32, patch_size=8)
# The names that vLLM gives the experts that are stored as input_linear and output_linear (models/granitemoe.py).
GRANITE_EXPERTS = {r"(.*\.block_sparse_moe)\.(input|output)_linear": r"\1.experts"}
QWEN_VL_ROPE = {"type": "default", "rope_type": "default", "mrope_section": [2, 3, 3]}


def nested(cls, **parts):
    """A configuration of several: each part is a function that makes it, or a value."""
    return lambda: find(cls)(**{k: v() if callable(v) else v for k, v in parts.items()})


def part(cls, **given):
    return lambda: tiny(cls, **given).to_dict()


def llama_part(**given):
    return part("LlamaConfig", **given)


FAMILIES = [
    # Decoders.
    F("llama", "LlamaForCausalLM", tie_word_embeddings=False),
    F("llama_tied", "LlamaForCausalLM", tie_word_embeddings=True),
    F("llama_sequence_classification", "LlamaForSequenceClassification", keep={"score": "classifier"}, num_labels=3),
    F("llama_token_classification", "LlamaForTokenClassification", keep={"score": "classifier"}, num_labels=3),
    F("mistral", "MistralForCausalLM", tie_word_embeddings=False),
    F("qwen2", "Qwen2ForCausalLM", tie_word_embeddings=False),
    F("qwen2_tied", "Qwen2ForCausalLM", tie_word_embeddings=True),
    F("qwen3", "Qwen3ForCausalLM", tie_word_embeddings=False),
    F("qwen3_embedding", "Qwen3Model", tie_word_embeddings=True),
    F("qwen2_moe", "Qwen2MoeForCausalLM", keep={r".*\.mlp\.gate": "router", r".*\.shared_expert_gate": "router"},
      tie_word_embeddings=False),
    F("qwen3_moe", "Qwen3MoeForCausalLM", keep=ROUTER, tie_word_embeddings=False),
    F("qwen3_next", "Qwen3NextForCausalLM", keep={r".*\.mlp\.gate": "router", r".*\.shared_expert_gate": "router"},
      tie_word_embeddings=False, layer_types=["linear_attention", "full_attention"], linear_key_head_dim=16,
      linear_value_head_dim=16, linear_num_key_heads=2, linear_num_value_heads=4),
    F("mixtral", "MixtralForCausalLM", keep={r".*\.block_sparse_moe\.gate": "router"}, tie_word_embeddings=False),
    F("deepseek_v2", "DeepseekV2ForCausalLM", keep=ROUTER, tie_word_embeddings=False, q_lora_rank=32, kv_lora_rank=32,
      qk_nope_head_dim=16, qk_rope_head_dim=16, v_head_dim=16, first_k_dense_replace=1, n_shared_experts=1, n_group=1,
      topk_group=1),
    F("deepseek_v3", "DeepseekV3ForCausalLM", keep=ROUTER, tie_word_embeddings=False, q_lora_rank=32, kv_lora_rank=32,
      qk_nope_head_dim=16, qk_rope_head_dim=16, v_head_dim=16, first_k_dense_replace=1, n_shared_experts=1, n_group=1,
      topk_group=1),
    F("gpt_oss", "GptOssForCausalLM", keep={r".*\.mlp\.router": "router"}, tie_word_embeddings=False),
    F("llama4_text", "Llama4ForCausalLM", keep={r".*\.feed_forward\.router": "router"}, tie_word_embeddings=False,
      intermediate_size_mlp=128, moe_layers=[1]),
    F("gemma", "GemmaForCausalLM"),
    F("gemma2", "Gemma2ForCausalLM"),
    F("gemma3_text", "Gemma3ForCausalLM"),
    F("phi3", "Phi3ForCausalLM", tie_word_embeddings=False),
    F("phi", "PhiForCausalLM", num_key_value_heads=4),
    F("gpt2", "GPT2LMHeadModel"),
    F("gpt2_base", "GPT2Model", note="the layout of the hub's gpt2, without a prefix"),
    F("gpt_bigcode", "GPTBigCodeForCausalLM"),
    F("gpt_neo", "GPTNeoForCausalLM", attention_types=[[["global", "local"], 1]], intermediate_size=128),
    F("gpt_neox", "GPTNeoXForCausalLM", tie_word_embeddings=False),
    F("gptj", "GPTJForCausalLM", rotary_dim=8),
    F("codegen", "CodeGenForCausalLM", rotary_dim=8),
    F("openai_gpt", "OpenAIGPTLMHeadModel"),
    F("falcon", "FalconForCausalLM", ffn_hidden_size=128, note="FalconLinear is an nn.Linear"),
    F("falcon_new_decoder", "FalconForCausalLM", new_decoder_architecture=True, num_kv_heads=2, ffn_hidden_size=128),
    F("mpt", "MptForCausalLM", max_seq_len=40),
    F("opt", "OPTForCausalLM", word_embed_proj_dim=64),
    F("opt_projected", "OPTForCausalLM", word_embed_proj_dim=32, do_layer_norm_before=False,
      note="as opt-350m, with projections into and out of the embedding"),
    F("bloom", "BloomForCausalLM"),
    F("rwkv", "RwkvForCausalLM", attention_hidden_size=64, intermediate_size=128),
    F("mamba", "MambaForCausalLM", intermediate_size=128),
    F("mamba2", "Mamba2ForCausalLM", num_heads=8, head_dim=16, n_groups=2, state_size=16, tie_word_embeddings=False),
    F("falcon_mamba", "FalconMambaForCausalLM"),
    F("jamba", "JambaForCausalLM", keep={r".*\.feed_forward\.router": "router"}, attn_layer_period=2, attn_layer_offset=1,
      expert_layer_period=2, expert_layer_offset=1, mamba_d_state=16, mamba_dt_rank=32, use_mamba_kernels=False,
      tie_word_embeddings=False),
    F("zamba2", "Zamba2ForCausalLM", mamba_d_state=16, mamba_headdim=16, mamba_ngroups=1, num_hidden_layers=2,
      layers_block_type=["mamba", "hybrid"], hybrid_layer_ids=[1], num_mem_blocks=1, use_mamba_kernels=False,
      adapter_rank=32, kv_channels=16, attention_head_dim=32, attention_hidden_size=128),
    F("bamba", "BambaForCausalLM", attn_layer_indices=[1], mamba_n_heads=8, mamba_d_head=16, mamba_n_groups=1,
      mamba_d_state=16, tie_word_embeddings=False),
    F("falcon_h1", "FalconH1ForCausalLM", mamba_d_ssm=128, mamba_n_heads=8, mamba_d_head=16, mamba_n_groups=1, mamba_d_state=16),
    F("recurrent_gemma", "RecurrentGemmaForCausalLM", lru_width=64, block_types=["recurrent", "attention"]),
    F("hunyuan_v1_moe", "HunYuanMoEV1ForCausalLM", keep={r".*\.mlp\.gate\.wg": "router"}, moe_topk=2, tie_word_embeddings=True),
    F("hunyuan_v1_dense", "HunYuanDenseV1ForCausalLM", tie_word_embeddings=True),
    F("granite", "GraniteForCausalLM"),
    F("granite_moe", "GraniteMoeForCausalLM", experts=GRANITE_EXPERTS, keep={r".*\.block_sparse_moe\.router\.layer": "router"}),
    F("granite_moe_shared", "GraniteMoeSharedForCausalLM", experts=GRANITE_EXPERTS, keep={r".*\.block_sparse_moe\.router\.layer": "router"},
      shared_intermediate_size=128),
    F("granite_moe_hybrid", "GraniteMoeHybridForCausalLM", experts=GRANITE_EXPERTS, keep={r".*\.block_sparse_moe\.router\.layer": "router"},
      shared_intermediate_size=128, layer_types=["mamba", "attention"], mamba_n_heads=8, mamba_d_head=16,
      mamba_n_groups=1, mamba_d_state=16),
    F("cohere", "CohereForCausalLM"),
    F("cohere2", "Cohere2ForCausalLM"),
    F("starcoder2", "Starcoder2ForCausalLM"),
    F("olmo", "OlmoForCausalLM", tie_word_embeddings=False),
    F("olmo2", "Olmo2ForCausalLM", tie_word_embeddings=False),
    F("olmo3", "Olmo3ForCausalLM", tie_word_embeddings=False),
    F("olmoe", "OlmoeForCausalLM", keep=ROUTER, tie_word_embeddings=False),
    F("flex_olmo", "FlexOlmoForCausalLM", keep=ROUTER, tie_word_embeddings=False),
    F("dbrx", "DbrxForCausalLM", keep={r".*\.ffn\.router\.layer": "router"}, max_seq_len=40,
      attn_config=dict(kv_n_heads=2, clip_qkv=8.0), ffn_config=dict(ffn_hidden_size=128, moe_num_experts=4, moe_top_k=2),
      tie_word_embeddings=False),
    F("phimoe", "PhimoeForCausalLM", keep={r".*\.block_sparse_moe\.gate": "router"}, lm_head_bias=True, attention_bias=True),
    F("nemotron", "NemotronForCausalLM"),
    F("ernie4_5", "Ernie4_5ForCausalLM"),
    F("ernie4_5_moe", "Ernie4_5_MoeForCausalLM", keep=ROUTER, moe_num_experts=4, moe_k=2, moe_num_shared_experts=1,
      moe_layer_start_index=1),
    F("exaone4", "Exaone4ForCausalLM", tie_word_embeddings=False),
    F("glm", "GlmForCausalLM"),
    F("glm4", "Glm4ForCausalLM", tie_word_embeddings=False),
    F("glm4_moe", "Glm4MoeForCausalLM", keep=ROUTER, first_k_dense_replace=1, n_group=1, topk_group=1),
    F("stablelm", "StableLmForCausalLM", tie_word_embeddings=False),
    F("persimmon", "PersimmonForCausalLM"),
    F("biogpt", "BioGptForCausalLM"),
    F("xglm", "XGLMForCausalLM"),
    F("ctrl", "CTRLLMHeadModel", dff=128),
    F("xlnet", "XLNetLMHeadModel", d_inner=128),
    F("minimax", "MiniMaxForCausalLM", keep={r".*\.block_sparse_moe\.gate": "router"},
      layer_types=["linear_attention", "full_attention"]),
    F("jetmoe", "JetMoeForCausalLM", experts={".*": ""}, keep={r".*\.router\.layer": "router"}, kv_channels=16),
    F("dots1", "Dots1ForCausalLM", keep=ROUTER, n_shared_experts=1, first_k_dense_replace=1, n_group=1, topk_group=1),
    F("seed_oss", "SeedOssForCausalLM"),
    F("smollm3", "SmolLM3ForCausalLM"),
    F("apertus", "ApertusForCausalLM"),
    F("arcee", "ArceeForCausalLM"),
    F("helium", "HeliumForCausalLM"),
    F("lfm2", "Lfm2ForCausalLM", layer_types=["conv", "full_attention"], block_auto_adjust_ff_dim=False),
    F("longcat_flash", "LongcatFlashForCausalLM", keep={r".*\.mlp\.router\.classifier": "router"}, ffn_hidden_size=128,
      expert_ffn_hidden_size=32, zero_expert_num=2, moe_topk=2, q_lora_rank=32, kv_lora_rank=32, qk_nope_head_dim=16,
      qk_rope_head_dim=16, v_head_dim=16),
    F("diffllama", "DiffLlamaForCausalLM"),
    F("doge", "DogeForCausalLM", keep={r".*\.mlp\.router_gate": "router"}, is_moe=True, num_experts=16),
    F("bitnet", "BitNetForCausalLM"),
    F("vaultgemma", "VaultGemmaForCausalLM"),

    # Encoders.
    F("bert", "BertModel", note="the layout of BGE and of sentence-transformers' models"),
    F("bert_masked_lm", "BertForMaskedLM"),
    F("bert_pretraining", "BertForPreTraining", keep={r"cls\.seq_relationship": "classifier"}),
    F("bert_sequence_classification", "BertForSequenceClassification", keep={"classifier": "classifier"}, num_labels=3),
    F("bert_token_classification", "BertForTokenClassification", keep={"classifier": "classifier"}, num_labels=5),
    F("bert_question_answering", "BertForQuestionAnswering", keep={"qa_outputs": "classifier"}),
    F("roberta_masked_lm", "RobertaForMaskedLM"),
    F("roberta_sequence_classification", "RobertaForSequenceClassification", keep={r"classifier\.out_proj": "classifier"},
      num_labels=3),
    F("xlm_roberta", "XLMRobertaModel"),
    F("xlm_roberta_masked_lm", "XLMRobertaForMaskedLM"),
    F("xlm_roberta_xl", "XLMRobertaXLForMaskedLM"),
    F("camembert_masked_lm", "CamembertForMaskedLM"),
    F("distilbert_masked_lm", "DistilBertForMaskedLM"),
    F("distilbert_sequence_classification", "DistilBertForSequenceClassification", keep={"classifier": "classifier"},
      num_labels=3),
    F("mpnet", "MPNetModel", keep={r"encoder\.relative_attention_bias": "position_bias"}),
    F("mpnet_masked_lm", "MPNetForMaskedLM", keep={r"mpnet\.encoder\.relative_attention_bias": "position_bias"}),
    F("modernbert", "ModernBertModel"),
    F("modernbert_masked_lm", "ModernBertForMaskedLM"),
    F("albert_masked_lm", "AlbertForMaskedLM"),
    F("electra_masked_lm", "ElectraForMaskedLM"),
    F("electra_pretraining", "ElectraForPreTraining", keep={r"discriminator_predictions\.dense_prediction": "classifier"}),
    F("deberta_v2_masked_lm", "DebertaV2ForMaskedLM", relative_attention=True, position_buckets=8, pos_att_type=["p2c", "c2p"],
      position_biased_input=False),
    F("deberta_v2_sequence_classification", "DebertaV2ForSequenceClassification", keep={"classifier": "classifier"},
      relative_attention=True, position_buckets=8, pos_att_type=["p2c", "c2p"], num_labels=3),
    F("deberta_masked_lm", "DebertaForMaskedLM", relative_attention=True, pos_att_type=["p2c", "c2p"]),
    F("big_bird_masked_lm", "BigBirdForMaskedLM", block_size=8),
    F("longformer_masked_lm", "LongformerForMaskedLM", attention_window=[8, 8]),
    F("squeezebert_masked_lm", "SqueezeBertForMaskedLM", embedding_size=64),
    F("mobilebert_masked_lm", "MobileBertForMaskedLM", keep={r"cls\.predictions\.dense": "head"},
      note="the head reads the weight of cls.predictions.dense, which is a part of it", intra_bottleneck_size=32, embedding_size=32),
    F("layoutlmv3", "LayoutLMv3ForTokenClassification", keep={"classifier": "classifier", r".*\.rel_pos(_[xy])?_bias": "position_bias"}, num_labels=5,
      coordinate_size=8, shape_size=16, max_2d_position_embeddings=40, input_size=32, patch_size=8),
    F("esm_masked_lm", "EsmForMaskedLM", keep={r"esm\.contact_head\.regression": "classifier"}),
    F("rembert_masked_lm", "RemBertForMaskedLM", input_embedding_size=32, output_embedding_size=32),
    F("convbert_masked_lm", "ConvBertForMaskedLM"),
    F("funnel_masked_lm", "FunnelForMaskedLM", block_sizes=[1, 1], num_decoder_layers=1, d_head=16, d_inner=128),

    # Encoder and decoder.
    F("t5", "T5ForConditionalGeneration", keep={r".*\.relative_attention_bias": "position_bias"}),
    F("t5_gated_untied", "T5ForConditionalGeneration", keep={r".*\.relative_attention_bias": "position_bias"},
      feed_forward_proj="gated-gelu", tie_word_embeddings=False, note="as t5-v1_1 and flan-t5"),
    F("t5_encoder", "T5EncoderModel", keep={r".*\.relative_attention_bias": "position_bias"}),
    F("mt5", "MT5ForConditionalGeneration", keep={r".*\.relative_attention_bias": "position_bias"}, tie_word_embeddings=False),
    F("umt5", "UMT5ForConditionalGeneration", keep={r".*\.relative_attention_bias": "position_bias"}),
    F("longt5", "LongT5ForConditionalGeneration", keep={r".*\.(global_)?relative_attention_bias": "position_bias"}),
    F("switch_transformers", "SwitchTransformersForConditionalGeneration",
      keep={r".*\.relative_attention_bias": "position_bias", r".*\.router\.classifier": "router"}, num_sparse_encoder_layers=1,
      num_sparse_decoder_layers=1, num_decoder_layers=2),
    F("bart", "BartForConditionalGeneration"),
    F("bart_sequence_classification", "BartForSequenceClassification", keep={r"classification_head\.out_proj": "classifier"},
      num_labels=3),
    F("mbart", "MBartForConditionalGeneration"),
    F("pegasus", "PegasusForConditionalGeneration"),
    F("led", "LEDForConditionalGeneration", attention_window=[8, 8], max_encoder_position_embeddings=40,
      max_decoder_position_embeddings=40),
    F("m2m_100", "M2M100ForConditionalGeneration"),
    F("nllb_moe", "NllbMoeForConditionalGeneration", keep={r".*\.router\.classifier": "router"}, encoder_sparse_step=2,
      decoder_sparse_step=2),
    F("marian", "MarianMTModel"),
    F("blenderbot", "BlenderbotForConditionalGeneration"),
    F("prophetnet", "ProphetNetForConditionalGeneration", num_encoder_layers=2, num_decoder_layers=2,
      num_encoder_attention_heads=4, num_decoder_attention_heads=4, ngram=2),
    F("t5gemma", "T5GemmaForConditionalGeneration",
      nested("T5GemmaConfig", encoder=part("T5GemmaModuleConfig"), decoder=part("T5GemmaModuleConfig", cross_attention_hidden_size=64),
             vocab_size=96, tie_word_embeddings=True)) if False else None,
    F("whisper", "WhisperForConditionalGeneration", num_mel_bins=32, suppress_tokens=None, begin_suppress_tokens=None,
      towers={"model.encoder.": "audio"}),
    F("moonshine", "MoonshineForConditionalGeneration", encoder_num_hidden_layers=2, decoder_num_hidden_layers=2,
      encoder_num_attention_heads=4, decoder_num_attention_heads=4),
    F("speech_to_text", "Speech2TextForConditionalGeneration", input_feat_per_channel=32, conv_channels=64,
      suppress_tokens=None),

    # Audio.
    F("wav2vec2_ctc", "Wav2Vec2ForCTC", conv_dim=[32, 32], conv_stride=[2, 2], conv_kernel=[3, 3], num_feat_extract_layers=2,
      num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2, keep={"lm_head": "head"}),
    F("wav2vec2", "Wav2Vec2Model", conv_dim=[32, 32], conv_stride=[2, 2], conv_kernel=[3, 3], num_feat_extract_layers=2,
      num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2),
    F("hubert_ctc", "HubertForCTC", conv_dim=[32, 32], conv_stride=[2, 2], conv_kernel=[3, 3], num_feat_extract_layers=2,
      num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2, keep={"lm_head": "head"}),
    F("wavlm", "WavLMModel", either=[r".*\.gru_rel_pos_linear"], conv_dim=[32, 32], conv_stride=[2, 2], conv_kernel=[3, 3], num_feat_extract_layers=2,
      num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2,
      keep={r".*\.rel_attn_embed": "position_bias"}),
    F("audio_spectrogram_transformer", "ASTForAudioClassification", keep={r"classifier\.dense": "classifier"}, num_labels=3,
      max_length=32, num_mel_bins=32),
    F("musicgen", "MusicgenForCausalLM", keep={r"lm_heads\.\d+": "head"}, num_codebooks=2, ffn_dim=128,
      note="the decoder alone"),
    F("speecht5_tts", "SpeechT5ForTextToSpeech", encoder_layers=2, decoder_layers=2, conv_dim=[32, 32], conv_stride=[2, 2],
      conv_kernel=[3, 3], num_feat_extract_layers=2, num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2,
      num_mel_bins=32, speech_decoder_prenet_units=32, speech_decoder_postnet_units=32, speaker_embedding_dim=32,
      encoder_max_relative_position=8,
      keep={r"speech_decoder_postnet\.(feat|prob)_out": "head"}),
    F("bark_semantic", "BarkSemanticModel", input_vocab_size=96, output_vocab_size=96, block_size=40, keep={"lm_head": "head"}),
    F("seamless_m4t_text", "SeamlessM4TForTextToText", encoder_layers=2, decoder_layers=2, speech_encoder_layers=2),

    # Vision, and vision with language.
    F("vit", "ViTForImageClassification", keep={"classifier": "classifier"}, num_labels=10),
    F("vit_base", "ViTModel"),
    F("deit", "DeiTForImageClassification", keep={"classifier": "classifier"}, num_labels=10),
    F("beit", "BeitForImageClassification", keep={"classifier": "classifier"}, num_labels=10),
    F("dinov2", "Dinov2Model"),
    F("dinov2_classification", "Dinov2ForImageClassification", keep={"classifier": "classifier"}, num_labels=10),
    F("dinov3_vit", "DINOv3ViTModel"),
    F("swin", "SwinForImageClassification", keep={"classifier": "classifier"}, num_labels=10, embed_dim=32, depths=[1, 1],
      num_heads=[2, 4], window_size=4, patch_size=4),
    F("swinv2", "Swinv2ForImageClassification", either=[r".*\.continuous_position_bias_mlp\.\d"],
      keep={"classifier": "classifier"}, num_labels=10, embed_dim=32,
      depths=[1, 1], num_heads=[2, 4], window_size=4, patch_size=4),
    F("convnext", "ConvNextForImageClassification", keep={"classifier": "classifier"}, num_labels=10,
      hidden_sizes=[32, 64], depths=[1, 1], num_stages=2),
    F("segformer", "SegformerForSemanticSegmentation", num_labels=10, hidden_sizes=[32, 64], depths=[1, 1],
      num_attention_heads=[1, 2], num_encoder_blocks=2, sr_ratios=[2, 1], patch_sizes=[7, 3], strides=[4, 2],
      mlp_ratios=[2, 2], decoder_hidden_size=32),
    F("yolos", "YolosForObjectDetection", keep={r"(class_labels_classifier|bbox_predictor)\..*": "classifier"}, num_labels=3,
      image_size=[32, 32], num_detection_tokens=4),
    F("clip", "CLIPModel", nested("CLIPConfig", text_config=part("CLIPTextConfig"), vision_config=VISION, projection_dim=32),
      towers={"vision_model.": "vision"}),
    F("clip_vision", "CLIPVisionModel"),
    F("clip_text", "CLIPTextModel"),
    F("siglip", "SiglipModel", nested("SiglipConfig", text_config=part("SiglipTextConfig", projection_size=64), vision_config=VISION),
      towers={"vision_model.": "vision"}),
    F("siglip_vision", "SiglipVisionModel"),
    F("siglip2", "Siglip2Model", nested("Siglip2Config", text_config=part("Siglip2TextConfig", projection_size=64),
                                        vision_config=dict(VISION, num_patches=16)), towers={"vision_model.": "vision"}),
    F("llava", "LlavaForConditionalGeneration",
      nested("LlavaConfig", text_config=llama_part(), vision_config=dict(VISION, model_type="clip_vision_model"), tie_word_embeddings=False),
      towers={"vision_tower.": "vision", "multi_modal_projector.": "projector"}),
    F("llava_next", "LlavaNextForConditionalGeneration",
      nested("LlavaNextConfig", text_config=llama_part(), vision_config=dict(VISION, model_type="clip_vision_model"), tie_word_embeddings=False),
      towers={"vision_tower.": "vision", "multi_modal_projector.": "projector"}),
    F("llava_onevision", "LlavaOnevisionForConditionalGeneration",
      nested("LlavaOnevisionConfig", text_config=part("Qwen2Config"), vision_config=dict(VISION, model_type="siglip_vision_model"),
             tie_word_embeddings=False),
      towers={"vision_tower.": "vision", "multi_modal_projector.": "projector"}),
    F("qwen2_vl", "Qwen2VLForConditionalGeneration",
      nested("Qwen2VLConfig", text_config=part("Qwen2VLTextConfig", rope_scaling=QWEN_VL_ROPE),
             vision_config=dict(depth=2, embed_dim=64, hidden_size=64, num_heads=4, mlp_ratio=2, patch_size=8), tie_word_embeddings=False),
      towers={"visual.": "vision"}),
    F("qwen2_5_vl", "Qwen2_5_VLForConditionalGeneration",
      nested("Qwen2_5_VLConfig", text_config=part("Qwen2_5_VLTextConfig", rope_scaling=QWEN_VL_ROPE),
             vision_config=dict(depth=2, hidden_size=64, out_hidden_size=64, intermediate_size=128, num_heads=4, patch_size=8,
                                fullatt_block_indexes=[1]), tie_word_embeddings=False),
      towers={"visual.": "vision"}),
    F("qwen3_vl", "Qwen3VLForConditionalGeneration",
      nested("Qwen3VLConfig", text_config=part("Qwen3VLTextConfig", rope_scaling=QWEN_VL_ROPE),
             vision_config=dict(depth=2, hidden_size=64, out_hidden_size=64, intermediate_size=128, num_heads=4, patch_size=8,
                                num_position_embeddings=16, deepstack_visual_indexes=[0]), tie_word_embeddings=False),
      towers={"model.visual.": "vision"}),
    F("qwen3_vl_moe", "Qwen3VLMoeForConditionalGeneration",
      nested("Qwen3VLMoeConfig", text_config=part("Qwen3VLMoeTextConfig", rope_scaling=QWEN_VL_ROPE),
             vision_config=dict(depth=2, hidden_size=64, out_hidden_size=64, intermediate_size=128, num_heads=4, patch_size=8,
                                num_position_embeddings=16, deepstack_visual_indexes=[0]), tie_word_embeddings=False),
      keep=ROUTER, towers={"model.visual.": "vision"}),
    F("internvl_hf", "InternVLForConditionalGeneration",
      nested("InternVLConfig", text_config=part("Qwen2Config"),
             vision_config=dict(VISION, image_size=[32, 32], patch_size=[8, 8]), tie_word_embeddings=False),
      towers={"vision_tower.": "vision", "multi_modal_projector.": "projector"}),
    F("gemma3", "Gemma3ForConditionalGeneration",
      nested("Gemma3Config", text_config=part("Gemma3TextConfig"), vision_config=VISION, mm_tokens_per_image=4),
      towers={"vision_tower.": "vision", "multi_modal_projector.": "projector"}),
    F("paligemma", "PaliGemmaForConditionalGeneration",
      nested("PaliGemmaConfig", text_config=part("GemmaConfig"), vision_config=dict(VISION, projection_dim=64), projection_dim=64),
      towers={"vision_tower.": "vision", "multi_modal_projector.": "projector"}),
    F("mistral3", "Mistral3ForConditionalGeneration",
      nested("Mistral3Config", text_config=part("MistralConfig"), vision_config=dict(VISION, model_type="pixtral", head_dim=16),
             tie_word_embeddings=False),
      towers={"vision_tower.": "vision", "multi_modal_projector.": "projector"}),
    F("llama4", "Llama4ForConditionalGeneration",
      nested("Llama4Config", text_config=part("Llama4TextConfig", intermediate_size_mlp=128, moe_layers=[1]),
             vision_config=dict(VISION, vision_output_dim=64, projector_input_dim=64, projector_output_dim=64, pixel_shuffle_ratio=0.5),
             tie_word_embeddings=False),
      keep={r".*\.feed_forward\.router": "router"}, towers={"vision_model.": "vision", "multi_modal_projector.": "projector"}),
    F("mllama", "MllamaForConditionalGeneration",
      nested("MllamaConfig", text_config=part("mllama.MllamaTextConfig", cross_attention_layers=[1], rope_scaling={"rope_type": "default"}),
             vision_config=dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_global_layers=1, attention_heads=4,
                                image_size=32, patch_size=8, vision_output_dim=128, intermediate_layers_indices=[1], max_num_tiles=4, supported_aspect_ratios=[[1, 1], [1, 2], [2, 1], [2, 2]])),
      towers={"vision_model.": "vision", "multi_modal_projector": "projector"}),
    F("idefics3", "Idefics3ForConditionalGeneration",
      nested("Idefics3Config", text_config=llama_part(), vision_config=VISION, tie_word_embeddings=False),
      towers={"model.vision_model.": "vision", "model.connector.": "projector"}),
    F("smolvlm", "SmolVLMForConditionalGeneration",
      nested("SmolVLMConfig", text_config=llama_part(), vision_config=VISION, tie_word_embeddings=True),
      towers={"model.vision_model.": "vision", "model.connector.": "projector"}),
    F("florence2", "Florence2ForConditionalGeneration",
      nested("Florence2Config", text_config=part("BartConfig"),
             vision_config=dict(embed_dim=[32, 64], num_heads=[2, 4], num_groups=[2, 4], depths=[1, 1], window_size=4,
                                patch_size=[7, 3], patch_stride=[4, 2], patch_padding=[3, 1], patch_prenorm=[False, True],
                                drop_path_rate=0.0, projection_dim=64, max_temporal_embeddings=4, max_position_embeddings=40)),
      towers={"model.vision_tower.": "vision", "model.multi_modal_projector.": "projector"}),
    F("blip2", "Blip2ForConditionalGeneration",
      nested("Blip2Config", vision_config=VISION, text_config=part("OPTConfig", word_embed_proj_dim=64),
             qformer_config=part("Blip2QFormerConfig"), num_query_tokens=4),
      towers={"vision_model.": "vision", "qformer.": "projector", "language_projection": "projector"}),
    F("kosmos2", "Kosmos2ForConditionalGeneration",
      nested("Kosmos2Config", text_config=dict(vocab_size=96, max_position_embeddings=40, embed_dim=64, layers=2, ffn_dim=128,
                                               attention_heads=4), vision_config=VISION, latent_query_num=4),
      towers={"vision_model.": "vision", "image_to_text_projection.": "projector"}),
    F("sam", "SamModel",
      nested("SamConfig", vision_config=dict(hidden_size=64, output_channels=32, num_hidden_layers=2, num_attention_heads=4,
                                             image_size=32, patch_size=8, window_size=2, global_attn_indexes=[1], mlp_dim=128,
                                             num_pos_feats=16),
             prompt_encoder_config=dict(hidden_size=32, image_size=32, patch_size=8, mask_input_channels=4),
             mask_decoder_config=dict(hidden_size=32, mlp_dim=64, num_hidden_layers=2, num_attention_heads=4,
                                      iou_head_hidden_dim=32)),
      either=[r"mask_decoder\.(iou_prediction_head|output_hypernetworks_mlps)\..*"], towers={"vision_encoder.": "vision"}),
    F("qwen2_audio", "Qwen2AudioForConditionalGeneration",
      nested("Qwen2AudioConfig", text_config=part("Qwen2Config"),
             audio_config=dict(num_mel_bins=32, encoder_layers=2, encoder_attention_heads=4, encoder_ffn_dim=128, d_model=64,
                               max_source_positions=40)),
      towers={"audio_tower.": "audio", "multi_modal_projector.": "projector"}),
    F("granite_speech", "GraniteSpeechForConditionalGeneration",
      nested("GraniteSpeechConfig", text_config=part("GraniteConfig"),
             encoder_config=dict(input_dim=32, num_layers=2, hidden_dim=64, feedforward_mult=2, num_heads=4, dim_head=16,
                                 output_dim=32, context_size=16, max_pos_emb=16, conv_kernel_size=3, conv_expansion_factor=2),
             projector_config=part("Blip2QFormerConfig"), has_lora_adapter=False, downsample_rate=5, window_size=15),
      towers={"encoder.": "audio", "projector.": "projector"}),
    F("trocr", "VisionEncoderDecoderModel", lambda: transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(
        tiny("ViTConfig"), tiny("TrOCRConfig")), towers={"encoder.": "vision"}),
    F("musicgen_full", "MusicgenForConditionalGeneration", lambda: transformers.MusicgenConfig.from_sub_models_config(
        tiny("T5Config"), transformers.EncodecConfig(num_filters=4, hidden_size=16, codebook_size=64, codebook_dim=16, target_bandwidths=[1.5],
                                                     num_lstm_layers=1),
        tiny("MusicgenDecoderConfig", num_codebooks=2)),
      keep={r"decoder\.lm_heads\.\d+": "head", r".*\.relative_attention_bias": "position_bias"},
      towers={"audio_encoder.": "audio", "text_encoder.": "text"}),
]
FAMILIES = [f for f in FAMILIES if f]

HAND = []


def complete(hand):
    return hand
