"""The strings that the tokenizers are compared on, and the text that they are trained on. Deterministic."""
import random

# A sentence or two in each script.
SCRIPTS = {
    "latin": "All human beings are born free and equal in dignity and rights. They aren't alone; we'll see what it's worth. "
             "Zażółć gęślą jaźń. Příliš žluťoučký kůň úpěl ďábelské ódy. Falsches Üben von Xylophonmusik quält jeden größeren "
             "Zwerg. Voix ambiguë d'un cœur qui préfère les jattes de kiwis. El pingüino Wenceslao hizo kilómetros. "
             "Tiếng Việt có nhiều dấu thanh điệu. Fahiş bluğ çağına erişen İstanbul ılık. Sævör grét áðan því úlpan var ónýt.",
    "greek": "Όλοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι στην αξιοπρέπεια. Ξεσκεπάζω τὴν ψυχοφθόρα βδελυγμία ΟΔΥΣΣΕΥΣ.",
    "cyrillic": "Все люди рождаются свободными и равными в своём достоинстве и правах. Съешь ещё этих мягких французских булок. "
                "Всі люди народжуються вільними. Ћирилица љубав њега џак ѓ ќ ѕ.",
    "armenian": "Բոլոր մարդիկ ծնվում են ազատ ու հավասար իրենց արժանապատվությամբ։ և",
    "georgian": "ყველა ადამიანი იბადება თავისუფალი და თანასწორი თავისი ღირსებით. ᲧᲕᲔᲚᲐ",
    "hebrew": "כל בני האדם נולדו בני חורין ושווים בערכם ובזכויותיהם. בְּרֵאשִׁית בָּרָא אֱלֹהִים",
    "arabic": "يولد جميع الناس أحرارًا متساوين في الكرامة والحقوق. لا ﷺ ٱلرَّحْمَٰنِ تمام انسان آزاد به دنیا می‌آیند ۱۲۳ ٤٥٦",
    "syriac": "ܟܠ ܒܪܢܫܐ ܒܪܝܠܗ ܚܐܪܐ ܘܒܪܒܪ ܓܘ ܐܝܩܪܐ",
    "thaana": "ހުރިހާ އިންސާނުން ވެސް އުފަންވަނީ މިނިވަންކަމުގަ",
    "devanagari": "सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता और समानता प्राप्त है। क़ख़ग़ १२३",
    "bengali": "সমস্ত মানুষ স্বাধীনভাবে সমান মর্যাদা এবং অধিকার নিয়ে জন্মগ্রহণ করে। ড়ঢ়য় ৪৫৬",
    "gurmukhi": "ਸਾਰਾ ਮਨੁੱਖੀ ਪਰਿਵਾਰ ਆਪਣੀ ਮਹਿਮਾ ਸ਼ਾਨ ਅਤੇ ਹੱਕਾਂ ਦੇ ਪੱਖੋਂ ਜਨਮ ਤੋਂ ਹੀ ਆਜ਼ਾਦ ਹੈ।",
    "gujarati": "પ્રતિષ્ઠા અને અધિકારોની દૃષ્ટિએ સર્વ માનવો જન્મથી સ્વતંત્ર અને સમાન હોય છે.",
    "oriya": "ସବୁ ମନୁଷ୍ୟ ଜନ୍ମକାଳରୁ ସ୍ୱାଧୀନ ଏବଂ ମର୍ଯ୍ୟାଦା ଓ ଅଧିକାରରେ ସମାନ।",
    "tamil": "மனிதப் பிறிவியினர் சகலரும் சுதந்திரமாகவே பிறக்கின்றனர்; கொ கோ கௌ ௧௨௩",
    "telugu": "ప్రతిపత్తిస్వత్వముల విషయమున మానవులెల్లరును జన్మతః స్వతంత్రులును సమానులును నగుదురు.",
    "kannada": "ಎಲ್ಲಾ ಮಾನವರೂ ಸ್ವತಂತ್ರರಾಗಿಯೇ ಜನಿಸಿದ್ದಾರೆ. ಹಾಗೂ ಘನತೆ ಮತ್ತು ಹಕ್ಕುಗಳಲ್ಲಿ ಸಮಾನರಾಗಿದ್ದಾರೆ.",
    "malayalam": "മനുഷ്യരെല്ലാവരും തുല്യാവകാശങ്ങളോടും അന്തസ്സോടും സ്വാതന്ത്ര്യത്തോടുംകൂടി ജനിച്ചിട്ടുള്ളവരാണ്‌.",
    "sinhala": "සියලු මනුෂ්‍යයෝ නිදහස්ව උපත ලබා ඇත. ගරුත්වයෙන් හා අයිතිවාසිකම්වලින් සමාන වෙති.",
    "thai": "มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์และสิทธิ น้ำ กำ ๑๒๓",
    "lao": "ມະນຸດທຸກຄົນເກີດມາມີກຽດສັກສີ ສິດທິ ເສລີພາບ ແລະ ຄວາມສະເໝີພາບເທົ່າທຽມກັນ. ນ້ຳ",
    "tibetan": "འགྲོ་བ་མིའི་རིགས་རྒྱུད་ཡོངས་ལ་སྐྱེས་ཙམ་ཉིད་ནས་ཆེ་མཐོངས་དང༌། གྷ ཀྵ",
    "myanmar": "လူတိုင်းသည် တူညီ လွတ်လပ်သော ဂုဏ်သိက္ခာဖြင့် လည်းကောင်း၊ မွေးဖွားလာသူများ ဖြစ်သည်။",
    "khmer": "មនុស្សទាំងអស់កើតមកមានសេរីភាពនិងភាពស្មើៗគ្នា ក្នុងផ្នែកសេចក្ដីថ្លៃថ្នូរនិងសិទ្ធិ។",
    "ethiopic": "የሰው ልጅ ሁሉ ሲወለድ ነጻና በክብርና በመብትም እኩልነት ያለው ነው፡፡",
    "cherokee": "ᏂᎦᏓ ᎠᏂᏴᏫ ᏂᎨᎫᏓᎸᎾ ᎠᎴ ᎤᏂᏠᏱ ᎤᎾᏕᎿ ꮒꭶꮣ",
    "canadian": "ᐃᓄᓕᒫᑦ ᐊᓂᖅᑎᕆᔪᓕᒫᑦ ᐃᓅᓕᖅᑎᑕᐅᓯᒪᕗᑦ",
    "mongolian": "ᠬᠦᠮᠦᠨ ᠪᠦᠷ ᠲᠥᠷᠥᠵᠦ ᠮᠡᠨᠳᠡᠯᠡᠬᠦ ᠡᠷᠬᠡ ᠴᠢᠯᠥᠭᠡ",
    "han": "人人生而自由，在尊严和权利上一律平等。他们赋有理性和良心。人人生而自由﹐在尊嚴和權利上一律平等。豈更車𠀀𪜀",
    "japanese": "すべての人間は、生まれながらにして自由であり、かつ、尊厳と権利とについて平等である。コンピューター ﾊﾟｿｺﾝ ㌔ ㍿ が",
    "korean": "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다. 한국어 ㄱㄴㄷ",
    "bopomofo": "ㄖㄣˊ ㄖㄣˊ ㄕㄥ ㄦˊ ㄗˋ ㄧㄡˊ",
    "yi": "ꊿꂷꃅꄿꐨꐥ ꌅꅍꂘꌐꀕ",
    "runic": "ᚠᛇᚻ᛫ᛒᛦᚦ᛫ᚠᚱᚩᚠᚢᚱ᛫ᚠᛁᚱᚪ᛫ᚷᛖᚻᚹᛦᛚᚳᚢᛗ",
    "ogham": "᚛ᚉᚑᚅᚔᚉᚉᚔᚋ ᚔᚈᚔ ᚍᚂᚐᚅᚑ᚜",
    "gothic": "𐌼𐌰𐌲 𐌲𐌻𐌴𐍃 𐌹̈𐍄𐌰𐌽",
    "deseret": "𐐀𐑊 𐐸𐐷𐐭𐑋𐐲𐑌 𐐺𐐨𐐮𐑍𐑆",
    "adlam": "𞤋𞤲𞥆𞤢𞤥𞤢 𞤢𞥄𞤣𞤫𞥅𞤶𞤭 𞤬𞤮𞤬",
    "nko": "ߡߐ߱ ߓߍ߯ ߞߊ߲ߡߊߦߋ߲߫ ߤߐ߬ߙߐ߲߬",
    "math": "𝐀𝒷𝓒 𝟙𝟚𝟛 ∑∫√∞≠≤ ½ ² ₃ Ⅷ ① ℌ ℝ ﬁ ﬄ ﬆ Ａｂｃ１２３ ™ ℃ µ Å Ω",
}

