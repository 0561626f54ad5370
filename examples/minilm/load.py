#!/usr/bin/env python3
"""Loads two folders of all-MiniLM-L6-v2, float and converted, with transformers and compares their sentence embeddings.

usage: load.py FLOAT_FOLDER CONVERTED_FOLDER [--min-cosine X]

Not part of the build: needs torch, transformers and compressed-tensors (pip install torch transformers compressed-tensors).
transformers finds the quantization_config in the converted folder's config.json and runs the quantized model, with quantized
activations. With --min-cosine the script fails if the embeddings of a sentence have a lower cosine.
"""
import argparse
import os
import sys

os.environ.setdefault("TQDM_DISABLE", "1")  # no progress bars; read at import
import compressed_tensors  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402

SENTENCES = [
    "The cat sits on the mat.",
    "A kitten is lying on a rug.",
    "Stocks fell sharply on Monday.",
    "The central bank raised interest rates by a quarter of a point.",
    "He plays the violin in a small orchestra.",
    "Bread is baked from flour, water, salt and yeast.",
    "How do I reset my password?",
    "What is the way to change a forgotten password?",
    "The train to Berlin leaves at nine.",
    "Quantization maps real numbers to few integers.",
    "Integers of eight bits take a quarter of the memory.",
    "It rained all day.",
]


def embed(folder):
    """[sentences, 384]: the mean of the token vectors, normalized."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    tokens = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden = model(**tokens).last_hidden_state
    mask = tokens["attention_mask"].unsqueeze(-1)
    return torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1)


def main():
    parser = argparse.ArgumentParser(description="Compares the sentence embeddings of two folders of all-MiniLM-L6-v2.")
    parser.add_argument("float_folder")
    parser.add_argument("converted_folder")
    parser.add_argument("--min-cosine", type=float, metavar="X", help="fail if the embeddings of a sentence have a lower cosine")
    options = parser.parse_args()
    print(f"torch {torch.__version__}, transformers {transformers.__version__}, compressed-tensors {compressed_tensors.__version__}")
    reference, converted = embed(options.float_folder), embed(options.converted_folder)
    cosine = (reference * converted).sum(-1)
    print(f"cosine of the embeddings of {len(SENTENCES)} sentences: mean {cosine.mean():.5f}, min {cosine.min():.5f}")
    change = (reference @ reference.T - converted @ converted.T).abs().max()
    print(f"similarity cat/kitten {reference[0] @ reference[1]:.4f} -> {converted[0] @ converted[1]:.4f}, "
          f"cat/stocks {reference[0] @ reference[2]:.4f} -> {converted[0] @ converted[2]:.4f}; largest change of any pair {change:.4f}")
    if options.min_cosine is not None and not cosine.min() >= options.min_cosine:
        print(f"load.py: the smallest cosine is {cosine.min():.5f}, below {options.min_cosine}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
