#!/usr/bin/env python3
"""Measures the demo model with transformers, which shares no code with train.py.

    evaluate.py --corpus DIR --model DIR [--quick | --loss]

Prints the held-out loss (nats per token and bits per byte, every document on its own in windows of 1024 tokens after
a BOS), the share of generated word 8-grams that occur in the training text, how often greedy text repeats itself, and
sample continuations. The texts are 64 greedy and 64 sampled (temperature 0.8, top-p 0.95) continuations of 200 tokens,
each prompted with the first eight words of a held-out document. Needs torch, transformers, tokenizers and numpy, and
compressed-tensors for directories of `mkvm quantize`.
"""

import argparse
import math
import os
import re

import numpy
import tokenizers
import torch
import transformers

PROMPTS = ["The", "Once upon a time", "Free software is", "The old wizard looked at", "To install a package,",
           "A database is", "When the ship landed,", "In a free society,"]


def read_documents(path):
    with open(path, encoding="utf-8") as file:
        return [document.strip("\n") for document in file.read().split("\n\f\n")]


def held_out_loss(model, tokenizer, documents, length=1024):
    bos, eos = model.config.bos_token_id, model.config.eos_token_id
    nats, tokens = 0.0, 0
    for document in documents:
        ids = tokenizer.encode(document).ids[1:] + [eos]
        for start in range(0, len(ids), length):
            piece = torch.tensor([[bos] + ids[start:start + length]])
            with torch.no_grad():
                logits = model(piece[:, :-1]).logits[0].float()
            nats += torch.nn.functional.cross_entropy(logits, piece[0, 1:], reduction="sum").item()
            tokens += piece.shape[1] - 1
    size = sum(len(document.encode()) for document in documents)
    return nats / tokens, nats / math.log(2) / size, tokens, size


def grams(text, order=8):
    words = re.findall(r"[a-z0-9']+", text.lower())
    return [hash(tuple(words[i:i + order])) for i in range(len(words) - order + 1)]


def share_known(texts, known):
    found = numpy.array([g for text in texts for g in grams(text)], dtype=numpy.int64)
    return float(numpy.isin(found, known).mean()), len(found)


def repetition(sequences, order=4):
    """Share of tokens that end a repeated 4-gram, and share of texts whose last 64 tokens hold at most 16 kinds."""
    repeated, total, loops = 0, 0, 0
    for ids in sequences:
        seen = set()
        for i in range(len(ids) - order + 1):
            gram = tuple(ids[i:i + order])
            repeated, total = repeated + (gram in seen), total + 1
            seen.add(gram)
        loops += len(ids) >= 64 and len(set(ids[-64:])) <= 16
    return repeated / max(1, total), loops / len(sequences)


def generate(model, tokenizer, prompts, count, sample):
    """Token ids of the continuations, without prompt and EOS."""
    eos, results = model.config.eos_token_id, []
    settings = {"do_sample": True, "temperature": 0.8, "top_p": 0.95, "top_k": 0} if sample else {"do_sample": False}
    for prompt in prompts:
        ids = torch.tensor([tokenizer.encode(prompt).ids])
        out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, pad_token_id=eos,
                             **settings)[0, ids.shape[1]:].tolist()
        results.append(out[:out.index(eos)] if eos in out else out)
    return results


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--corpus", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--quick", action="store_true", help="samples only")
    parser.add_argument("--loss", action="store_true", help="held-out loss only")
    options = parser.parse_args()
    transformers.logging.set_verbosity_error()
    torch.manual_seed(1)
    tokenizer = tokenizers.Tokenizer.from_file(os.path.join(options.model, "tokenizer.json"))
    model = transformers.AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32).eval()

    for sample in (False, True) if not options.loss else ():
        for prompt, ids in zip(PROMPTS, generate(model, tokenizer, PROMPTS, 120, sample)):
            print("%s | %s |%s\n" % ("sampled" if sample else "greedy", prompt, tokenizer.decode(ids)), flush=True)
    if options.quick:
        return

    held_out = read_documents(os.path.join(options.corpus, "heldout.txt"))
    print("held out: %.4f nats a token, %.4f bits a byte (%d tokens, %d bytes)" %
          held_out_loss(model, tokenizer, held_out), flush=True)
    if options.loss:
        return

    training = read_documents(os.path.join(options.corpus, "train.txt"))
    known = numpy.unique(numpy.array([g for document in training for g in grams(document)], dtype=numpy.int64))
    print("8-grams of held-out text in the training text: %.4f of %d" % share_known(held_out, known))
    prompts = [" ".join(document.split()[:8]) for document in held_out[::max(1, len(held_out) // 64)]][:64]
    for sample in (False, True):
        sequences = generate(model, tokenizer, prompts, 200, sample)
        share, count = share_known([tokenizer.decode(ids) for ids in sequences], known)
        name = "sampled" if sample else "greedy"
        print("%s: 8-grams in the training text %.4f of %d" % (name, share, count))
        print("%s: repeated 4-grams %.4f, texts that loop %.4f" % ((name,) + repetition(sequences)), flush=True)
    real = [tokenizer.encode(document).ids[1:201] for document in held_out]
    print("held-out text: repeated 4-grams %.4f, texts that loop %.4f" % repetition(real))


if __name__ == "__main__":
    main()
