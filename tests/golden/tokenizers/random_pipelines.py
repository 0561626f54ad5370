"""Records random combinations of normalizers, pre-tokenizers and added tokens, around the models of record.py.

    python random_pipelines.py > pipelines.txt

For each combination there is a line of JSON, and a line with a hash for every 17th string of corpus.txt.
"""
import base64
import json
import pathlib
import random

from tokenizers import Tokenizer

import record

HERE = pathlib.Path(__file__).resolve().parent
COUNT = 120
STEP = 17
rng = random.Random(4)
BEHAVIORS = ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"]
REPLACED = [" {2,}", r"\s+", "[aeiou]", r"\p{M}+", r"\d{1,2}", "(?i:the|it|s)", r"[^\w\s]", r"\w+?(?=-)", "l|ll", r"\p{Lu}\p{Ll}*",
            "(?:ab|a)b?c?"]
SPLIT = [{"String": "e"}, {"String": " "}, {"Regex": r"\s+"}, {"Regex": r"\s+(?!\S)|\s+"}, {"Regex": r"[A-Z][a-z]*|\W"},
         {"Regex": r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"}, {"Regex": r"\p{Lo}"}, {"Regex": r" ?[^\s\p{L}\p{N}]+[\r\n/]*"},
         {"Regex": r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"}]
CHARSMAP = "charsmap of xlm_roberta"


def coin():
    return rng.random() < 0.5


def normalizer():
    return rng.choice([
        {"type": "NFC"}, {"type": "NFD"}, {"type": "NFKC"}, {"type": "NFKD"}, {"type": "Lowercase"}, {"type": "StripAccents"},
        {"type": "Nmt"}, {"type": "ByteLevel"}, {"type": "Precompiled", "precompiled_charsmap": CHARSMAP},
        {"type": "Strip", "strip_left": coin(), "strip_right": coin()},
        {"type": "Prepend", "prepend": rng.choice(["\u2581", " ", "ab"])},
        {"type": "Replace", "pattern": {"String": rng.choice([" ", "a", "e\u0301", "ll", "''"])},
         "content": rng.choice(["", "\u2581", "xy", "\u00e9"])},
        {"type": "Replace", "pattern": {"Regex": rng.choice(REPLACED)}, "content": rng.choice(["", " ", "\u2581", "Q"])},
        {"type": "BertNormalizer", "clean_text": coin(), "handle_chinese_chars": coin(),
         "strip_accents": rng.choice([None, True, False]), "lowercase": coin()},
    ])


def pre_tokenizer():
    return rng.choice([
        {"type": "BertPreTokenizer"}, {"type": "Whitespace"}, {"type": "WhitespaceSplit"},
        {"type": "CharDelimiterSplit", "delimiter": rng.choice("_e ")},
        {"type": "Punctuation", "behavior": rng.choice(BEHAVIORS)},
        {"type": "Digits", "individual_digits": coin()},
        {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": rng.choice(["first", "never", "always"]), "split": coin()},
        {"type": "ByteLevel", "add_prefix_space": coin(), "trim_offsets": coin(), "use_regex": coin()},
        {"type": "Split", "pattern": rng.choice(SPLIT), "behavior": rng.choice(BEHAVIORS), "invert": coin()},
    ])


def some(make, key):
    parts = [make() for _ in range(rng.choice([0, 1, 1, 2, 3]))]
    return None if not parts else parts[0] if len(parts) == 1 else {"type": "Sequence", key: parts}


def combination():
    base = rng.choice(["parts", "roberta", "xlm_roberta", "llama", "fused", "t5", "bert_cased", "clip"])
    state = json.loads((HERE / base / "tokenizer.json").read_text(encoding="utf-8"))
    charsmap = json.loads((HERE / "xlm_roberta" / "tokenizer.json").read_text(encoding="utf-8"))["normalizer"]["normalizers"][0]
    changes = {"truncation": None, "normalizer": some(normalizer, "normalizers"),
               "pre_tokenizer": some(pre_tokenizer, "pretokenizers"), "added_tokens": state["added_tokens"],
               "post_processor": rng.choice([None, {"type": "ByteLevel", "add_prefix_space": coin(), "trim_offsets": coin(),
                                                    "use_regex": True}])}
    for token in changes["added_tokens"]:
        for key in ("lstrip", "rstrip", "single_word", "normalized"):
            token[key] = coin()
    state.update(changes)
    text = json.dumps(state).replace(json.dumps(CHARSMAP), json.dumps(charsmap["precompiled_charsmap"]))
    return base, changes, text, state["model"]


def main():
    strings = [base64.b64decode(line) for line in (HERE / "corpus.txt").read_text().split("\n")[:-1]][::STEP]
    done = 0
    while done < COUNT:
        base, changes, text, model = combination()
        try:
            tok = Tokenizer.from_str(text)
        except Exception:  # pylint: disable=broad-except  two added tokens that become one
            continue
        # Offsets of the package are wrong after characters that such a model drops.
        drops = model["type"] == "BPE" and model["unk_token"] is None
        hashes = []
        for data in strings:
            decoded, starts = record.decode(data)
            try:
                encoding = tok.encode(decoded)
            except BaseException:  # pylint: disable=broad-except  the package sometimes panics
                break
            numbers = [f"{i}" if drops else f"{i}:{starts[a]}-{starts[b]}" for i, (a, b) in zip(encoding.ids, encoding.offsets)]
            hashes.append(f"{record.fnv(' '.join(numbers).encode()) >> 32:08x}")
        if len(hashes) < len(strings):
            continue
        print(json.dumps({"base": base, "ids_only": drops, "changes": changes}, ensure_ascii=True))
        print(" ".join(hashes))
        done += 1


if __name__ == "__main__":
    main()
