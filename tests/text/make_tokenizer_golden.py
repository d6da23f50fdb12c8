#!/usr/bin/env python3
"""Writes tests/text/data/: small BPE tokenizers and what Hugging Face tokenizers makes of texts with them.

Needs the Python package tokenizers; run it by hand, the tests read only its output.

    make_tokenizer_golden.py                          rewrite tokenizer_hashes.txt
    make_tokenizer_golden.py --train                  train new tokenizers and rewrite all data files
    make_tokenizer_golden.py --hashes SEED COUNT [X]  print COUNT hashes for every tokenizer, or for the file X, for a
                                                      longer comparison: test_tokenizer_hashes reads them from the file
                                                      that MK_TOKENIZER_HASHES names
"""
import argparse
import json
import pathlib
import random
import sys

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

DATA = pathlib.Path(__file__).resolve().parent / "data"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace("{1,3}", "")
CORPUS = """The quick mouse didn't see that the cat was waiting; they're both hungry, and we'll feed them at 12:30.
A kernel reads its instructions from memory. Every instruction waits for its edges, computes, and signals.
for (int i = 0; i < 1024; i++) { sum += a[i] * b[i]; }    // the inner loop
Die Straße ist lang, und die Bäume blühen im März. Où est la bibliothèque? El niño comió mañana.
Привет, как дела сегодня? Мы идём домой. Γειά σου κόσμε. こんにちは世界、今日は良い天気です。 你好,世界!
한국어 문장도 있습니다. שלום עולם. مرحبا بالعالم. नमस्ते दुनिया। 😀😃 👩‍👩‍👧 ½ ² Ⅷ ١٢٣
I've said: "It's 3.14159, isn't it?" -- she'd answered, 'no'.\r\n\r\n\tIndented\n\n\n  and more   spaces
"""


def fields(content, token_id, **flags):
    entry = {"id": token_id, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False, "special": True}
    entry.update(flags)
    return entry


