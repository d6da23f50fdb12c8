#!/usr/bin/env python3
"""Writes tests/text/data/tokenizer_configs.json: what transformers makes of the files beside tokenizer.json.

    python3 tests/text/make_config_golden.py

An entry of "cases" holds the files of a directory and, of its AutoTokenizer: the named special tokens, and for each of
"texts" the ids and the text that they decode to without special tokens. Two small tokenizers, one of Qwen's form and
one of Gemma's: where the class of a tokenizer builds it anew, it builds the same.
"""

import json
import os
import sys
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"
import make_tokenizer_golden as golden
from transformers import AutoTokenizer

OUTPUT = os.path.join(golden.DATA, "tokenizer_configs.json")
TEXTS = [
    "",
    " abab <s> <s>ba",
    "x<new>y <new> z",
    "[PAD] a[PAD]",
    "<|endoftext|>ab<|endoftext|>",
    "ab <one> ba",
    "<two> ab",
    "ab <img>ab <bos>",
    "<s></s><unk><pad><mask><eos>",
    "a<more>b",
    "ba ab\nab\n\n  ab",
    "e\u0301\u00e9 <three> ab",
]


def qwen_form():
    vocab = {c: i for i, c in enumerate(sorted(golden.pre_tokenizers.ByteLevel.alphabet()))}
    merges = [["a", "b"], ["ab", "ab"], ["b", "a"], ["\u0120", "ab"]]
    for pair in merges:
        vocab["".join(pair)] = len(vocab)
    n = len(vocab)
    added = [
        golden.fields("<s>", n),
        golden.fields("<one>", n + 1, lstrip=True),
        golden.fields("<two>", n + 2, special=False),
        golden.fields("<three>", n + 3, special=False, normalized=True),
        golden.fields("<|endoftext|>", n + 4),
    ]
    document = golden.document(vocab, merges, golden.split(golden.QWEN2), added, golden.byte_level(True))
    document["normalizer"] = {"type": "NFC"}
    return document


