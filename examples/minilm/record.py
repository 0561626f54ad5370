#!/usr/bin/env python3
"""Records the reference embeddings of encoder_test.py and the command `encoder` from transformers.

  record.py sentences FOLDER   writes sentences.safetensors: the embeddings of sentences.txt by the model in FOLDER
                               (fetch.py), and the tokens of calibration.txt
  record.py tiny               writes testdata/tiny: a BERT of two narrow layers with random weights, and its embeddings

An embedding is the mean of the last hidden states over the tokens of a sentence, divided by its length, as
sentence-transformers computes it. Embeddings are computed in f64 and stored as f32, rounded once. Recorded with torch 2.15.0,
transformers 5.23.0, safetensors 0.8.0 and numpy 2.4.6; needs `pip install torch transformers safetensors numpy`.
"""
import pathlib
import sys

import numpy as np
import safetensors.numpy
import torch
import transformers

HERE = pathlib.Path(__file__).parent


def embed(model, ids, lengths):
    """[sentences, width] for ids [sentences, length]. Only the first `lengths` ids of each sentence are used."""
    mask = torch.arange(ids.shape[1])[None, :] < torch.from_numpy(lengths)[:, None]
    with torch.no_grad():
        hidden = model(input_ids=torch.from_numpy(ids).long(), attention_mask=mask.long()).last_hidden_state
    mean = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
    return torch.nn.functional.normalize(mean, dim=-1).numpy().astype(np.float32)


def padded(rows):
    """ids s32 [rows, longest], padded with zeros, and the lengths of the rows."""
    lengths = np.array([len(row) for row in rows], np.int32)
    ids = np.zeros((len(rows), lengths.max()), np.int32)
    for to, row in zip(ids, rows):
        to[:len(row)] = row
    return ids, lengths


def write(path, rows, calibration, model):
    ids, lengths = padded(rows)
    calibration_ids, calibration_lengths = padded(calibration)
    tensors = {
        "data/ids": ids,
        "data/lengths": lengths,
        "data/embeddings": embed(model, ids, lengths),
        "data/calibration_ids": calibration_ids,
        "data/calibration_lengths": calibration_lengths,
    }
    safetensors.numpy.save_file(tensors, path)
    print(f"{path}: {ids.shape[0]} sentences of {lengths.min()} to {lengths.max()} tokens")


def record_sentences(folder):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder, dtype=torch.float64).eval()

    def tokens(name):
        return tokenizer((HERE / name).read_text(encoding="utf-8").splitlines())["input_ids"]

    write(HERE / "sentences.safetensors", tokens("sentences.txt"), tokens("calibration.txt"), model)


def record_tiny():
    """A model in which every part matters: weights, biases and the epsilon of the norms are large; sentences differ in length."""
    torch.manual_seed(16)
    config = transformers.BertConfig(vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
                                     max_position_embeddings=24, layer_norm_eps=1e-2)
    model = transformers.BertModel(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            mean = 1.0 if name.endswith("LayerNorm.weight") else 0.0
            parameter.normal_(mean, 1.0 if "embeddings" in name else 0.25)
    folder = HERE / "testdata" / "tiny"
    model.save_pretrained(folder)
    rng = np.random.default_rng(16)

    def sentences(lengths):
        return [rng.integers(0, config.vocab_size, length).tolist() for length in lengths]

    write(folder / "sentences.safetensors", sentences([1, 2, 5, 9, 13, 20]), sentences([3, 7, 11, 15]), model.double())


def main():
    if sys.argv[1:2] == ["sentences"] and len(sys.argv) == 3:
        record_sentences(sys.argv[2])
    elif sys.argv[1:] == ["tiny"]:
        record_tiny()
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
