#include "aqt/gguf/architecture.h"

namespace aqt::gguf {
namespace {

// clang-format off
constexpr ModuleName kOuter[] = {
    {"token_embd", "model.embed_tokens"},
    {"output_norm", "model.norm"},
    {"output", "lm_head"},
};

constexpr ModuleName kLlama[] = {
    {"attn_norm", "input_layernorm"},
    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},
    {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.o_proj"},
    {"ffn_norm", "post_attention_layernorm"},
    {"ffn_gate", "mlp.gate_proj"},
    {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},
};

constexpr ModuleName kHeadNorms[] = {
    {"attn_q_norm", "self_attn.q_norm"},
    {"attn_k_norm", "self_attn.k_norm"},
};

constexpr ModuleName kSharedExpert[] = {
    {"ffn_gate_inp_shexp", "mlp.shared_expert_gate"},
    {"ffn_gate_shexp", "mlp.shared_expert.gate_proj"},
    {"ffn_up_shexp", "mlp.shared_expert.up_proj"},
    {"ffn_down_shexp", "mlp.shared_expert.down_proj"},
};

constexpr ModuleName kMixtral[] = {
    {"attn_norm", "input_layernorm"},
    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},
    {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.o_proj"},
    {"ffn_norm", "post_attention_layernorm"},
    {"ffn_gate_inp", "block_sparse_moe.gate"},
    {"ffn_gate_exps", "block_sparse_moe.experts.{E}.w1"},
    {"ffn_down_exps", "block_sparse_moe.experts.{E}.w2"},
    {"ffn_up_exps", "block_sparse_moe.experts.{E}.w3"},
};

constexpr ModuleName kQwenMoe[] = {
    {"attn_norm", "input_layernorm"},
    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},
    {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.o_proj"},
    {"ffn_norm", "post_attention_layernorm"},
    {"ffn_gate_inp", "mlp.gate"},
    {"ffn_gate_exps", "mlp.experts.{E}.gate_proj"},
    {"ffn_up_exps", "mlp.experts.{E}.up_proj"},
    {"ffn_down_exps", "mlp.experts.{E}.down_proj"},
};

constexpr ModuleName kGemma2[] = {
    {"attn_norm", "input_layernorm"},
    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},
    {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.o_proj"},
    {"post_attention_norm", "post_attention_layernorm"},
    {"ffn_norm", "pre_feedforward_layernorm"},
    {"ffn_gate", "mlp.gate_proj"},
    {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},
    {"post_ffw_norm", "post_feedforward_layernorm"},
};

constexpr ModuleName kPhi3[] = {
    {"attn_norm", "input_layernorm"},
    {"attn_qkv", "self_attn.qkv_proj"},
    {"attn_output", "self_attn.o_proj"},
    {"ffn_norm", "post_attention_layernorm"},
    {"ffn_up", "mlp.gate_up_proj"},
    {"ffn_down", "mlp.down_proj"},
};

constexpr ConfigKey kCommonKeys[] = {
    {"context_length", "max_position_embeddings"},
    {"block_count", "num_hidden_layers"},
    {"feed_forward_length", "intermediate_size"},
    {"embedding_length", "hidden_size"},
    {"attention.head_count", "num_attention_heads"},
    {"attention.head_count_kv", "num_key_value_heads"},
    {"attention.layer_norm_rms_epsilon", "rms_norm_eps"},
    {"rope.freq_base", "rope_theta"},
};

constexpr ConfigKey kMixtralKeys[] = {
    {"expert_count", "num_local_experts"},
    {"expert_used_count", "num_experts_per_tok"},
};

constexpr ConfigKey kQwenMoeKeys[] = {
    {"expert_count", "num_experts"},
    {"expert_used_count", "num_experts_per_tok"},
    {"expert_feed_forward_length", "moe_intermediate_size"},
    {"expert_shared_feed_forward_length", "shared_expert_intermediate_size"},
};

constexpr ConfigKey kGemma2Keys[] = {
    {"attention.sliding_window", "sliding_window"},
    {"attn_logit_softcapping", "attn_logit_softcapping"},
    {"final_logit_softcapping", "final_logit_softcapping"},
};

constexpr ConfigKey kWindowKeys[] = {
    {"attention.sliding_window", "sliding_window"},
};

constexpr ConfigKey kPhi3Keys[] = {
    {"attention.sliding_window", "sliding_window"},
    {"rope.scaling.original_context_length", "original_max_position_embeddings"},
};

constexpr Architecture kArchitectures[] = {
    {"llama", "llama", "LlamaForCausalLM", kLlama, {}, {}, true, false, true},
    {"llama", "mixtral", "MixtralForCausalLM", kMixtral, {}, kMixtralKeys, true, false, true},
    {"qwen2", "qwen2", "Qwen2ForCausalLM", kLlama, {}, {}, false, false, false},
    {"qwen2moe", "qwen2_moe", "Qwen2MoeForCausalLM", kQwenMoe, kSharedExpert, kQwenMoeKeys, false, false, false},
    {"qwen3", "qwen3", "Qwen3ForCausalLM", kLlama, kHeadNorms, {}, false, false, true},
    {"qwen3moe", "qwen3_moe", "Qwen3MoeForCausalLM", kQwenMoe, kHeadNorms, kQwenMoeKeys, false, false, true},
    {"gemma", "gemma", "GemmaForCausalLM", kLlama, {}, {}, false, true, true},
    {"gemma2", "gemma2", "Gemma2ForCausalLM", kGemma2, {}, kGemma2Keys, false, true, true},
    {"gemma3", "gemma3_text", "Gemma3ForCausalLM", kGemma2, kHeadNorms, kWindowKeys, false, true, true},
    {"phi3", "phi3", "Phi3ForCausalLM", kPhi3, {}, kPhi3Keys, false, false, false},
};
// clang-format on

}  // namespace

const Architecture* FindArchitecture(absl::string_view name, bool experts) {
  const Architecture* found = nullptr;
  for (const Architecture& architecture : kArchitectures) {
    if (architecture.name != name) continue;
    found = &architecture;
    if ((architecture.model_type == "mixtral") == experts) break;
  }
  return found;
}

absl::Span<const Architecture> Architectures() { return kArchitectures; }
absl::Span<const ModuleName> OuterModules() { return kOuter; }
absl::Span<const ConfigKey> CommonKeys() { return kCommonKeys; }

}  // namespace aqt::gguf
