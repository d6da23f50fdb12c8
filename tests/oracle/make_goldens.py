"""Makes the golden files of this folder: logits and greedy tokens of Hugging Face transformers in fp32.

    python3 make_goldens.py                  every random model of MODELS into goldens/NAME.bin
    python3 make_goldens.py --only NAME      one of them
    python3 make_goldens.py --demo           the demo model (models/demo) into goldens/demo.bin
    python3 make_goldens.py --sensitivity    what rounding to bf16 and planted faults do to the logits (writes nothing)
    python3 make_goldens.py --bf16-errors    how far transformers in bf16 are from every golden whose weights are the
                                             hash, into goldens/bf16_errors.txt (on a GPU where there is one)
    python3 make_goldens.py --kv-fp8         the models of KV_FP8 with K and V rounded as a cache in fp8 has them, into
                                             goldens/kv_fp8/NAME.bin
    python3 make_goldens.py --check DIR      a directory written by the C code loads in transformers and its tensors
                                             are the bits of the hash below (--seed gives its seed)

Needs torch, transformers and numpy (and tokenizers for --demo). The tests read the files alone and need no Python.
The weights of a random model are the integer hash that models/synth.h defines; README.md describes the file format.
"""

import argparse
import json
import math
import os
import struct
import sys

import numpy as np
import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM

HERE = os.path.dirname(os.path.abspath(__file__))
GOLDENS = os.path.join(HERE, "goldens")
STEPS = 64
MIN_DISTINCT = 20

# ---------------------------------------------------------------- weights: models/synth.h, in numpy

GOLDEN_RATIO = 0x9E3779B97F4A7C15
MASK = (1 << 64) - 1

# Gain of each matrix: the standard deviation of its output for an input of unit variance. Layers are kept small beside
# the embedding, so that a rounding at the start does not grow from layer to layer as it does in a chaotic network.
# The final norm weight has mean zero: a tied head would else answer with the token it was given.
GAINS = {
    "embed_tokens": 3.0,
    "lm_head": 3.0,
    "q_proj": 1.0,
    "k_proj": 1.0,
    "v_proj": 1.0,
    "o_proj": 0.2,
    "gate_proj": 1.0,
    "up_proj": 1.0,
    "down_proj": 0.15,
}


def mix64(z):
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & MASK
    return z ^ (z >> 31)


def synth_key(seed, name):
    fnv = 0xCBF29CE484222325
    for byte in name.encode():
        fnv = (fnv ^ byte) * 0x100000001B3 & MASK
    return mix64(mix64((seed + GOLDEN_RATIO) & MASK) ^ fnv)


def synth_bits(key, first, count, offset, scale):
    """bf16 bits of elements [first, first + count): round to nearest even of offset + r * scale, all in fp32."""
    with np.errstate(over="ignore"):
        z = np.uint64(key) + np.arange(first, first + count, dtype=np.uint64) * np.uint64(GOLDEN_RATIO)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    r = (z >> np.uint64(48)).astype(np.int32) - 32768
    value = np.float32(offset) + r.astype(np.float32) * np.float32(scale)
    bits = value.view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype(np.uint16)


def synth_tensor(seed, name, shape):
    if name == "model.norm.weight":
        offset, scale = 0.0, np.float32(math.sqrt(3.0) / 32768.0)
    elif len(shape) == 1:
        offset, scale = 1.0, 2.0**-16
    else:
        gain = next(gain for kind, gain in GAINS.items() if kind in name)
        offset, scale = 0.0, np.float32(gain * math.sqrt(3.0 / shape[1]) / 32768.0)
    count = math.prod(shape)
    bits = synth_bits(synth_key(seed, name), 0, count, offset, scale)
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32).reshape(shape)


# ---------------------------------------------------------------- models

# rope: None, or original_max_position_embeddings of a llama3 scaling by 8 (low 1, high 4). The small ones put the
# bend of the scaling inside the run. Sizes are awkward on purpose: not multiples of 16, of a tile or of an SM count.
FIELDS = ("name", "head_dim", "heads", "kv_heads", "hidden", "intermediate", "layers", "vocab", "tied", "rope", "theta",
          "prompt", "seed")