EMOJI = ["😀", "👍🏽", "👨‍👩‍👧‍👦", "🏳️‍🌈", "🏴󠁧󠁢󠁥󠁮󠁧󠁿", "🇩🇪", "🇺🇸🇫🇷", "🇩", "1️⃣", "#️⃣", "❤️‍🔥", "☺️", "☺", "🧑🏿‍💻", "👁️‍🗨️",
         "©️", "©\u200d©", "™\u0301", "🫠", "🪿", "🫩", "⌚︎", "😀😀😀", "a😀b", "👩🏻‍❤️‍💋‍👨🏼"]
SPACES = [" ", "  ", "   ", "\t", "\n", "\r", "\r\n", "\n\n", " \n ", "\u00a0", "\u1680", "\u2000", "\u2003", "\u2009", "\u200a",
          "\u2028", "\u2029", "\u202f", "\u205f", "\u3000", "\u0085", "\x0b", "\x0c", "\x1c", "\x1f", "\u180e", "\u200b", "\ufeff",
          "      ", "\u2581", "\u2581\u2581"]
CONTROLS = ["\x00", "\x01", "\x07", "\x08", "\x1b[31m", "\x7f", "\x80", "\x8f", "\x9f", "\u00ad", "\u061c", "\u200c", "\u200d",
            "\u200e", "\u200f", "\u202a", "\u202e", "\u2060", "\u2066", "\u2069", "\ufffe", "\uffff", "\ufffd", "\ue000", "\U000f0000",
            "\U0010ffff", "\ufe0f", "\u034f", "\U000e0001", "\U000e0041", "\u0600", "\u06dd", "\u0378", "\U0003fffd"]
