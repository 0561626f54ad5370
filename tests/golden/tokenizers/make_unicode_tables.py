"""Writes aqt/tokenizers/text/unicode_tables.cc: what the `tokenizers` package does with every code point.

Every property is asked of the installed package itself, one code point at a time, because its parts carry the tables of
different versions of Unicode. Only the classes of grapheme clusters cannot be asked; they are read from tables.rs of the
crate unicode-segmentation, and what can be observed of them is checked against the package.

    python make_unicode_tables.py .../unicode-segmentation/src/tables.rs > aqt/tokenizers/text/unicode_tables.cc
"""
import re
import sys
import unicodedata

import tokenizers
from tokenizers import Regex, normalizers, pre_tokenizers

LAST = 0x110000
CODES = [c for c in range(LAST) if not 0xD800 <= c < 0xE000]

# Bits of a code point, in the order of the enumeration in unicode.h.
FLAGS = ["removed", "punctuation", "nonspacing_mark", "combining_mark", "numeric", "word", "space",
         "regex_letter", "regex_number", "regex_space", "regex_digit", "regex_word", "regex_upper", "regex_lower",
         "regex_title", "regex_modifier", "regex_other_letter", "regex_mark", "regex_punctuation", "regex_symbol",
         "decomposes", "decomposes_compatibly", "nonstarter", "lowercases", "composes_with_previous",
         "indic_consonant", "indic_linker", "indic_extend"]
GRAPHEME_SHIFT = 28
GRAPHEME = ["GC_Any", "GC_CR", "GC_LF", "GC_Control", "GC_Extend", "GC_ZWJ", "GC_Prepend", "GC_SpacingMark",
            "GC_Extended_Pictographic", "GC_Regional_Indicator", "GC_L", "GC_V", "GC_T", "GC_LV", "GC_LVT"]


def flags_of_code_points():
    flags = [0] * LAST

    def mark(name, test):
        bit = 1 << FLAGS.index(name)
        for c in CODES:
            if test(chr(c)):
                flags[c] |= bit
        print(name, sum(1 for f in flags if f & bit), file=sys.stderr)

    clean = normalizers.BertNormalizer(clean_text=True, handle_chinese_chars=False, strip_accents=False, lowercase=False)
    mark("removed", lambda s: clean.normalize_str(s) == "")
    whitespace = pre_tokenizers.WhitespaceSplit()
    mark("space", lambda s: len(whitespace.pre_tokenize_str("a" + s + "a")) == 2)
    removed, space = 1 << FLAGS.index("removed"), 1 << FLAGS.index("space")
    for c in CODES:
        assert (clean.normalize_str(chr(c)) == " ") == (flags[c] & space != 0 and flags[c] & removed == 0), hex(c)
    bert = pre_tokenizers.BertPreTokenizer()
    punctuation = pre_tokenizers.Punctuation("removed")
    mark("punctuation", lambda s: not punctuation.pre_tokenize_str(s))
    bit = 1 << FLAGS.index("punctuation")
    for c in CODES:
        pieces = len(bert.pre_tokenize_str("a" + chr(c) + "a"))
        assert pieces == (2 if flags[c] & space else 3 if flags[c] & bit else 1), hex(c)
    strip = normalizers.BertNormalizer(clean_text=False, handle_chinese_chars=False, strip_accents=True, lowercase=False)
    mark("nonspacing_mark", lambda s: strip.normalize_str(s) == "")
    accents = normalizers.StripAccents()
    mark("combining_mark", lambda s: accents.normalize_str(s) == "")
    digits = pre_tokenizers.Digits(individual_digits=True)
    mark("numeric", lambda s: len(digits.pre_tokenize_str(s + s)) == 2)
    words = pre_tokenizers.Whitespace()
    mark("word", lambda s: words.pre_tokenize_str("a" + s)[0][0] == "a" + s)
    for name, regex in (("letter", r"\p{L}"), ("number", r"\p{N}"), ("space", r"\s"), ("digit", r"\d"), ("word", r"\w"),
                        ("upper", r"\p{Lu}"), ("lower", r"\p{Ll}"), ("title", r"\p{Lt}"), ("modifier", r"\p{Lm}"),
                        ("other_letter", r"\p{Lo}"), ("mark", r"\p{M}"), ("punctuation", r"\p{P}"),
                        ("symbol", r"\p{S}")):
        replace = normalizers.Replace(Regex(regex), "")
        mark("regex_" + name, lambda s, replace=replace: replace.normalize_str(s) == "")
    lower = normalizers.Lowercase()
    mark("lowercases", lambda s: lower.normalize_str(s) != s)
    return flags, mark


