"""Trains small tokenizers of each kind, and records what the `tokenizers` package makes of the strings of corpus.py.

    python record.py .        (writes NAME/tokenizer.json, NAME/expected.txt, corpus.txt, code_points.txt)

The pipelines are those that transformers' convert_slow_tokenizer builds for the families of these names.
"""
import base64
import json
import pathlib
import sys
import tempfile

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

import corpus

OUT = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".")
TEXT = corpus.training_text()
QWEN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)"
          r"|\s+")
CLIP = r"""'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"""


def special(content, **how):
    return AddedToken(content, special=True, normalized=False, **how)


def train(tokenizer, trainer):
    tokenizer.train_from_iterator(TEXT, trainer)
    return tokenizer


def template(tok, single, pair, *names):
    return processors.TemplateProcessing(single=single, pair=pair, special_tokens=[(n, tok.token_to_id(n)) for n in names])


BERT_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def bert(normalizer, size):
    tok = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tok.normalizer = normalizer
    tok.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return train(tok, trainers.WordPieceTrainer(vocab_size=size, special_tokens=[special(s) for s in BERT_SPECIAL],
                                                show_progress=False))


def bert_uncased():
    tok = bert(normalizers.BertNormalizer(clean_text=True, handle_chinese_chars=True, strip_accents=None, lowercase=True), 2500)
    tok.post_processor = template(tok, "[CLS]:0 $A:0 [SEP]:0", "[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1", "[CLS]", "[SEP]")
    return tok


def bert_cased():
    tok = bert(normalizers.BertNormalizer(clean_text=True, handle_chinese_chars=True, strip_accents=None, lowercase=False), 2500)
    tok.add_tokens([AddedToken("<new>"), AddedToken("Ünïcode"), AddedToken("<word>", single_word=True),
                    AddedToken("<left>", lstrip=True), AddedToken("<right>", rstrip=True, normalized=False),
                    AddedToken("wordpiece", single_word=True, normalized=False)])
    tok.post_processor = processors.BertProcessing(("[SEP]", tok.token_to_id("[SEP]")), ("[CLS]", tok.token_to_id("[CLS]")))
    return tok


def byte_level(size, names, **how):
    tok = Tokenizer(models.BPE(**how))
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return train(tok, trainers.BpeTrainer(vocab_size=size, special_tokens=names, show_progress=False,
                                          initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))


def roberta():
    tok = byte_level(1500, [special(s) for s in ("<s>", "<pad>", "</s>", "<unk>")] + [special("<mask>", lstrip=True)])
    tok.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), trim_offsets=True, add_prefix_space=False)
    return tok


def modernbert():
    tok = byte_level(1500, [])
    tok.normalizer = normalizers.NFC()
    tok.add_tokens([AddedToken("|||IP|||")] + [AddedToken(" " * n) for n in range(2, 25)])
    tok.add_special_tokens([special("<|endoftext|>"), special("[UNK]"), special("[CLS]"), special("[SEP]"), special("[PAD]"),
                            special("[MASK]", lstrip=True)])
    tok.post_processor = template(tok, "[CLS]:0 $A:0 [SEP]:0", "[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1", "[CLS]", "[SEP]")
    return tok


def qwen():
    tok = byte_level(1500, [], ignore_merges=True)
    tok.normalizer = normalizers.NFC()
    tok.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(QWEN), "isolated"),
                                                 pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tok.add_special_tokens([special("<|endoftext|>"), special("<|im_start|>")])
    tok.post_processor = processors.ByteLevel(trim_offsets=False)
    return tok


def llama3():
    tok = byte_level(1200, [], ignore_merges=True)
    tok.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(LLAMA3), "isolated"),
                                                 pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tok.add_special_tokens([special("<s>"), special("</s>")])
    tok.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=True),
                                              template(tok, "<s> $A", "<s> $A <s>:1 $B:1", "<s>")])
    return tok


def clip():
    tok = Tokenizer(models.BPE(unk_token="<|endoftext|>", end_of_word_suffix="</w>", continuing_subword_prefix=""))
    tok.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()])
    tok.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(CLIP), "removed", invert=True),
                                                 pre_tokenizers.ByteLevel(add_prefix_space=False)])
    train(tok, trainers.BpeTrainer(vocab_size=1500, special_tokens=["<|startoftext|>", "<|endoftext|>"], show_progress=False,
                                   end_of_word_suffix="</w>", initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    tok.post_processor = processors.RobertaProcessing(("<|endoftext|>", 1), ("<|startoftext|>", 0), trim_offsets=False,
                                                      add_prefix_space=False)
    return tok


def charsmap():
    """The real map of nmt_nfkc, from a model that sentencepiece trains."""
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "text"
        path.write_text("\n".join(TEXT), encoding="utf-8")
        sentencepiece.SentencePieceTrainer.train(input=str(path), model_prefix=folder + "/m", vocab_size=1200,
                                                 minloglevel=2, hard_vocab_limit=False)
        proto = sentencepiece_model_pb2.ModelProto()
        proto.ParseFromString((pathlib.Path(folder) / "m.model").read_bytes())
        return proto.normalizer_spec.precompiled_charsmap


def xlm_roberta():
    tok = Tokenizer(models.Unigram())
    tok.normalizer = normalizers.Sequence([normalizers.Precompiled(charsmap()), normalizers.Replace(Regex(" {2,}"), " ")])
    tok.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(),
                                                 pre_tokenizers.Metaspace(replacement="\u2581", prepend_scheme="always")])
    train(tok, trainers.UnigramTrainer(vocab_size=2500, unk_token="<unk>", show_progress=False,
                                       special_tokens=[special(s) for s in ("<s>", "<pad>", "</s>", "<unk>")]))
    tok.add_special_tokens([special("<mask>", lstrip=True)])
    tok.post_processor = template(tok, "<s> $A </s>", "<s> $A </s> </s> $B </s>", "<s>", "</s>")
    return tok