MARKS = ["\u0300", "\u0301", "\u0308", "\u0327", "\u0323", "\u0334", "\u0345", "\u0338", "\u05b0", "\u05bc", "\u064b", "\u0651", "\u093c",
         "\u094d", "\u0bbe", "\u0e38", "\u0eb8", "\u0f71", "\u0f72", "\u3099", "\u302a", "\u20d0", "\u20dd", "\ufe20", "\U0001d165",
         "\u0e33", "\u0483", "\u1dc0", "\u0903", "\u09be", "\u1160", "\u11a8", "\u1b35", "\ua67c", "\u0816", "\u08e4"]
PUNCTUATION = list("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~") + ["…", "—", "–", "’", "“", "”", "«", "»", "¿", "¡", "、", "。", "「", "」", "！",
                                                           "·", "•", "§", "€", "£", "©", "®", "°", "±", "×", "÷", "¶", "‽", "⁇", "‥", "〽"]
ADDED = ["[CLS]", "[SEP]", "[MASK]", "[UNK]", "[PAD]", "<s>", "</s>", "<mask>", "<unk>", "<pad>", "<|endoftext|>", "<|im_start|>",
         "<new>", "<NEW>", "<word>", "<left>", "<right>", "Ünïcode", "ünïcode", "|||IP|||", "[Mask]", "<left><right>", "wordpiece"]
WORDS = ["can't", "CAN'T", "it's", "IT'S", "we'll", "I'd", "y'all've", "'tis", "''s", "rock'n'roll", "'ſ", "x'ſ", "snake_case", "CamelCase",
         "e-mail@example.com", "https://example.com/a?b=c&d=%20#e", "3.14159", "1,234,567.89", "1234567890", "v2.0.1-rc1", "C++20", "naïve",
         "café", "cafe\u0301", "CAFÉ", "İstanbul", "ıstanbul", "straße", "STRASSE", "ẞ", "ΣΊΣΥΦΟΣ", "Ǆ ǅ ǆ", "ﬁnancial", "Ｆｕｌｌ", "ﷺ", "ﷲ",
         "a\u0300\u0316", "a\u0316\u0300", "q\u0307\u0323", "q\u0323\u0307", "Å", "A\u030a", "Å", "\u0344", "\u0958", "\u2126", "\ufb2c",
         "\u1100\u1161\u11a8", "\uac00\u11a8", "\uac01\u11a8", "한글", "\u1112\u1161\u11ab", "각", "\u0f73", "\u0f71\u0f80", "\U0001d15e", "\U0002f800",
         "for (int i = 0; i < n; ++i) {\n    x[i] += 1;\n}", "def f(x):\n\treturn x ** 2\n\n\n", "<a href=\"x\">y</a>", "\\u0041", "100%", "$5",
         "O'Neill", "l'été", "aujourd’hui", "don’t", "㈱", "①②③", "½", "x²", "H₂O", "Ⅳ", "ℵ₀", "№5", "ǆ", "ĳ", "ŉ", "ſ", "Ꭰꭰ", "Ა ა",
         "\u0915\u094d\u0958\u0301", "\u0915\u0958\u0301", "\u0915\u093c\u094d\u0301\u0958\u0301"]