MODELS = [dict(zip(FIELDS, row)) for row in (
    ("d64_g1_plain", 64, 2, 2, 128, 344, 3, 257, False, None, 10000.0, 1, 1),
    ("d64_g1_tied", 64, 3, 3, 135, 260, 4, 1031, True, None, 500000.0, 33, 1),
    ("d64_g2_tied_scaled", 64, 4, 2, 200, 501, 3, 300, True, 32, 10000.0, 24, 1),
    ("d64_g2_scaled", 64, 6, 3, 102, 257, 4, 333, False, 64, 500000.0, 90, 1),
    ("d64_g3_tied", 64, 3, 1, 180, 344, 3, 777, True, None, 10000.0, 12, 1),
    ("d64_g3_wide", 64, 6, 2, 2058, 300, 2, 260, False, 32, 500000.0, 9, 1),
    ("d64_g4_long", 64, 8, 2, 256, 688, 4, 1031, False, 64, 10000.0, 230, 1),
    ("d64_g8_tied_scaled", 64, 8, 1, 248, 501, 3, 512, True, 32, 10000.0, 40, 1),
    ("d128_g1_tied_scaled", 128, 2, 2, 256, 344, 3, 300, True, 64, 10000.0, 64, 1),
    ("d128_g2_long", 128, 4, 2, 172, 501, 3, 257, False, None, 10000.0, 250, 1),
    ("d128_g2_deep_k", 128, 2, 1, 264, 2100, 2, 401, True, 32, 500000.0, 7, 1),
    ("d128_g3_scaled", 128, 3, 1, 384, 1000, 2, 777, False, 32, 10000.0, 17, 1),
    ("d128_g4_tied", 128, 4, 1, 300, 344, 3, 1031, True, None, 500000.0, 5, 1),
    ("d128_g8_longest", 128, 8, 1, 320, 777, 3, 600, True, 64, 500000.0, 700, 1),
)]
MAX_POSITION = 1024


def hf_config(m):
    rope = {"rope_type": "default", "rope_theta": m["theta"]}
    if m["rope"]:
        rope = {"rope_type": "llama3", "rope_theta": m["theta"], "factor": 8.0, "low_freq_factor": 1.0,
                "high_freq_factor": 4.0, "original_max_position_embeddings": m["rope"]}
    return LlamaConfig(hidden_size=m["hidden"], intermediate_size=m["intermediate"], num_hidden_layers=m["layers"],
                       num_attention_heads=m["heads"], num_key_value_heads=m["kv_heads"], head_dim=m["head_dim"],
                       vocab_size=m["vocab"], max_position_embeddings=m.get("max_position", MAX_POSITION),
                       rms_norm_eps=m.get("eps", 1e-5), tie_word_embeddings=m["tied"], rope_parameters=rope,
                       hidden_act="silu", attention_bias=False, mlp_bias=False, bos_token_id=None, eos_token_id=None,
                       pad_token_id=None, attn_implementation="eager")


def synth_model(m):
    model = LlamaForCausalLM(hf_config(m)).float().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.from_numpy(synth_tensor(m["seed"], name, tuple(parameter.shape))))
    return model


def synth_prompt(m):
    key = synth_key(m["seed"], "prompt of " + m["name"])
    return [mix64((key + i) & MASK) % m["vocab"] for i in range(m["prompt"])]


@torch.no_grad()
def greedy(model, prompt, steps):
    """Tokens and the logits that chose them, one row a step."""
    tokens, rows, past, feed = [], [], None, torch.tensor([prompt])
    for _ in range(steps):
        out = model(input_ids=feed, past_key_values=past, use_cache=True)
        past, row = out.past_key_values, out.logits[0, -1].float()
        rows.append(row.numpy().copy())
        tokens.append(int(row.argmax()))
        feed = torch.tensor([[tokens[-1]]])
    return tokens, np.stack(rows)


# ---------------------------------------------------------------- K and V in fp8 (docs/NUMERICS.md)

KV_FP8 = ("d64_g1_plain", "d64_g2_tied_scaled", "d64_g3_wide", "d128_g1_tied_scaled", "d128_g2_long")
KV_STEPS = 32