def t5():
    tok = Tokenizer(models.Unigram())
    tok.normalizer = normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC(), normalizers.Strip(left=False, right=True),
                                           normalizers.Replace(Regex(" {2,}"), "\u2581")])
    tok.pre_tokenizer = pre_tokenizers.Metaspace(replacement="\u2581", prepend_scheme="first", split=False)
    bytes_ = [f"<0x{b:02X}>" for b in range(256)]
    train(tok, trainers.UnigramTrainer(vocab_size=1800, unk_token="<unk>", show_progress=False,
                                       special_tokens=["<pad>", "</s>", "<unk>"]))
    model = json.loads(tok.to_str())["model"]
    vocab = [tuple(v) for v in model["vocab"]] + [(b, 0.0) for b in bytes_]
    tok.model = models.Unigram(vocab, unk_id=2, byte_fallback=True)
    tok.post_processor = template(tok, "$A </s>", "$A </s> $B </s>", "</s>")
    return tok


def llama():
    tok = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tok.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    tok.pre_tokenizer = pre_tokenizers.Metaspace(replacement="\u2581", prepend_scheme="never", split=True)
    train(tok, trainers.BpeTrainer(vocab_size=1400, show_progress=False, limit_alphabet=300,
                                   special_tokens=["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]))
    tok.pre_tokenizer = None
    state = json.loads(tok.to_str())
    state["added_tokens"] = [t for t in state["added_tokens"] if not t["content"].startswith("<0x")]
    tok = Tokenizer.from_str(json.dumps(state))
    tok.post_processor = template(tok, "<s> $A", "<s> $A <s>:1 $B:1", "<s>")
    return tok


def fused():
    """BPE without bytes: unknown characters become one <unk>."""
    tok = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, continuing_subword_prefix="@@"))
    tok.normalizer = normalizers.Sequence([normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase()])
    tok.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Whitespace(), pre_tokenizers.Digits(individual_digits=True),
                                                 pre_tokenizers.Split("-", "merged_with_previous")])
    train(tok, trainers.BpeTrainer(vocab_size=1200, show_progress=False, limit_alphabet=200, special_tokens=["<unk>"],
                                   continuing_subword_prefix="@@"))
    tok.enable_truncation(20, strategy="longest_first", direction="left")
    return tok


def parts():
    """The rarer normalizers and pre-tokenizers."""
    tok = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=30))
    tok.normalizer = normalizers.Sequence([normalizers.NFD(), normalizers.Replace("``", "\""), normalizers.Replace("''", "\""),
                                           normalizers.Strip(left=True, right=True),
                                           normalizers.BertNormalizer(clean_text=False, handle_chinese_chars=True,
                                                                      strip_accents=True, lowercase=False)])
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation("contiguous"), pre_tokenizers.Digits(individual_digits=False),
        pre_tokenizers.CharDelimiterSplit("_"), pre_tokenizers.Split(Regex(r"[A-Z]\p{Ll}*|\p{Lo}{1,2}?(?=\p{M})"),
                                                                   "merged_with_next")])
    train(tok, trainers.WordPieceTrainer(vocab_size=2000, special_tokens=["[UNK]", "[SEP]"], show_progress=False))
    tok.enable_truncation(12, strategy="only_first")
    return tok


def bert_vocab():
    """A folder of an old checkpoint: vocab.txt and tokenizer_config.json."""
    names = [t for t, _ in sorted(bert_cased().get_vocab(with_added_tokens=False).items(), key=lambda item: item[1])]
    folder = OUT / "bert_vocab"
    folder.mkdir(exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(names) + "\n", encoding="utf-8")
    config = {"do_lower_case": False, "strip_accents": True, "tokenize_chinese_chars": False, "model_max_length": 512,
              "tokenizer_class": "BertTokenizer", "mask_token": {"content": "[MASK]", "__type": "AddedToken"}}
    (folder / "tokenizer_config.json").write_text(json.dumps(config) + "\n")
    tok = Tokenizer(models.WordPiece({t: i for i, t in enumerate(names)}, unk_token="[UNK]"))
    tok.normalizer = normalizers.BertNormalizer(clean_text=True, handle_chinese_chars=False, strip_accents=True, lowercase=False)
    tok.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tok.add_special_tokens([special(s) for s in BERT_SPECIAL])
    tok.post_processor = template(tok, "[CLS]:0 $A:0 [SEP]:0", "[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1", "[CLS]", "[SEP]")
    return tok