INVALID = [b"\xff", b"\xfe\xff", b"\x80", b"abc\x80def", b"\xc3", b"\xc3(", b"\xe2\x82", b"\xe2\x28\xa1", b"\xe2\x82\x28", b"\xf0\x9f\x98",
           b"\xf0\x28\x8c\xbc", b"\xc0\xaf", b"\xc1\xbf", b"\xe0\x80\xaf", b"\xe0\x9f\xbf", b"\xed\xa0\x80", b"\xed\xbf\xbf", b"\xed\xa0\xbd\xed\xb8\x80",
           b"\xf4\x90\x80\x80", b"\xf5\x80\x80\x80", b"\xf8\x88\x80\x80\x80", b"\xf0\x80\x80\x80", b"caf\xe9 au lait", b"\xa4\xa2\xa4\xa4",
           b"ok \xe4\xbd ok", b"\xf0\x9f\x98\x80\xf0\x9f", b"\x00\xff\x00", b"[MASK]\xff[SEP]", b"a\xcc b\xcc\x81\xcc", b"\xef\xbf\xbd\xff"]


def training_text():
    lines = []
    for text in SCRIPTS.values():
        for _ in range(3):
            lines.append(text)
        lines.extend(text.split())
    lines.extend(w for w in WORDS for _ in range(2))
    return lines


def corpus():
    """About 2,000 byte strings."""
    rng = random.Random(20)
    out = [b"", b" ", b"a", b"hello world", b"  leading and trailing  "]
    words = {name: text.split() for name, text in SCRIPTS.items()}
    every = [w for ws in words.values() for w in ws] + WORDS

    def some(items, low, high):
        return [rng.choice(items) for _ in range(rng.randint(low, high))]

    for name, own in words.items():
        out.append(SCRIPTS[name].encode()[:400].decode(errors="ignore").encode())
        for k in range(20):
            parts = some(own, 1, 5)
            for _ in range(rng.randint(0, 3)):
                parts.insert(rng.randint(0, len(parts)), rng.choice(rng.choice([PUNCTUATION, MARKS, EMOJI, WORDS, SPACES, every])))
            out.append(rng.choice([" ", " ", " ", "", "  ", rng.choice(SPACES)]).join(parts).encode())
    for group in (EMOJI, SPACES, CONTROLS, MARKS, PUNCTUATION, ADDED, WORDS):
        for item in group:
            out.append(item.encode())
            out.append(rng.choice([f"a{item}b", f"a {item} b", f"{item}{item}", f"x{item}", f"{item}x"]).encode())
    for _ in range(150):  # added tokens in text
        parts = []
        for _ in range(rng.randint(1, 5)):
            parts.append(rng.choice(rng.choice([ADDED, ADDED, every, SPACES, PUNCTUATION])))
        out.append(rng.choice(["", "", " "]).join(parts).encode())
    for _ in range(120):  # marks on letters, in any order
        base = rng.choice("aeiouAEKqß한가개아ΣωЙиक") + "".join(some(MARKS, 1, 4))
        out.append((base + rng.choice(["", " ", "x", rng.choice(MARKS)])).encode())
    for _ in range(120):  # any code points
        codes = []
        while len(codes) < rng.randint(1, 12):
            c = rng.choice([rng.randrange(0x80, 0x3000), rng.randrange(0x3000, 0x10000), rng.randrange(0x10000, 0x20000),
                            rng.randrange(0x10000, 0x110000), rng.randrange(0x20, 0x7F)])
            if not 0xD800 <= c < 0xE000:
                codes.append(chr(c))
        out.append("".join(codes).encode())
    for size in (99, 100, 101, 300):  # long words
        out.append(("a" * size).encode())
        out.append(("é" * size).encode())
        out.append(("漢" * size).encode())
        out.append("".join(some("abcdefgh", size, size)).encode())
    out.append(("word " * 60).encode())
    out.append((" " * 120).encode())
    for _ in range(100):  # mixtures of everything
        parts = some(every + EMOJI + PUNCTUATION + CONTROLS + SPACES, 2, 9)
        out.append(rng.choice(["", " ", " "]).join(parts).encode())
    for item in INVALID:
        out.append(item)
        out.append(b"x " + item + b" " + rng.choice(every).encode())
    for _ in range(60):  # damaged strings
        text = bytearray(rng.choice(out))
        for _ in range(rng.randint(1, 3)):
            if text:
                text[rng.randrange(len(text))] = rng.randrange(256)
        out.append(bytes(text[:120]))
    return out
