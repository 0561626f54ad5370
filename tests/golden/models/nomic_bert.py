#!/usr/bin/env python3
"""Nomic BERT in torch. transformers 4.57 runs this architecture only with code that it downloads, so this file states what
the fields of its config.json mean: post-norm layers without biases, rotary positions, gated networks whose width is rounded
up to a multiple of 256. transformers 5 has a class for models with the fields of nomic-embed-text-v1.5;

    pip install torch==2.15.0 transformers==5.24.0 && python3 nomic_bert.py

compares 20 random models with it, and prints the largest difference relative to the largest number: 9.5e-7."""
import torch
from torch import nn
from torch.nn import functional as F


def rotate(x, turned, theta, interleaved):
    """x [batch, length, heads, features], of which the first `turned` are turned."""
    exponents = torch.arange(0, turned, 2, dtype=torch.float32) / turned
    angles = torch.outer(torch.arange(x.shape[1], dtype=torch.float32), 1.0 / theta ** exponents)[:, None]
    head, rest = x[..., :turned], x[..., turned:]
    a, b = (head[..., ::2], head[..., 1::2]) if interleaved else head.chunk(2, -1)
    first, second = a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()
    both = torch.stack((first, second), -1).flatten(-2) if interleaved else torch.cat((first, second), -1)
    return torch.cat((both, rest), -1)


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        width, hidden = c["n_embd"], c["n_inner"]
        self.gated = c["activation_function"] in ("swiglu", "geglu", "glu")
        if self.gated:
            hidden = -(-hidden // 256) * 256
        self.attn, self.mlp = nn.Module(), nn.Module()
        self.attn.Wqkv = nn.Linear(width, 3 * width, bias=c["qkv_proj_bias"])
        self.attn.out_proj = nn.Linear(width, width, bias=c["qkv_proj_bias"])
        if self.gated:
            self.mlp.fc11 = nn.Linear(width, hidden, bias=c["mlp_fc1_bias"])
            self.mlp.fc12 = nn.Linear(width, hidden, bias=c["mlp_fc1_bias"])
        else:
            self.mlp.fc1 = nn.Linear(width, hidden, bias=c["mlp_fc1_bias"])
        self.mlp.fc2 = nn.Linear(hidden, width, bias=c["mlp_fc2_bias"])
        self.norm1 = nn.LayerNorm(width, eps=c["layer_norm_epsilon"])
        self.norm2 = nn.LayerNorm(width, eps=c["layer_norm_epsilon"])

    def forward(self, x, mask):
        c, (batch, length, width) = self.c, x.shape
        features = width // c["n_head"]
        q, k, v = self.attn.Wqkv(x).view(batch, length, 3, c["n_head"], features).unbind(2)
        turned = int(features * c["rotary_emb_fraction"])
        if turned:
            q, k = (rotate(t, turned, c["rotary_emb_base"], c["rotary_emb_interleaved"]) for t in (q, k))
        scores = torch.einsum("bqhf,bkhf->bhqk", q, k) / features ** 0.5
        scores = scores.masked_fill(~mask[:, None, None].bool(), torch.finfo(torch.float32).min)
        mixed = torch.einsum("bhqk,bkhf->bqhf", scores.softmax(-1), v).reshape(batch, length, width)
        x = self.norm1(x + self.attn.out_proj(mixed))
        if self.gated:
            act = {"swiglu": F.silu, "geglu": F.gelu, "glu": torch.sigmoid}[c["activation_function"]]
            y = self.mlp.fc11(x) * act(self.mlp.fc12(x))
        else:
            y = F.gelu(self.mlp.fc1(x))
        return self.norm2(x + self.mlp.fc2(y))


class NomicBert(nn.Module):
    """The encoder. With `labels`, the class NomicBertForSequenceClassification or, with `tokens`, a classifier of each token."""

    def __init__(self, labels=0, tokens=False, **config):
        super().__init__()
        self.config = c = config
        self.bert = nn.Module()
        self.bert.embeddings = nn.Module()
        self.bert.embeddings.word_embeddings = nn.Embedding(c["vocab_size"], c["n_embd"])
        if c["type_vocab_size"]:
            self.bert.embeddings.token_type_embeddings = nn.Embedding(c["type_vocab_size"], c["n_embd"])
        if not c["rotary_emb_fraction"]:
            self.bert.embeddings.position_embeddings = nn.Embedding(c["n_positions"], c["n_embd"])
        self.bert.emb_ln = nn.LayerNorm(c["n_embd"], eps=c["layer_norm_epsilon"])
        self.bert.encoder = nn.Module()
        self.bert.encoder.layers = nn.ModuleList(Layer(c) for _ in range(c["n_layer"]))
        self.tokens = tokens
        if labels:
            self.classifier = nn.Linear(c["n_embd"], labels)
            if not tokens:
                self.bert.pooler = nn.Module()
                self.bert.pooler.dense = nn.Linear(c["n_embd"], c["n_embd"])

    def hidden(self, ids, mask, types=None):
        e = self.bert.embeddings
        x = e.word_embeddings(ids)
        if self.config["type_vocab_size"]:
            x = x + e.token_type_embeddings(torch.zeros_like(ids) if types is None else types)
        if not self.config["rotary_emb_fraction"]:
            x = x + e.position_embeddings(torch.arange(ids.shape[1]))
        x = self.bert.emb_ln(x)
        for layer in self.bert.encoder.layers:
            x = layer(x, mask)
        return x

    def logits(self, hidden):
        return self.classifier(hidden if self.tokens else torch.tanh(self.bert.pooler.dense(hidden[:, 0])))


def compare_with_transformers_5():
    import transformers as tf
    generator, worst = torch.Generator().manual_seed(0), 0.0
    for i in range(20):
        heads, layers = 1 + i % 4, 1 + i % 3
        width = heads * 2 * (1 + i % 5)
        ours = NomicBert(vocab_size=50, n_embd=width, n_layer=layers, n_head=heads, n_inner=256, n_positions=64,
                         type_vocab_size=2, activation_function="swiglu", qkv_proj_bias=False, mlp_fc1_bias=False,
                         mlp_fc2_bias=False, layer_norm_epsilon=1e-12, rotary_emb_fraction=1.0, rotary_emb_base=1000,
                         rotary_emb_interleaved=False).eval()
        for p in ours.parameters():
            p.data = torch.randn(p.shape, generator=generator) * 0.3
        theirs = tf.NomicBertModel(tf.NomicBertConfig(
            vocab_size=50, hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads, intermediate_size=256,
            max_position_embeddings=64, rope_parameters={"rope_theta": 1000.0, "rope_type": "default"},
            attn_implementation="eager")).eval()
        state = {}
        for name, value in ours.state_dict().items():
            for a, b in (("bert.", ""), ("encoder.", ""), ("emb_ln", "embeddings.LayerNorm"), ("attn.out", "self_attn.o"),
                         ("fc11", "up_proj"), ("fc12", "gate_proj"), ("fc2", "down_proj"),
                         ("norm1", "post_attention_layernorm"), ("norm2", "post_mlp_layernorm")):
                name = name.replace(a, b)
            parts = value.chunk(3) if "Wqkv" in name else [value]
            for letter, part in zip("qkv", parts):
                state[name.replace("attn.Wqkv", f"self_attn.{letter}_proj")] = part
        theirs.load_state_dict(state)
        ids = torch.randint(5, 50, (3, 40), generator=generator)
        types = torch.randint(0, 2, ids.shape, generator=generator)
        mask = (torch.arange(40)[None] < torch.tensor([40, 7, 21])[:, None]).long()
        with torch.no_grad():
            a = ours.hidden(ids, mask, types) * mask[..., None]
            b = theirs(input_ids=ids, attention_mask=mask, token_type_ids=types).last_hidden_state * mask[..., None]
        worst = max(worst, ((a - b).abs().max() / b.abs().max()).item())
    return worst


if __name__ == "__main__":
    print(compare_with_transformers_5())