def gemma_form():
    vocab = {}
    for piece in (
        ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<two>"]
        + [f"<0x{b:02X}>" for b in range(256)]
        + [golden.MARK, "a", "b", "ab", "ba", "\n", "\n\n"]
    ):
        vocab[piece] = len(vocab)
    added = [
        golden.fields(piece, vocab[piece], special=special)
        for piece, special in [
            ("<pad>", True),
            ("<eos>", True),
            ("<bos>", True),
            ("<unk>", True),
            ("<mask>", True),
            ("\n\n", False),
        ]
    ]
    document = golden.document(
        vocab,
        [["a", "b"], ["b", "a"]],
        golden.split_step(" ", "MergedWithPrevious", kind="String"),
        added,
        golden.template(("<bos>", 2)),
    )
    document["normalizer"] = golden.SPACES
    document["decoder"] = golden.fallback_decoder()
    document["model"].update(unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    return document


DOCUMENTS = {"qwen": qwen_form(), "gemma": gemma_form()}
N = 265  # the first id that Qwen's form does not have
PLAIN, QWEN, LLAMA = (
    {"tokenizer_class": name} for name in ("PreTrainedTokenizerFast", "Qwen2Tokenizer", "LlamaTokenizerFast")
)


def token(content, special=True, **flags):
    return {
        "content": content,
        "lstrip": False,
        "normalized": False,
        "rstrip": False,
        "single_word": False,
        "special": special,
        **flags,
    }


def added(document, *more, **replaced):
    """added_tokens_decoder as the document has it; `more` has ids and tokens, `replaced` names of tokens and their
    flags."""
    own = {}
    for entry in DOCUMENTS[document]["added_tokens"]:
        own[str(entry["id"])] = {
            k: v for k, v in {**entry, **replaced.get(entry["content"].strip("<>"), {})}.items() if k != "id"
        }
    return {"added_tokens_decoder": {**own, **{str(i): t for i, t in more}}}


def cases():
    """(document, model_type, tokenizer_config.json, special_tokens_map.json)"""
    named = {"bos_token": "<s>", "eos_token": "<|endoftext|>", "pad_token": "[PAD]"}
    yield "qwen", "llama", None, None
    yield "qwen", "llama", PLAIN, None
    yield "qwen", "llama", {**PLAIN, **added("qwen")}, None
    yield "qwen", "llama", {**PLAIN, **added("qwen", (N, token("<new>")))}, None
    yield "qwen", "llama", {
        **PLAIN,
        **added("qwen", (N + 1, token("[PAD]", False, rstrip=True)), (N, token("<new>", lstrip=True))),
    }, None
    yield "qwen", "llama", {**PLAIN, **added("qwen", (N, {"content": "<new>"}))}, None
    yield "qwen", "llama", {**PLAIN, **added("qwen", (N, {"content": "<new>", "special": True}))}, None
    yield "qwen", "llama", {**PLAIN, **added("qwen", (257, token("abab")))}, None
    yield "qwen", "llama", {
        **PLAIN,
        **added("qwen", one={"lstrip": False, "rstrip": True}, two={"special": True}),
    }, None
    yield "qwen", "llama", {**PLAIN, **added("qwen", one={"special": False}, two={"single_word": True})}, None
    yield "qwen", "llama", {**PLAIN, "added_tokens_decoder": {}}, {"bos_token": "[PAD]"}
    yield "qwen", "llama", {**PLAIN, **named}, None
    yield "qwen", "llama", {**PLAIN, **named, **added("qwen")}, None
    yield "qwen", "llama", {**PLAIN, "pad_token": {"__type": "AddedToken", **token("[PAD]", lstrip=True)}}, None
    yield "qwen", "llama", {**PLAIN, "pad_token": "<two>", "eos_token": "ba"}, None
    yield "qwen", "llama", {
        **PLAIN,
        "bos_token": None,
        "unk_token": None,
        "pad_token": "<new>",
        "mask_token": "<more>",
        "sep_token": "<img>",
    }, None
    yield "qwen", "llama", {**PLAIN, "extra_special_tokens": ["<new>", "<two>", "abab"]}, None
    yield "qwen", "llama", {
        **PLAIN,
        "additional_special_tokens": ["<new>", "<s>"],
        "eos_token": "<more>",
        **added("qwen"),
    }, None
    yield "qwen", "llama", {
        **PLAIN,
        "additional_special_tokens": [{"__type": "AddedToken", **token("<new>", rstrip=True)}],
    }, None
    yield "qwen", "llama", {
        **PLAIN,
        "extra_special_tokens": {"image_token": "<img>"},
        "additional_special_tokens": ["<more>"],
    }, None
    yield "qwen", "llama", {**PLAIN, "image_token": "<img>", "extra_special_tokens": []}, None
    yield "qwen", "llama", PLAIN, {
        "bos_token": {"content": "[PAD]", "lstrip": False, "normalized": False, "rstrip": True, "single_word": False},
        "pad_token": "<two>",
        "additional_special_tokens": ["<new>", "ba"],
    }
    yield "qwen", "llama", {**PLAIN, "add_bos_token": True, "add_eos_token": True, **named}, None
    yield "qwen", "llama", LLAMA, None
    yield "qwen", "qwen2", {
        **QWEN,
        "bos_token": None,
        "eos_token": "<one>",
        "pad_token": "<|endoftext|>",
        "unk_token": None,
        "add_bos_token": False,
        "additional_special_tokens": ["<s>"],
        **added("qwen", one={"lstrip": False}),
    }, None
    yield "qwen", "qwen2", LLAMA, None
    yield "qwen", "qwen3", {}, None
    yield "qwen", "qwen3", PLAIN, None
    yield "qwen", "olmo2", {"tokenizer_class": "GPT2Tokenizer", "pad_token": "<new>"}, None
    yield "qwen", "granite", {"tokenizer_class": "GPT2Tokenizer", "add_bos_token": False, **named}, None
    yield "qwen", "phi3", {"tokenizer_class": "GPT2TokenizerFast"}, None
    yield "qwen", "mistral", {**LLAMA, **named, "legacy": False, "add_prefix_space": True}, None
    yield "gemma", "gemma3_text", {"tokenizer_class": "GemmaTokenizer"}, None
    yield "gemma", "gemma3_text", {
        **added("gemma", (5, token("<two>", False))),
        "boi_token": "<img>",
        "eos_token": "<eos>",
    }, None
    yield "gemma", "gemma2", {**PLAIN, "pad_token": "<new>"}, None


def outcome(document, model_type, config, special):
    with tempfile.TemporaryDirectory() as folder:
        for name, content in (
            ("tokenizer", DOCUMENTS[document]),
            ("config", {"model_type": model_type}),
            ("tokenizer_config", config),
            ("special_tokens_map", special),
        ):
            if content is not None:
                with open(os.path.join(folder, name + ".json"), "w", encoding="utf-8") as file:
                    json.dump(content, file)
        tok = AutoTokenizer.from_pretrained(folder)
        ids = [tok(text)["input_ids"] for text in TEXTS]
        return {
            "tokens": tok.special_tokens_map,
            "ids": ids,
            "decoded": [tok.decode(i, skip_special_tokens=True) for i in ids],
        }


def main():
    found = [{"document": d, "model_type": m, "config": c, "map": s, **outcome(d, m, c, s)} for d, m, c, s in cases()]
    with open(OUTPUT, "w", encoding="utf-8") as file:
        lines = ",\n".join(json.dumps(case) for case in found)
        file.write(
            '{"documents": %s,\n"texts": %s,\n"cases": [\n%s\n]}\n' % (json.dumps(DOCUMENTS), json.dumps(TEXTS), lines)
        )
    print(len(found), "cases")


if __name__ == "__main__":
    sys.exit(main())