def lowercase():
    lower = normalizers.Lowercase()
    found = [(c, lower.normalize_str(chr(c))) for c in CODES]
    found = [(c, s) for c, s in found if s != chr(c)]
    assert [c for c, s in found if len(s) > 1] == [0x130] and lower.normalize_str("\u0130") == "i\u0307"
    return [(c, ord(s[0])) for c, s in found]


def hangul(c):
    return 0xAC00 <= c < 0xAC00 + 11172


def decompositions():
    nfd, nfkd = normalizers.NFD(), normalizers.NFKD()
    canonical, compatible = {}, {}
    for c in CODES:
        if hangul(c):
            assert nfd.normalize_str(chr(c)) == nfkd.normalize_str(chr(c)) == unicodedata.normalize("NFD", chr(c))
            continue
        d, k = nfd.normalize_str(chr(c)), nfkd.normalize_str(chr(c))
        if d != chr(c):
            canonical[c] = d
        if k != d:
            compatible[c] = k
    return canonical, compatible


def combining_classes():
    """By sorting: two marks change places if and only if the first has the higher class, and the second one is no starter."""
    nfd = normalizers.NFD()
    low, high = "\u0334", "\u0300"  # of the classes 1 and 230
    assert nfd.normalize_str(high + low) == low + high
    by_class = {1: low, 230: high}
    # Marks of each class that the package knows.
    for c in CODES:
        k, s = unicodedata.combining(chr(c)), chr(c)
        if k and nfd.normalize_str(s) == s and (nfd.normalize_str(high + s) != high + s or
                                                nfd.normalize_str(s + low) != s + low):
            by_class.setdefault(k, s)
    classes = sorted(by_class)
    found = {}
    for c in CODES:
        s = chr(c)
        if nfd.normalize_str(s) != s:
            continue
        above_one = nfd.normalize_str(s + low) == low + s
        below_230 = nfd.normalize_str(high + s) == s + high
        if not (above_one or below_230):
            continue
        # The class is the largest k such that a mark of class k may follow without sorting, and precede.
        match = [k for k in classes if nfd.normalize_str(s + by_class[k]) == s + by_class[k]
                 and nfd.normalize_str(by_class[k] + s) == by_class[k] + s]
        assert len(match) == 1, (hex(c), match)
        found[c] = match[0]
        if unicodedata.combining(s) not in (0, match[0]):
            raise AssertionError(hex(c))
    # Marks whose canonical decomposition is one other mark have that mark's class; they never meet the sorting.
    return found


def compositions(canonical):
    nfc = normalizers.NFC()
    pairs = []
    for c, d in canonical.items():
        if len(d) < 2 or nfc.normalize_str(d) != chr(c):
            continue
        first = nfc.normalize_str(d[:-1])
        assert len(first) == 1 and nfc.normalize_str(first + d[-1]) == chr(c), hex(c)
        pairs.append((ord(first), ord(d[-1]), c))
    return sorted(pairs)


def grapheme_classes(path):
    """The class of each code point, and the sets of code points that rule GB9c names."""
    classes = [0] * LAST
    consonants, linkers, extends = set(), set(), set()
    text = open(path, encoding="utf-8").read()
    pair = r"\('\\u\{([0-9a-f]+)\}',\s*'\\u\{([0-9a-f]+)\}'\)"
    for low, high in re.findall(pair, re.search(r"InCB_Extend_table[^;]*;", text).group(0)):
        extends.update(range(int(low, 16), int(high, 16) + 1))
    linker = re.search(r"fn is_incb_linker.*?\n}", text, re.DOTALL).group(0)
    linkers.update(int(code, 16) for code in re.findall(r"'\\u\{([0-9A-Fa-f]+)\}'", linker))
    assert len(linkers) > 15 and len(extends) > 1000
    text = text[text.index("pub mod grapheme"):]
    text = text[:text.index("pub mod word")]
    for low, high, name in re.findall(r"\('\\u\{([0-9a-f]+)\}',\s*'\\u\{([0-9a-f]+)\}',\s*(GC_\w+)\)", text):
        if name == "GC_InCB_Consonant":
            consonants.update(range(int(low, 16), int(high, 16) + 1))
            name = "GC_Any"
        for c in range(int(low, 16), int(high, 16) + 1):
            classes[c] = GRAPHEME.index(name)
    classes[0x0D], classes[0x0A] = GRAPHEME.index("GC_CR"), GRAPHEME.index("GC_LF")
    return classes, consonants, linkers, extends