def round_fp8(x):
    """Of each token and head (the last axis) the numbers next to x that are scale * e4m3, scale the smallest power of
    two by which none exceeds 448; written from the definition, without a table of codes."""
    x = x.numpy().astype(np.float64)
    largest = np.abs(x).max(-1, keepdims=True)
    scale = np.exp2(np.ceil(np.log2(np.maximum(largest, 2.0**-100) / 448)))
    scale = np.where(largest > 448 * scale, 2 * scale, np.where(largest <= 224 * scale, scale / 2, scale))
    y = x / scale
    exponent = np.maximum(np.floor(np.log2(np.maximum(np.abs(y), 2.0**-20))), -6)  # below 2^-6 steps do not shrink
    step = np.exp2(exponent - 3)
    return torch.from_numpy((np.round(y / step) * step * scale).astype(np.float32))  # np.round: ties to even


# ---------------------------------------------------------------- the file

HEADER = struct.Struct("<8s32sQ14I5d")


def write_golden(m, prompt, tokens, logits, is_directory, folder=GOLDENS):
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, m["name"] + ".bin")
    scaled = bool(m["rope"])
    header = HEADER.pack(b"MKGOLD01", m["name"].encode(), m["seed"], m["hidden"], m["intermediate"], m["layers"],
                         m["heads"], m["kv_heads"], m["head_dim"], m["vocab"], m.get("max_position", MAX_POSITION),
                         int(m["tied"]), int(scaled), m["rope"] or 0, len(prompt), len(tokens), int(is_directory),
                         m.get("eps", 1e-5), m["theta"], m.get("factor", 8.0) if scaled else 0.0,
                         m.get("low", 1.0) if scaled else 0.0, m.get("high", 4.0) if scaled else 0.0)
    with open(path + ".tmp", "wb") as f:
        f.write(header)
        f.write(np.asarray(prompt, "<u4").tobytes())
        f.write(np.asarray(tokens, "<u4").tobytes())
        f.write(np.asarray(logits, "<f4").tobytes())
    os.replace(path + ".tmp", path)
    return os.path.getsize(path)


def read_golden(path):
    """The model as its header has it, prompt, tokens and logits, and whether its weights are files."""
    with open(path, "rb") as f:
        data = f.read()
    (magic, name, seed, hidden, intermediate, layers, heads, kv_heads, head_dim, vocab, max_position, tied, scaled,
     original, prompt_count, steps, is_directory, eps, theta, factor, low, high) = HEADER.unpack_from(data)
    numbers = prompt_count + steps
    if magic != b"MKGOLD01" or len(data) != HEADER.size + 4 * (numbers + steps * vocab):
        sys.exit(f"{path} is no golden file")
    m = dict(name=name.rstrip(b"\0").decode(), seed=seed, hidden=hidden, intermediate=intermediate, layers=layers,
             heads=heads, kv_heads=kv_heads, head_dim=head_dim, vocab=vocab, max_position=max_position, tied=bool(tied),
             rope=original if scaled else None, eps=eps, theta=theta, factor=factor, low=low, high=high,
             prompt=prompt_count)
    ids = np.frombuffer(data, "<u4", numbers, HEADER.size).tolist()
    logits = np.frombuffer(data, "<f4", steps * vocab, HEADER.size + 4 * numbers).reshape(steps, vocab)
    return m, ids[:prompt_count], ids[prompt_count:], logits, bool(is_directory)


def describe(m, tokens, logits):
    top = np.sort(logits, axis=1)
    margin = (top[:, -1] - top[:, -2]) / np.linalg.norm(logits, axis=1) * math.sqrt(logits.shape[1])
    return (f"{m['name']:22s} seed {m['seed']:3d} distinct {len(set(tokens)):2d}  "
            f"max |logit| {np.abs(logits).max():5.1f}"
            f"  margin/rms median {np.median(margin):.3f} min {margin.min():.4f}")


# ---------------------------------------------------------------- what roundings and faults do

def bf16(x):
    return x.to(torch.bfloat16).float()


