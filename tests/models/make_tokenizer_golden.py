#!/usr/bin/env python3
"""Writes tests/models/data/: small byte-level BPE tokenizers and what Hugging Face tokenizers makes of texts with them.

Needs the Python package tokenizers; run it by hand, the tests read only its output.

    make_tokenizer_golden.py              rewrite the data files
    make_tokenizer_golden.py --cases N    print N further random cases to stdout, for a longer comparison
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


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    if arguments.cases:  # with the tokenizers that are there: training breaks ties differently from run to run
        toks = {name: Tokenizer.from_file(str(DATA / f"tokenizer_{name}.json")) for name in ("llama3", "gpt2", "qwen2")}
        for line in cases(toks, arguments.seed, arguments.cases):
            sys.stdout.write(line + "\n")
        return
    documents = tokenizers()
    toks = {name: Tokenizer.from_str(json.dumps(d)) for name, d in documents.items()}
    DATA.mkdir(exist_ok=True)
    for name, d in documents.items():
        (DATA / f"tokenizer_{name}.json").write_text(json.dumps(d, ensure_ascii=False, separators=(",", ":")) + "\n")
    with open(DATA / "tokenizer_cases.txt", "w") as out:
        for first, text in class_blocks():
            out.write(f"C {first:x} {fnv(toks['classes'].encode(text).ids):016x}\n")
        for line in cases(toks, 20240607, 400):
            out.write(line + "\n")


if __name__ == "__main__":
    main()