MAKERS = [bert_uncased, bert_cased, roberta, modernbert, qwen, llama3, clip, xlm_roberta, t5, llama, fused, parts, bert_vocab]


def decode(data):
    """The text, and for each of its characters and its end the byte where it begins."""
    text, starts, at = "", [], 0
    while at < len(data):
        for size in range(1, 5):
            piece = data[at:at + size].decode("utf-8", errors="replace")
            # One character of UTF-8, or the longest part that Python replaces by one U+FFFD.
            try:
                data[at:at + size].decode("utf-8")
                break
            except UnicodeDecodeError as error:
                if error.reason != "unexpected end of data" or at + size >= len(data):
                    size = error.end - error.start
                    break
        starts.append(at)
        at += size
    text = data.decode("utf-8", errors="replace")
    assert len(text) == len(starts), data
    return text, starts + [len(data)]


def refused(call):
    try:
        call()
    except Exception as error:  # pylint: disable=broad-except  the package raises nothing narrower
        assert "Truncation error" in str(error), error
        return True
    return False


def expected(tok, strings):
    """One line for each record: what it is, and numbers (README.md)."""
    lines = []
    for i, (text, starts) in enumerate(strings):
        encoding = tok.encode(text)
        lines.append(" ".join(["e", *map(str, encoding.ids)]))
        if i % 6 == 0:
            places = [f"{starts[a]}-{starts[b]}" for a, b in encoding.offsets]
            lines.append(" ".join(["o", *places]))
        if i % 10 == 0:
            following = strings[(i + 1) % len(strings)][0]
            if refused(lambda: tok.encode(text, following)):
                lines.append("y")
                continue
            pair = tok.encode(text, following)
            lines.append(" ".join(["p", *map(str, pair.ids)]))
            lines.append(" ".join(["t", *map(str, pair.type_ids)]))
        if i % 10 == 1:
            following = strings[(i + 1) % len(strings)][0]
            if refused(lambda: tok.encode(text, following, add_special_tokens=False)):
                lines.append("x")
                continue
            plain = tok.encode(text, following, add_special_tokens=False)
            lines.append(" ".join(["n", *map(str, plain.ids)]))
            lines.append(" ".join(["t", *map(str, plain.type_ids)]))
    # Truncation by option, with the file's strategy and direction.
    own = tok.truncation or {}
    tok.enable_truncation(9, **{key: own[key] for key in ("strategy", "direction") if key in own})
    for i, (text, _) in enumerate(strings):
        if i % 10 == 2:
            lines.append(" ".join([f"m {i}", *map(str, tok.encode(text).ids)]))
            following = strings[(i + 1) % len(strings)][0]
            if not refused(lambda: tok.encode(text, following)):
                lines.append(" ".join([f"q {i}", *map(str, tok.encode(text, following).ids)]))
    return lines


def fnv(data, state=0xCBF29CE484222325):
    for byte in data:
        state = ((state ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return state


def code_points():
    """For each normalizer a hash of what it makes of every code point, between other characters."""
    kinds = {"NFC": normalizers.NFC(), "NFD": normalizers.NFD(), "NFKC": normalizers.NFKC(), "NFKD": normalizers.NFKD(),
             "Lowercase": normalizers.Lowercase(), "StripAccents": normalizers.StripAccents(), "Nmt": normalizers.Nmt(),
             "BertNormalizer": normalizers.BertNormalizer()}
    for name, kind in kinds.items():
        data = bytearray()
        for c in range(0x110000):
            if not 0xD800 <= c < 0xE000:
                data += kind.normalize_str("a" + chr(c) + "\u0301\u0323b").encode()
        yield f"{name} {len(data)} {fnv(data):016x}"


def main():
    strings = corpus.corpus()
    (OUT / "corpus.txt").write_text("".join(base64.b64encode(s).decode() + "\n" for s in strings))
    decoded = [decode(s) for s in strings]
    for maker in MAKERS:
        name = maker.__name__
        tok = maker()
        (OUT / name).mkdir(exist_ok=True)
        if name != "bert_vocab":
            text = tok.to_str()
            if name == "roberta":  # as older files write merges
                state = json.loads(text)
                state["model"]["merges"] = [" ".join(m) for m in state["model"]["merges"]]
                text = json.dumps(state, ensure_ascii=False)
            (OUT / name / "tokenizer.json").write_text(text, encoding="utf-8")
            tok = Tokenizer.from_str(text)
        lines = expected(tok, decoded)
        (OUT / name / "expected.txt").write_text("\n".join(lines) + "\n")
        print(name, tokenizers.__version__, tok.get_vocab_size(), (OUT / name / "expected.txt").stat().st_size)
    if "--code-points" in sys.argv:
        (OUT / "code_points.txt").write_text("\n".join(code_points()) + "\n")


if __name__ == "__main__":
    main()