@torch.no_grad()
def forward(model, m, ids, rounding=(), fault=None):
    """All logits of `ids`, as the machine computes them when `rounding` names where it rounds to bf16.

    rounding: "residual" (as each linear layer reads it), "normed" (the product with the norm weight as well), "kv",
    "fp8" (K and V as a cache in fp8 has them), "scores" (queries and weights of attention, in base 2), "attention",
    "swiglu". fault: one of FAULTS; "empty slot" is a run that
    starts at position 1 (a shift alone changes nothing: rope sees differences).
    """
    at = lambda name, x: bf16(x) if name in rounding else x
    count, d, group = len(ids), m["head_dim"], m["heads"] // m["kv_heads"]
    position = torch.arange(count)[None]
    rope_model = synth_rope_unscaled(m) if fault == "no rope scaling" else model
    cos, sin = rope_model.model.rotary_emb(torch.zeros(1), position)
    q_cos, q_sin = rope_model.model.rotary_emb(torch.zeros(1), position + (fault == "query position + 1"))

    def norm(x, weight, skip=False):
        x = at("residual", x)
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + m.get("eps", 1e-5))
        return x * weight if skip else at("normed", x * weight) * scale

    def rotate(x, c, s):
        half = torch.cat((-x[..., d // 2:], x[..., :d // 2]), -1)
        return x * c + half * s

    x = model.model.embed_tokens.weight[torch.tensor(ids)]
    for index, layer in enumerate(model.model.layers):
        att, mlp = layer.self_attn, layer.mlp
        last = index == m["layers"] - 1
        h = norm(x, layer.input_layernorm.weight)
        q = rotate((h @ att.q_proj.weight.T).view(count, -1, d).transpose(0, 1), q_cos, q_sin)
        k = at("kv", rotate((h @ att.k_proj.weight.T).view(count, -1, d).transpose(0, 1), cos, sin))
        v = at("kv", (h @ att.v_proj.weight.T).view(count, -1, d).transpose(0, 1))
        if fault == "wrong kv head" and last:
            k, v = k.roll(1, 0), v.roll(1, 0)
        if "fp8" in rounding:
            k, v = round_fp8(k), round_fp8(v)
        k, v = k.repeat_interleave(group, 0), v.repeat_interleave(group, 0)
        if "scores" in rounding:
            q = bf16(q * (np.float32(1 / math.sqrt(d)) * np.float32(math.log2(math.e)))) * math.sqrt(d)
        score = q @ k.transpose(1, 2) / math.sqrt(d)
        if fault == "empty slot":  # a key and a value of zero in front, as when a run starts at position 1
            zero = torch.zeros(m["heads"], 1, d)
            score = torch.cat((torch.zeros(m["heads"], count, 1), score), 2)
            v = torch.cat((zero, v), 1)
        score = score.masked_fill(torch.ones(score.shape[1:], dtype=torch.bool).triu(1 + score.shape[2] - count),
                                  -math.inf)
        if "scores" in rounding:
            p = bf16(torch.exp2(score - score.amax(-1, keepdim=True).ceil()))
            weights = p / p.sum(-1, keepdim=True)
        else:
            weights = score.softmax(-1)
        a = at("attention", (weights @ v).transpose(0, 1).reshape(count, -1))
        x = (0 if fault == "residual lost" and last else x) + a @ att.o_proj.weight.T
        h = norm(x, layer.post_attention_layernorm.weight, fault == "norm skipped" and last)
        s = torch.nn.functional.silu(h @ mlp.gate_proj.weight.T) * (h @ mlp.up_proj.weight.T)
        x = x + at("swiglu", s) @ mlp.down_proj.weight.T
    return (norm(x, model.model.norm.weight) @ model.lm_head.weight.T).numpy()


ROUNDINGS = ("residual", "normed", "scores", "attention", "swiglu")  # the machine's, but for K and V
FAULTS = ("no rope scaling", "query position + 1", "empty slot", "wrong kv head", "norm skipped", "residual lost")


def synth_rope_unscaled(m):
    return LlamaForCausalLM(hf_config({**m, "rope": None, "layers": 1}))


def relative(a, b):
    """The worst step: L2 norm of the difference over that of the oracle."""
    return float((np.linalg.norm(a - b, axis=1) / np.linalg.norm(b, axis=1)).max())


def sensitivity(m, model, prompt, tokens, logits):
    ids, first = prompt + tokens[:-1], len(prompt) - 1
    run = lambda **kw: forward(model, m, ids, **kw)[first:]
    base = ("residual", "kv", "attention", "swiglu")
    row = [("fp32", relative(run(), logits))]
    row += [(r, relative(run(rounding=(r,)), logits)) for r in base + ("normed",)]
    row += [("all", relative(run(rounding=base), logits))]
    everything = run(rounding=base + ("normed",))
    row += [("all+normed", relative(everything, logits))]
    text = "  ".join(f"{k} {v:.1e}" for k, v in row)
    top = np.sort(logits, axis=1)
    wrong = [(top[i, -1] - top[i, -2]) / np.linalg.norm(logits[i]) * math.sqrt(logits.shape[1])
             for i in range(len(tokens)) if everything[i].argmax() != tokens[i]]
    text += f"\n{'':24s}other tokens {len(wrong)}, largest margin/rms there {max(wrong, default=0):.4f}"
    shown = []
    for fault in FAULTS:
        if (fault == "no rope scaling" and not m["rope"]) or (fault == "wrong kv head" and m["kv_heads"] == 1):
            continue
        error = np.linalg.norm(run(fault=fault) - logits, axis=1) / np.linalg.norm(logits, axis=1)
        shown.append(f"{fault} {error.max():.2f} (median {np.median(error):.3f})")
    return text + "\n" + " " * 24 + "faults: " + "  ".join(shown)


def kv_fp8():
    """Codes are coarse: where K differs by one rounding, its code may be the next one. So it is not enough to round K
    and V in transformers in fp32: `forward` does all of the machine's roundings. What is left is the order of sums."""
    for name in KV_FP8:
        m, prompt, _, _, _ = read_golden(os.path.join(GOLDENS, name + ".bin"))
        check_scaling(m)
        model, tokens, rows = synth_model(m), [], []
        for _ in range(KV_STEPS):
            rows.append(forward(model, m, prompt + tokens, ROUNDINGS + ("fp8",))[-1])
            tokens.append(int(rows[-1].argmax()))
        logits, ids = np.stack(rows), prompt + tokens[:-1]
        other = forward(model, m, ids, ROUNDINGS + ("kv",))[len(prompt) - 1:]
        print(f"{describe(m, tokens, logits)}  beside a cache in bf16 {relative(other, logits):.1e}",
              write_golden(m, prompt, tokens, logits, False, os.path.join(GOLDENS, "kv_fp8")), "bytes", flush=True)


# ---------------------------------------------------------------- transformers in bf16

BF16_ERRORS = os.path.join(GOLDENS, "bf16_errors.txt")
BF16_HEADER = """\
# What transformers lose in bf16: |logits - golden| over |golden| in L2, weights and compute in bf16, eager attention,
# logits cast to fp32. Teacher forced: prompt and the golden's own tokens in ONE forward pass, of whose logits those
# count that chose each token. Made by make_goldens.py --bf16-errors.
# torch {torch}, transformers {transformers}, numpy {numpy}; on {device}
# name, error over all steps, error of the worst step
"""


@torch.no_grad()
def bf16_logits(m, prompt, tokens, device):
    """Row i chose token i. The frequencies of the rotation stay fp32, as with from_pretrained(dtype=torch.bfloat16)."""
    model = synth_model(m)
    for parameter in model.parameters():
        parameter.data = parameter.data.to(torch.bfloat16)
    model = model.to(device)
    ids = torch.tensor([prompt + tokens[:-1]], device=device)
    logits = model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1:]
    if logits.dtype != torch.bfloat16:
        sys.exit(f"{m['name']}: the logits are {logits.dtype}, so not all was computed in bf16")
    return logits.float().cpu().numpy()


def check_scaling(m):
    """hf_config has one scaling; a golden with another one would be measured on another model."""
    if m["rope"] and (m["factor"], m["low"], m["high"]) != (8.0, 1.0, 4.0):
        sys.exit(f"{m['name']}: its rope scaling {m['factor']}, {m['low']}, {m['high']} is not that of hf_config")


def bf16_errors():
    on_gpu = torch.cuda.is_available()
    device = f"cuda ({torch.cuda.get_device_name()})" if on_gpu else "cpu"
    text = BF16_HEADER.format(torch=torch.__version__, transformers=transformers.__version__, numpy=np.__version__,
                              device=device)
    print(text, end="", flush=True)
    for file in sorted(os.listdir(GOLDENS)):
        if not file.endswith(".bin"):
            continue
        m, prompt, tokens, want, is_directory = read_golden(os.path.join(GOLDENS, file))
        if is_directory:
            continue
        check_scaling(m)
        got = bf16_logits(m, prompt, tokens, "cuda" if on_gpu else "cpu").astype(np.float64)
        error = float(np.linalg.norm(got - want) / np.linalg.norm(want.astype(np.float64)))
        worst = relative(got, want.astype(np.float64))
        if got.shape != want.shape or not math.isfinite(error) or not 0 < error < 1:
            sys.exit(f"{m['name']}: the error is {error}; shapes {got.shape} and {want.shape}")
        line = f"{m['name']:24s} {error:.4e} {worst:.4e}\n"
        print(line, end="", flush=True)
        text += line
    with open(BF16_ERRORS + ".tmp", "w") as f:
        f.write(text)
    os.replace(BF16_ERRORS + ".tmp", BF16_ERRORS)
    print(f"written: {BF16_ERRORS}")


# ---------------------------------------------------------------- directories

def load_directory(directory):
    model = LlamaForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager").eval()
    return model, model.config


def demo():
    from tokenizers import Tokenizer
    directory = os.path.join(HERE, "..", "..", "models", "demo")
    model, c = load_directory(directory)
    rope = c.rope_parameters
    scaled = rope["rope_type"] == "llama3"
    m = dict(name="demo", hidden=c.hidden_size, intermediate=c.intermediate_size, layers=c.num_hidden_layers,
             heads=c.num_attention_heads, kv_heads=c.num_key_value_heads, head_dim=c.head_dim, vocab=c.vocab_size,
             tied=c.tie_word_embeddings, eps=c.rms_norm_eps, theta=rope["rope_theta"], seed=0,
             max_position=c.max_position_embeddings, rope=rope["original_max_position_embeddings"] if scaled else None,
             factor=rope.get("factor"), low=rope.get("low_freq_factor"), high=rope.get("high_freq_factor"))
    prompt = Tokenizer.from_file(os.path.join(directory, "tokenizer.json")).encode("The old man went down to the").ids
    tokens, logits = greedy(model, prompt, STEPS)
    print(describe(m, tokens, logits), write_golden(m, prompt, tokens, logits, True), "bytes")
    print(" " * 24 + sensitivity(m, model, prompt, tokens, logits))


def check(directory, seed):
    model, config = load_directory(directory)
    bad = 0
    for name, parameter in model.named_parameters():
        want = synth_tensor(seed, name, tuple(parameter.shape))
        if not np.array_equal(parameter.detach().numpy(), want):
            bad += 1
            print(f"{directory}: {name} differs from the hash with seed {seed}")
    tokenizer = os.path.join(directory, "tokenizer.json")
    if os.path.exists(tokenizer):
        from tokenizers import Tokenizer
        t, text = Tokenizer.from_file(tokenizer), "Hello, W\u00f6rld \U0001f30d 12345\n\n  x"
        ids = t.encode(text, add_special_tokens=False).ids
        if t.get_vocab_size() != config.vocab_size or t.decode(ids) != text or len(ids) != len(text.encode()):
            bad += 1
            print(f"{tokenizer}: {t.get_vocab_size()} tokens, {text!r} comes back as {t.decode(ids)!r}")
        print("with special tokens:", t.encode("Hi").ids)
    print(config.to_json_string())
    print("ok" if not bad else "FAILED")
    return bad


def find_seed(m):
    """The first seed from m's on whose greedy run visits at least MIN_DISTINCT tokens."""
    for seed in range(m["seed"], m["seed"] + 50):
        m = {**m, "seed": seed}
        model, prompt = synth_model(m), synth_prompt(m)
        tokens, logits = greedy(model, prompt, STEPS)
        if len(set(tokens)) >= MIN_DISTINCT:
            return m, model, prompt, tokens, logits
    sys.exit(f"{m['name']}: no seed visits {MIN_DISTINCT} tokens: change the gains")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only")
    parser.add_argument("--demo", action="store_true")
    parser.add_argument("--sensitivity", action="store_true")
    parser.add_argument("--bf16-errors", action="store_true")
    parser.add_argument("--kv-fp8", action="store_true")
    parser.add_argument("--check", metavar="DIR")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.check:
        sys.exit(1 if check(arguments.check, arguments.seed) else 0)
    if arguments.demo:
        return demo()
    if arguments.bf16_errors:
        return bf16_errors()
    if arguments.kv_fp8:
        return kv_fp8()
    total = 0
    for m in MODELS:
        if arguments.only and m["name"] != arguments.only:
            continue
        m, model, prompt, tokens, logits = find_seed(m)
        print(describe(m, tokens, logits), flush=True)
        if arguments.sensitivity:
            print(" " * 24 + sensitivity(m, model, prompt, tokens, logits), flush=True)
        else:
            total += write_golden(m, prompt, tokens, logits, False)
    if total:
        print(f"{total} bytes in {GOLDENS}")


if __name__ == "__main__":
    main()