def byte_level(use_regex):
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def split(pattern):
    return {"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}, byte_level(False)]}


def document(vocab, merges, pre_tokenizer, added=(), post=None, ignore_merges=False):
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": list(added), "normalizer": None,
            "pre_tokenizer": pre_tokenizer, "post_processor": post, "decoder": byte_level(True),
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                      "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                      "ignore_merges": ignore_merges, "vocab": vocab, "merges": merges}}


def train(size, pattern):
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"),
                                               pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator([CORPUS], trainers.BpeTrainer(
        vocab_size=size, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    model = json.loads(t.to_str())["model"]
    return dict(sorted(model["vocab"].items(), key=lambda item: item[1])), model["merges"]


def template(bos, eos=None):
    single = [{"SpecialToken": {"id": bos[0], "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    special = {bos[0]: {"id": bos[0], "ids": [bos[1]], "tokens": [bos[0]]}}
    if eos:
        single.append({"SpecialToken": {"id": eos[0], "type_id": 0}})
        special[eos[0]] = {"id": eos[0], "ids": [eos[1]], "tokens": [eos[0]]}
    pair = single + [{"Sequence": {"id": "B", "type_id": 1}}]
    return {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": special}


def tokenizers():
    out = {}
    vocab, merges = train(640, LLAMA3)
    for piece in ("Ġunreachable", "ĠĠĠĠĠĠĠĠĠ", "qzx", "Ã©ÃłÃ¼"):  # no merge leads here: ignore_merges does
        vocab[piece] = len(vocab)
    n = len(vocab)
    added = [fields("<|begin_of_text|>", n), fields("<|end_of_text|>", n + 1), fields("<|eot_id|>", n + 2),
             fields("<left>", n + 3, lstrip=True), fields("<right>", n + 4, rstrip=True),
             fields("<both>", n + 5, lstrip=True, rstrip=True),
             fields("zebra", n + 6, special=False, normalized=True), fields("zeb<|eot_id|>", n + 7, special=False),
             fields("<|eot", n + 8, special=False), fields("éß", n + 9, special=False),
             fields("日本", n + 10, special=False, normalized=True), fields("er", vocab["er"], special=False, normalized=True),
             fields("  tab", n + 11, special=False, rstrip=True)]
    post = {"type": "Sequence", "processors": [byte_level(True), template(("<|begin_of_text|>", n))]}
    out["llama3"] = document(vocab, merges, split(LLAMA3), added, post, True)
    vocab, merges = train(560, LLAMA3)
    n = len(vocab)
    out["gpt2"] = document(vocab, [" ".join(m) for m in merges], byte_level(True), [fields("<|endoftext|>", n)],
                           template(("<|endoftext|>", n), ("<|endoftext|>", n)))
    out["qwen2"] = document({k: v for k, v in vocab.items()}, merges, split(QWEN2), [fields("<|endoftext|>", n)])
    out["qwen2"]["model"]["ignore_merges"] = False
    # Merges of every byte with 'a', '1', '!' and a space: where the split pattern cuts shows in the ids.
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {c: i for i, c in enumerate(alphabet)}
    merges = []
    for c in "a1!Ġ":
        for x in alphabet:
            for pair in ([c, x], [x, c]):
                if "".join(pair) not in vocab:
                    vocab["".join(pair)] = len(vocab)
                    merges.append(pair)
    out["classes"] = document(vocab, [" ".join(m) for m in merges], split(LLAMA3))
    return out


def class_blocks():
    """Every code point that Unicode is likely to fill, in blocks of 1024."""
    for first in list(range(0, 0x40000, 1024)) + list(range(0xE0000, 0xE1000, 1024)):
        if not 0xD800 <= first < 0xE000:
            yield first, "\n".join(f"a{chr(c)}a 1{chr(c)}1 !{chr(c)}! {chr(c)}{chr(c)} a" for c in range(first, first + 1024))


def fnv(ids):
    value = 0xCBF29CE484222325
    for token in ids:
        for byte in token.to_bytes(4, "little"):
            value = (value ^ byte) * 0x100000001B3 % (1 << 64)
    return value


POOLS = ["abcdefghijklmnopqrstuvwxyz", "ABCTHE'sStT're'VE'll'Dd", " \t\n\r\x0b\x0c\u00a0\u2003\u3000\u0085\u180e\u200b\u2028",
         "0123456789٣४Ⅷ½²", "!?.,;:-_()[]{}<>|/\\\"'`~@#$%^&*+=", "äöüßéèñÅçÀłŁ", "приветΓειάשלוםمرحبا", "世界日本語中文한국어こんにちは",
         "😀😃👩\u200d👧🏽\u0301\u0300\u20e3ſKŉﬀİı", "\x00\x01\x1f\x7f\xad\ufeff\ufffd\ufffe\U0010ffff\U000e0001"]
PARTS = ["the", " the", "zebra", "zeb<|eot_id|>", "<|eot_id|>", "<|eot", "<|begin_of_text|>", "<left>", "<right>", "<both>",
         " <both> ", "  tab", "<|endoftext|>", "éß", "日本", " unreachable", "qzx", "éàü", "         ", "\r\n", "\n\n", "'s",
         "'RE", "don't", "1234567", " 12", "instruction", "memory", "waiting ", "Straße", "世界", "\u2003", "'ſ"]


def random_text(rng):
    parts = []
    for _ in range(rng.randint(0, 9)):
        kind = rng.random()
        if kind < 0.35:
            parts.append(rng.choice(PARTS))
        elif kind < 0.85:
            pool = rng.choice(POOLS)
            parts.append("".join(rng.choice(pool) for _ in range(rng.randint(1, 8))))
        else:
            c = rng.choice([rng.randrange(0x250), rng.randrange(0xD800), rng.randrange(0xE000, 0x20000)])
            parts.append(chr(c) * rng.randint(1, 3))
    raw = "".join(parts).encode("utf-8")
    if rng.random() < 0.15 and raw:  # damage it: cut, or put a stray byte in
        at = rng.randrange(len(raw))
        raw = raw[:at] + (b"" if rng.random() < 0.5 else bytes([rng.randrange(256)])) + raw[at + 1:]
    return raw


FIXED = [b"", b" ", b"  ", b"\n", b"Hello world", b"hello  world \n\n  x", "I'M we'LL'D don'ſ".encode(), b"a" * 300, b" " * 257,
         b"\r\n" * 40, b"1" * 31, bytes(range(256)), bytes(reversed(range(256))), b"\xed\xa0\x80\xed\xb0\x80 lone", b"\xf0\x9f\x98",
         b"\xc0\x80\xe0\x80\x80\xf8\x88\x80\x80\x80", b"ab" * 90, CORPUS.encode(), b"   <both>   <left>   <right>   <both>",
         b"<|begin_of_text|>x<|eot_id|><|eot_id<|eot", b"zebrazeb<|eot_id|>zebra the other"]


def case(name, tok, raw):
    ids = tok.encode(raw.decode("utf-8", errors="replace"), add_special_tokens=True).ids
    text = tok.decode(ids, skip_special_tokens=True).encode("utf-8")
    return f"E {name} {raw.hex() or '-'} {','.join(map(str, ids)) or '-'} {text.hex() or '-'}"


def decode_case(name, tok, rng):
    ids = [rng.randrange(tok.get_vocab_size() + 2) for _ in range(rng.randint(1, 24))]
    if rng.random() < 0.5:  # mostly single bytes: many ill-formed and split characters
        ids = [rng.randrange(256) for _ in ids]
    text = tok.decode(ids, skip_special_tokens=True).encode("utf-8")
    return f"D {name} {','.join(map(str, ids))} {text.hex() or '-'}"


def cases(toks, seed, count):
    rng = random.Random(seed)
    for name in ("llama3", "gpt2", "qwen2"):
        for raw in FIXED:
            yield case(name, toks[name], raw)
    for i in range(count):
        name = ("llama3", "llama3", "gpt2", "qwen2")[i % 4]
        yield case(name, toks[name], random_text(rng)) if i % 5 else decode_case(name, toks[name], rng)


# The form that Llama 2 and Mistral use: characters, <0xNN> for those that are missing, and a mark for the space.

MARK = "\u2581"
PREPEND = {"type": "Prepend", "prepend": MARK}
SPACES = {"type": "Replace", "pattern": {"String": " "}, "content": MARK}


def sequence(member, *steps):
    return {"type": "Sequence", member: list(steps)}


def metaspace(scheme, cut, mark=MARK):
    return {"type": "Metaspace", "replacement": mark, "prepend_scheme": scheme, "split": cut}


def fallback_decoder(*steps):
    return sequence("decoders", {"type": "Replace", "pattern": {"String": MARK}, "content": " "}, {"type": "ByteFallback"},
                    {"type": "Fuse"}, *steps)


def strip(start):
    return {"type": "Strip", "content": " ", "start": start, "stop": 0}


def train_characters(size):
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.Metaspace()
    docs = "\n".join(p.read_text() for p in sorted(DATA.parents[2].glob("docs/*.md")))
    t.train_from_iterator(CORPUS.split("\n") * 4 + docs.split("\n"), trainers.BpeTrainer(
        vocab_size=size, show_progress=False, limit_alphabet=180))
    model = json.loads(t.to_str())["model"]
    vocab = {piece: i for i, piece in enumerate(["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)])}
    for piece in sorted(model["vocab"], key=model["vocab"].get):
        vocab[piece] = len(vocab)
    # What a trainer that stops at words cannot find: runs of spaces, merges over words, and of bytes.
    merges = [[MARK * n, MARK * n] for n in (1, 2, 4, 8)] + model["merges"] + [
        ["e", MARK], ["s", MARK], ["s" + MARK, "t"], ["\n", "\n"], ["<0xF0>", "<0x9F>"], ["<0xE4>", "<0xB8>"]]
    for pair in merges:
        for piece in pair + ["".join(pair)]:
            vocab.setdefault(piece, len(vocab))
    return vocab, merges


def bytes_document():
    vocab, merges = train_characters(1500)
    d = document(vocab, [" ".join(m) for m in merges], None, [fields(t, i) for i, t in enumerate(["<unk>", "<s>", "</s>"])],
                 template(("<s>", 1)))
    d["normalizer"] = sequence("normalizers", PREPEND, SPACES)
    d["decoder"] = fallback_decoder(strip(1))
    d["model"].update(unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    return d


def variants(n):
    """What differs from tokenizer_bytes.json, whose first unused id is n; members of "model" are taken one by one."""
    own = [fields(t, i) for i, t in enumerate(["<unk>", "<s>", "</s>"])]
    flags = own + [
        fields("<left>", n, lstrip=True), fields("<right>", n + 1, rstrip=True), fields("<both>", n + 2, lstrip=True, rstrip=True),
        fields("zebra", n + 3, special=False, normalized=True), fields("two words", n + 4, special=False, normalized=True),
        fields("cat", n + 5, special=False, single_word=True), fields("<one>", n + 6, single_word=True, lstrip=True, rstrip=True),
        fields("dog", n + 7, special=False, single_word=True, normalized=True), fields("hid", n + 8, normalized=True),
        fields("<0x41>", 3 + 0x41, special=False), fields(MARK + "sea", n + 9, special=False),
        fields("\u00e9\u00df", n + 10, special=False, single_word=True, normalized=True, rstrip=True)]
    m = {"normalizer": None}
    return {
        "llama2": {},
        "llama2_flags": {"added_tokens": flags},
        "llama2_ignore": {"model": {"ignore_merges": True}},
        "mistral": {**m, "pre_tokenizer": metaspace("first", False)},
        "mistral_flags": {**m, "pre_tokenizer": metaspace("first", False), "added_tokens": flags},
        "words": {**m, "pre_tokenizer": metaspace("always", True), "decoder": metaspace("always", True), "added_tokens": flags},
        "never": {**m, "pre_tokenizer": metaspace("never", True), "decoder": fallback_decoder()},
        "first": {**m, "pre_tokenizer": metaspace("first", True),
                  "decoder": sequence("decoders", {"type": "ByteFallback"}, metaspace("first", True)), "added_tokens": flags},
        "unknown": {"model": {"byte_fallback": False}, "decoder": fallback_decoder(strip(3))},
        "unknowns": {"model": {"byte_fallback": False, "fuse_unk": False}, "decoder": sequence(
            "decoders", strip(2), {"type": "Replace", "pattern": {"String": "th"}, "content": "<th>"}, {"type": "ByteFallback"},
            {"type": "Replace", "pattern": {"String": MARK}, "content": "_"}, strip(1))},
        "nothing": {"model": {"byte_fallback": False, "unk_token": None}, "pre_tokenizer": metaspace("never", False, "e")},
        "replaced": {"normalizer": sequence("normalizers", {"type": "Replace", "pattern": {"String": "ab"}, "content": "b"}, SPACES,
                                            {"type": "Replace", "pattern": {"String": MARK + MARK}, "content": "\u00e9x"}),
                     "post_processor": template(("<s>", 1), ("</s>", 2)), "added_tokens": flags},
    }


# What the families have around byte-level BPE, and the steps by themselves. Patterns are given as in the files of the
# family.

LETTERS = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]%s[\p{Ll}\p{Lm}\p{Lo}\p{M}]%s"
ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
SPACES_LAST = r"\s*[\r\n]+|\s+(?!\S)|\s+"
TEKKEN = LETTERS % ("*", "+") + "|" + LETTERS % ("+", "*") + r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + SPACES_LAST
O200K = (LETTERS % ("*", "+") + ENDINGS + "|" + LETTERS % ("+", "*") + ENDINGS
         + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + SPACES_LAST)
CL100K = (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]"
          r"|\s+(?!\S)|\s+")
DEEPSEEK3 = (r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
             r"|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK2 = [r"[\r\n]", r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏]+",
             r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$", r"[一-龥ࠀ-一가-퟿]+"]


def split_step(pattern, behavior="Isolated", invert=False, kind="Regex"):
    return {"type": "Split", "pattern": {kind: pattern}, "behavior": behavior, "invert": invert}


def digits(individual):
    return {"type": "Digits", "individual_digits": individual}


def pre(*steps):
    return sequence("pretokenizers", *steps)


def normalizer(kind, **members):
    return {"type": kind, **members}


def forms():
    """What differs from tokenizer_whole.json, or from the file of "base"."""
    last = byte_level(False)
    prefixed = {**byte_level(True), "add_prefix_space": True}
    out = {
        "qwen3": {"normalizer": normalizer("NFC"), "pre_tokenizer": split(QWEN2)},
        "tekken": {"pre_tokenizer": split(TEKKEN)},
        "o200k": {"pre_tokenizer": split(O200K)},
        "cl100k": {"pre_tokenizer": split(CL100K)},
        "smollm": {"pre_tokenizer": pre(digits(True), byte_level(True))},
        "granite": {"pre_tokenizer": pre(digits(False), byte_level(True))},
        "deepseek3": {"pre_tokenizer": pre(split_step(r"\p{N}{1,3}"), split_step("[一-龥぀-ゟ゠-ヿ]+"), split_step(DEEPSEEK3), last)},
        "deepseek2": {"pre_tokenizer": pre(*[split_step(p) for p in DEEPSEEK2], digits(True), last)},
        "falcon": {"pre_tokenizer": pre({"type": "Punctuation", "behavior": "Contiguous"}, byte_level(True), digits(False),
                                        split_step("[0-9][0-9][0-9]"))},
        "gemma": {"base": "bytes", "normalizer": SPACES, "pre_tokenizer": split_step(" ", "MergedWithPrevious", kind="String"),
                  "decoder": fallback_decoder()},
        "phi3": {"base": "bytes", "added_tokens": [fields("<unk>", 0), fields("<s>", 1), fields("</s>", 2, rstrip=True)]},
        "prefixed": {"pre_tokenizer": prefixed},
        "raw": {"pre_tokenizer": last},
        "twice": {"pre_tokenizer": pre(prefixed, digits(True), pre(prefixed))},
        "punctuation": {"pre_tokenizer": pre({"type": "Punctuation"}, last)},
        "whitespace": {"pre_tokenizer": pre({"type": "Whitespace"}, last)},
        "whitespace_split": {"pre_tokenizer": pre({"type": "WhitespaceSplit"}, prefixed)},
        "metaspace_words": {"base": "bytes", "normalizer": None, "pre_tokenizer": pre(
            {"type": "WhitespaceSplit"}, metaspace("always", True), digits(False)), "decoder": metaspace("always", True)},
        "metaspace_first": {"base": "bytes", "normalizer": None, "pre_tokenizer": pre(
            split_step("[a-z]+ ", "MergedWithPrevious"), metaspace("first", False)), "decoder": fallback_decoder()},
        "nfd": {"normalizer": normalizer("NFD"), "pre_tokenizer": byte_level(True)},
        "nfkc": {"normalizer": sequence("normalizers", normalizer("NFKC"), normalizer("Lowercase")), "pre_tokenizer": byte_level(True)},
        "nfkd": {"normalizer": sequence("normalizers", normalizer("Strip", strip_left=True, strip_right=True), normalizer("NFKD"),
                                        normalizer("Replace", pattern={"Regex": r"\s+|\p{M}"}, content="_")),
                 "pre_tokenizer": byte_level(True)},
        "trimmed": {"normalizer": normalizer("Strip", strip_left=False, strip_right=True), "pre_tokenizer": last},
    }
    patterns = {
        "lines": r"^[a-z]+|[A-Za-z0-9]+$|.", "lookbehind": r"(?<=[a-z])[A-Z]|(?<!\d)1", "lazy": r"\w+?s|\w{2,4}?|\W{,2}",
        "again": r"\p{N}{1,3}+|a{2}", "atomic": r"(?>a+)b|(a|ab)(c|b)*+|\S", "places": r"(?=\p{Lu})|(?=(\d{3})+(?!\d))",
        "scripts": r"[\p{Han}\p{Hiragana}\p{Katakana}]+|\p{Hangul}+|\p{Latin}+|\p{Cyrillic}+|\p{Arabic}+|[\p{Greek}\p{Hebrew}\p{Thai}]",
        "categories": r"\p{Sc}+|\p{Sm}+|[\p{Sk}\p{So}]+|\p{Pd}|\p{Ps}|\p{Pe}|[\p{Po}\p{Pc}]+|\p{Nl}|\p{No}|\p{Mc}|\p{Me}|\p{Z}+",
        "others": r"\P{L}+|\p{^N}{3}|[\S]", "words": r"\w+", "not_words": r"\W", "digits": r"\d", "not_digits": r"\D+",
        "caseless": r"(?i)[a-m]+|th[eo]|'s|z{0}k", "escapes": r"\x61+|\x{4e16}|\u00e9\t?|[\x{400}-\x{4ff}\-.]+|\.\*",
    }
    patterns["caseless"] = r"(?i)[a-m]+|th[eo]|'s|k"
    for name, pattern in patterns.items():
        out["pattern_" + name] = {"pre_tokenizer": pre(split_step(pattern), last)}
    for behavior in ("Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous", "Isolated"):
        for invert in (False, True):
            out[f"{behavior}_{invert}"] = {"pre_tokenizer": pre(split_step(r"\s|[aeiou]|\d\d", behavior, invert), last)}
    out.update(whole_families())
    return out


def more_added(base, *tokens):
    """The added tokens of a stored file, and more: each a text, or a text and its flags."""
    document = read(f"tokenizer_{base}.json")
    vocab, added = document["model"]["vocab"], document["added_tokens"]
    following = max([len(vocab)] + [a["id"] + 1 for a in added])
    for text, flags in [(t, {}) if isinstance(t, str) else t for t in tokens]:
        added.append(fields(text, vocab.get(text, following), **flags))
        following += text not in vocab
    return added


def whole_families():
    """With added tokens as the families have them: runs of white space, marks that take it, names that are shown."""
    last, shown, taking = byte_level(False), {"special": False}, {"rstrip": True}
    runs = [(c * n, shown) for c, most in (("\n", 6), ("\t", 4), (MARK, 5)) for n in range(2 if c == MARK else 1, most)]
    return {
        "gemma3": {
            "base": "bytes",
            "normalizer": SPACES,
            "pre_tokenizer": split_step(" ", "MergedWithPrevious", kind="String"),
            "decoder": fallback_decoder(),
            "added_tokens": more_added("bytes", *runs, "<left>", ("<both>", shown), ("<one>", shown)),
        },
        "phi3_marks": {
            "base": "bytes",
            "added_tokens": more_added(
                "bytes",
                ("<left>", taking),
                ("<right>", {**taking, **shown}),
                ("<both>", taking),
                "<|endoftext|>",
                ("<|eot_id|>", taking),
            ),
        },
        "phi4_mini": {
            "pre_tokenizer": pre(split_step(O200K, "Removed", True), last),
            "added_tokens": more_added("whole", "<|endoftext|>", ("<left>", {**taking, **shown}), ("<both>", taking)),
        },
        "olmo2": {
            "pre_tokenizer": pre(split_step(LLAMA3, "Removed", True), last),
            "post_processor": None,
            "added_tokens": more_added("whole", "<|endoftext|>", ("<|eot", shown), ("<left>", shown)),
        },
        "granite3": {
            "pre_tokenizer": pre(digits(True), byte_level(True)),
            "post_processor": byte_level(True),
            "added_tokens": more_added("whole", "<|endoftext|>", "<left>", "<right>"),
        },
        "qwen3_marks": {
            "normalizer": normalizer("NFC"),
            "pre_tokenizer": split(QWEN2),
            "post_processor": byte_level(False),
            "added_tokens": more_added(
                "whole", "<|endoftext|>", "<|begin_of_text|>", ("<left>", shown), ("<right>", shown)
            ),
        },
        "ministral": {
            "pre_tokenizer": split(TEKKEN),
            "model": {"ignore_merges": True},
            "added_tokens": more_added("whole", "<left>", "<|eot_id|>"),
        },
        "smollm3": {
            "pre_tokenizer": split(LLAMA3),
            "model": {"ignore_merges": True},
            "added_tokens": more_added(
                "whole", "<|begin_of_text|>", "<|eot_id|>", ("<left>", shown), ("<right>", shown)
            ),
        },
    }


def whole_document():
    """A vocabulary whose merges heed no word, so that every cut shows in the ids."""
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    t.train_from_iterator([CORPUS], trainers.BpeTrainer(
        vocab_size=900, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    model = json.loads(t.to_str())["model"]
    vocab, merges = dict(sorted(model["vocab"].items(), key=lambda item: item[1])), [list(m) for m in model["merges"]]
    for c in "a1!Ġ":
        for x in sorted(pre_tokenizers.ByteLevel.alphabet()):
            for pair in ([c, x], [x, c]):
                if "".join(pair) not in vocab:
                    vocab["".join(pair)] = len(vocab)
                    merges.append(pair)
    n = len(vocab)
    return document(vocab, merges, byte_level(False), [fields("<s>", n), fields("Zebra", n + 1, special=False, normalized=True)],
                    template(("<s>", n)))


def compose(base, variant):
    d = {**base, **{k: v for k, v in variant.items() if k != "base"}}
    d["model"] = {**base["model"], **variant.get("model", {})}
    return d


# Texts that this script and the test make alike, so that only a hash of what becomes of each is kept.

GROUPS = {
    "pools": [sorted(set(pool)) for pool in POOLS + ["\u2581 \u2581_", "catdogzebr ", "<0xE4>"]],
    "parts": PARTS + ["cat", " cat ", "dog", "dog.", "\u0301", "two words", "two", " words", "<one>", " <one> ", "hid", "<0x41>", "<0xE4>",
                      "\u2581sea", "sea", "<s>", "</s>", "<unk>", "\u2581", "\u2581\u2581", "ab", "e s t", "\ud55c\uae00", "\U0001f600"],
    "runs": [" ", "\n", "\t", "a", "1", "\u2581", "\u00e9", "\u4e16", "e ", "\x00"],
}
POINTS = [c for c in range(0x32400) if not 0xD800 <= c < 0xE000] + list(range(0xE0000, 0xE0200))
WINDOWS = len(POINTS) // 64
COUNTS = {"llama3": 8000, "gpt2": 4000, "qwen2": 4000, "llama2": 6000, "llama2_flags": 2500, "mistral": 6000, **dict.fromkeys(
    ["tekken", "smollm", "punctuation", "whitespace", "nfkc", "nfkd", "pattern_categories", "pattern_scripts"], 3500)}
OTHERS = 1200  # for each further variant, without the windows: FIRST_OTHER on
FORMS = 600  # likewise
FIRST_OTHER = WINDOWS


class Source:
    """SplitMix64."""

    def __init__(self, seed):
        self.state = seed

    def below(self, n):
        self.state = (self.state + 0x9E3779B97F4A7C15) % (1 << 64)
        z = self.state
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % (1 << 64)
        z = (z ^ z >> 27) * 0x94D049BB133111EB % (1 << 64)
        return ((z ^ z >> 31) >> 32) * n >> 32


def window(index):
    points = POINTS[64 * index:64 * index + 64]
    return "".join((" " if i % 8 == 0 else "") + chr(c) for i, c in enumerate(points)).encode()


def made_text(source):
    parts = []
    for _ in range(source.below(10)):
        kind = source.below(100)
        if kind < 35:
            parts.append(GROUPS["parts"][source.below(len(GROUPS["parts"]))])
        elif kind < 75:
            pool = GROUPS["pools"][source.below(len(GROUPS["pools"]))]
            parts += [pool[source.below(len(pool))] for _ in range(1 + source.below(8))]
        elif kind < 90:
            kind = source.below(3)
            c = source.below(0x250) if kind == 0 else source.below(0xD800) if kind == 1 else 0xE000 + source.below(0x12000)
            parts.append(chr(c) * (1 + source.below(3)))
        else:
            run = GROUPS["runs"][source.below(len(GROUPS["runs"]))]
            parts.append(run * (1 + source.below(40)))
    raw = "".join(parts).encode()
    if source.below(100) < 15 and raw:  # damage it: lose a byte, or change one
        at = source.below(len(raw))
        raw = raw[:at] + (b"" if source.below(2) == 0 else bytes([source.below(256)])) + raw[at + 1:]
    return raw


def made_ids(source, vocab):
    """Mostly bytes, in whose runs ill-formed and split characters abound."""
    kind = source.below(3)
    return [source.below(263 if kind == 1 or (kind == 2 and source.below(2) == 0) else vocab + 2)
            for _ in range(1 + source.below(24))]


def made_hash(tok, seed, index):
    source = Source(seed * 0x100000001B3 + index)
    if index < WINDOWS:
        ids = tok.encode(window(index).decode()).ids
    elif index % 5 < 4:
        ids = tok.encode(made_text(source).decode("utf-8", errors="replace")).ids
    else:
        ids = made_ids(source, tok.get_vocab_size())
    value = fnv(ids)
    for byte in tok.decode(ids, skip_special_tokens=True).encode():
        value = (value ^ byte) * 0x100000001B3 % (1 << 64)
    return f"{value >> 40:06x}"


def hashes(name, tok, seed, first, count):
    return f"{name} {seed} {first} {count} {''.join(made_hash(tok, seed, i) for i in range(first, first + count))}\n"


def read(name):
    return json.loads((DATA / name).read_text())


def stored():
    """The tokenizers of the data files, by name."""
    toks = {name: Tokenizer.from_file(str(DATA / f"tokenizer_{name}.json")) for name in ("llama3", "gpt2", "qwen2")}
    base = read("tokenizer_bytes.json")
    for name, variant in read("tokenizer_variants.json").items():
        toks[name] = Tokenizer.from_str(json.dumps(compose(base, variant)))
    for name, form in read("tokenizer_forms.json").items():
        base = read(f"tokenizer_{form.get('base', 'whole')}.json")
        toks[name] = Tokenizer.from_str(json.dumps(compose(base, form)))
    return toks


def write(name, value):
    (DATA / name).write_text(json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n")


def train_all():
    documents = tokenizers()
    toks = {name: Tokenizer.from_str(json.dumps(d)) for name, d in documents.items()}
    for name, d in documents.items():
        write(f"tokenizer_{name}.json", d)
    with open(DATA / "tokenizer_cases.txt", "w") as out:
        for first, text in class_blocks():
            out.write(f"C {first:x} {fnv(toks['classes'].encode(text).ids):016x}\n")
        for line in cases(toks, 20240607, 400):
            out.write(line + "\n")
    train_bytes()
    write("tokenizer_whole.json", whole_document())


def train_bytes():
    base = bytes_document()
    write("tokenizer_bytes.json", base)
    write("tokenizer_variants.json", variants(len(base["model"]["vocab"])))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--hashes", nargs="+", metavar="X")
    arguments = parser.parse_args()
    if arguments.hashes:
        seed, count = int(arguments.hashes[0]), int(arguments.hashes[1])
        toks = {path: Tokenizer.from_file(path) for path in arguments.hashes[2:]} or stored()
        for name, tok in toks.items():
            sys.stdout.write(hashes(name, tok, seed, 0, count))
        return
    if arguments.train:
        train_all()
    write("tokenizer_texts.json", GROUPS)
    write("tokenizer_forms.json", forms())
    with open(DATA / "tokenizer_hashes.txt", "w") as out:
        for name, tok in stored().items():
            first, count = (0, COUNTS[name]) if name in COUNTS else (FIRST_OTHER, FORMS if name in forms() else OTHERS)
            out.write(hashes(name, tok, 1, first, count))


if __name__ == "__main__":
    main()