def check_graphemes(classes):
    """Observed through a character map that turns "a" into "b": a cluster of fewer than six bytes becomes "b" as a whole."""
    import struct
    # A double-array trie with the single key "a": the root's children begin at 0x100.
    units = [0] * 512
    units[0] = 1 << 18  # offset 0x100
    node = 0x100 ^ ord("a")
    leaf = node ^ 0x40
    units[node] = (0x40 << 10) | (1 << 8) | ord("a")
    units[leaf] = (1 << 31) | 0
    blob = struct.pack("<I", len(units) * 4) + struct.pack("<512I", *units) + b"b\0"
    norm = normalizers.Precompiled(blob)
    assert norm.normalize_str("xay") == "xby"
    joins = {GRAPHEME.index(n) for n in ("GC_Extend", "GC_ZWJ", "GC_SpacingMark")}
    bad = [hex(c) for c in CODES if c and (norm.normalize_str("a" + chr(c)) == "b" ) != (classes[c] in joins) and c != 0x61]
    print("grapheme classes that differ:", bad, file=sys.stderr)
    assert not bad


def rows(values, form, per_row):
    values = list(values)
    for i in range(0, len(values), per_row):
        print("    " + ", ".join(form(v) for v in values[i:i + per_row]) + ",")


def table(kind, name, values, form=str, per_row=16):
    print(f"const {kind} {name}[] = {{")
    rows(values, form, per_row)
    print("};\n")


def main():
    flags, mark = flags_of_code_points()
    lower = lowercase()
    canonical, compatible = decompositions()
    classes = combining_classes()
    pairs = compositions(canonical)
    seconds = {b for _, b, _ in pairs} | set(range(0x1161, 0x1176)) | set(range(0x11A8, 0x11C3))
    mark("decomposes", lambda s: ord(s) in canonical or hangul(ord(s)))
    mark("decomposes_compatibly", lambda s: ord(s) in canonical or ord(s) in compatible or hangul(ord(s)))
    mark("nonstarter", lambda s: ord(s) in classes)
    mark("composes_with_previous", lambda s: ord(s) in seconds)
    graphemes, consonants, linkers, extends = grapheme_classes(sys.argv[1])
    mark("indic_consonant", lambda s: ord(s) in consonants)
    mark("indic_linker", lambda s: ord(s) in linkers)
    mark("indic_extend", lambda s: ord(s) in extends)
    check_graphemes(graphemes)
    flags = [f | g << GRAPHEME_SHIFT for f, g in zip(flags, graphemes)]

    pool, entries = [], ([], [])
    where = {}
    for which, mapping in enumerate((canonical, compatible)):
        for c, s in sorted(mapping.items()):
            if s not in where:
                where[s] = len(pool)
                pool.extend(ord(x) for x in s)
            entries[which].append((c, where[s], len(s)))
    assert len(pool) < 65536
    ranges = []
    for c, k in sorted(classes.items()):
        if ranges and ranges[-1][1] == c - 1 and ranges[-1][2] == k:
            ranges[-1][1] = c
        else:
            ranges.append([c, c, k])
    kinds = sorted(set(flags))
    assert len(kinds) <= 256, len(kinds)
    index = {f: i for i, f in enumerate(kinds)}
    blocks, cells, numbers = {}, [], []
    for b in range(0, LAST, 128):
        block = tuple(index[f] for f in flags[b:b + 128])
        if block not in blocks:
            blocks[block] = len(blocks)
            cells.extend(block)
        numbers.append(blocks[block])

    print("// Generated by tests/golden/tokenizers/make_unicode_tables.py from the Python package tokenizers "
          f"{tokenizers.__version__}.")
    print("// clang-format off\n#include \"aqt/tokenizers/text/unicode_tables.h\"\n\nnamespace aqt::tokenizers::unicode_tables {\n")
    h = lambda v: f"0x{v:x}"
    table("uint32_t", "kKinds", kinds, h, 12)
    table("uint16_t", "kBlocks", numbers, str, 30)
    table("uint8_t", "kCells", cells, str, 30)
    table("char32_t", "kPool", pool, h, 18)
    triple = lambda v: "{" + f"0x{v[0]:x}, {v[1]}, {v[2]}" + "}"
    table("Decomposition", "kCanonical", entries[0], triple, 6)
    print(f"const int kCanonicalSize = {len(entries[0])};\n")
    table("Decomposition", "kCompatible", entries[1], triple, 6)
    print(f"const int kCompatibleSize = {len(entries[1])};\n")
    table("CombiningClass", "kCombiningClasses", ranges, lambda v: "{" + f"0x{v[0]:x}, 0x{v[1]:x}, {v[2]}" + "}", 6)
    print(f"const int kCombiningClassesSize = {len(ranges)};\n")
    table("Composition", "kCompositions", pairs, lambda v: "{" + ", ".join(h(x) for x in v) + "}", 5)
    print(f"const int kCompositionsSize = {len(pairs)};\n")
    table("Lowercase", "kLowercase", lower, lambda v: "{" + ", ".join(h(x) for x in v) + "}", 8)
    print(f"const int kLowercaseSize = {len(lower)};\n")
    print("}  // namespace aqt::tokenizers::unicode_tables\n// clang-format on")


if __name__ == "__main__":
    main()
