"""Quantised checkpoints against Hugging Face transformers.

    python3 quantised.py --check MKVM [--only NAME]   every model of ROWS in every format of FORMATS: on the quantised
                                                      directory the command MKVM gives the bits that it gives on one
                                                      that holds the dequantised weights in bf16, and transformers in
                                                      fp32 on these weights is within 1e-2. Nothing is kept
    python3 quantised.py --package [--only NAME]      the dequantiser here against what transformers with the package
                                                      compressed-tensors loads
    python3 quantised.py --goldens                    those that the repository keeps, into goldens/quantised/

The dequantiser (DEQUANTISE) is written from the formats' descriptions, in numpy, and shares nothing with the product.
README.md has the files.
Needs torch, transformers, numpy, safetensors and compressed-tensors.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file

import families
import make_goldens as base

STEPS, LIMIT = 24, 1e-2
FOLDER = os.path.join(base.GOLDENS, "quantised")
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]  # nibble i holds this column


def bf16(x):
    """fp32 to the nearest bf16, ties to even, as fp32."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32).astype(np.uint64)
    rounded = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16 << 16).astype(np.uint32).view(np.float32)
    return np.where(np.isnan(x), np.float32(np.nan), rounded)


def e4m3_values():
    """The numbers that the 256 codes stand for: no infinities, and NaN where all bits but the sign are set."""
    out = np.empty(256, np.float32)
    for code in range(256):
        exponent, fraction = code >> 3 & 15, code & 7
        value = fraction / 8 * 2.0**-6 if exponent == 0 else (1 + fraction / 8) * 2.0 ** (exponent - 7)
        out[code] = np.nan if code & 127 == 127 else -value if code & 128 else value
    return out


E4M3 = e4m3_values()


def nibbles(words, axis):
    """int32 words to eight times as many codes along an axis, lowest first."""
    words = np.moveaxis(words.view(np.uint32), axis, -1)
    codes = np.stack([words >> np.uint32(4 * i) & np.uint32(15) for i in range(8)], -1)
    return np.moveaxis(codes.reshape(*words.shape[:-1], -1), -1, axis).astype(np.int64)


def words_of(codes, axis):
    codes = np.moveaxis(codes, axis, -1).astype(np.uint32)
    codes = np.pad(codes, [(0, 0)] * (codes.ndim - 1) + [(0, -codes.shape[-1] % 8)])
    codes = codes.reshape(*codes.shape[:-1], -1, 8)
    words = np.zeros(codes.shape[:-1], np.uint32)
    for i in range(8):
        words |= codes[..., i] << np.uint32(4 * i)
    return np.ascontiguousarray(np.moveaxis(words, -1, axis)).view(np.int32)


def swap(codes, order):
    """Columns of each eight in another order."""
    return codes.reshape(codes.shape[0], -1, 8)[:, :, order].reshape(codes.shape)


def f32(t):
    return t.float().numpy()


def group_index(f, cols):
    return np.arange(cols) // f["group"] if f["group"] else np.zeros(cols, np.int64)


# What a weight [N, K] is, by the tensors that are stored for it: fp32, before the rounding to bf16.
def dequantise_plain(f, t, n, k):
    codes = t["weight"].view(torch.uint8).numpy()
    values = codes.view(np.int8).astype(np.float32) if f["bits"] == "int8" else E4M3[codes]
    return f32(t["weight_scale"]).reshape(-1, 1) * values


def dequantise_blocks(f, t, n, k):
    scale = f32(t["weight_scale_inv" if f["method"] == "fp8" else "weight_scale"])
    return np.repeat(np.repeat(scale, 128, 0), 128, 1)[:n, :k] * E4M3[t["weight"].view(torch.uint8).numpy()]


def dequantise_packed(f, t, n, k):
    assert t["weight_shape"].tolist() == [n, k]
    q = nibbles(t["weight_packed"].numpy(), 1)[:, :k]
    zero = nibbles(t["weight_zero_point"].numpy(), 0)[:n] if f["zeros"] else np.full((n, t["weight_scale"].shape[1]), 8)
    index = t["weight_g_idx"].numpy() if "weight_g_idx" in t else group_index(f, k)
    return f32(t["weight_scale"])[:, index] * (q - zero[:, index]).astype(np.float32)


def dequantise_awq(f, t, n, k):
    back = [AWQ_ORDER.index(i) for i in range(8)]
    q, zero = swap(nibbles(t["qweight"].numpy(), 1), back), swap(nibbles(t["qzeros"].numpy(), 1), back)
    index = group_index(f, k)
    return (f32(t["scales"])[index] * (q - zero[index]).astype(np.float32)).T


def dequantise_gptq(f, t, n, k):
    q, zero = nibbles(t["qweight"].numpy(), 0), nibbles(t["qzeros"].numpy(), 1)
    zero = np.full_like(zero, 8) if not f["zeros"] else zero if f.get("v2") else zero + 1 & 15
    index = t["g_idx"].numpy()
    return (f32(t["scales"])[index] * (q - zero[index]).astype(np.float32)).T


# Round to nearest, into the tensors that are stored.
def quantise_plain(f, w, random):
    top = 127.0 if f["bits"] == "int8" else 448.0
    most = np.abs(w).max() if f["by_tensor"] else np.abs(w).max(1, keepdims=True)
    scale = torch.from_numpy(np.asarray(most / top, np.float32).reshape(-1,
        *([] if f["by_tensor"] else [1]))).to(f["scale"])
    x = torch.from_numpy(w) / scale.float()
    kind = torch.int8 if f["bits"] == "int8" else torch.float8_e4m3fn
    codes = (x.round() if kind == torch.int8 else x).clamp(-top, top).to(kind)
    return {"weight": codes, "weight_scale": scale}


def quantise_blocks(f, w, random):
    n, k = w.shape
    padded = np.pad(w, ((0, -n % 128), (0, -k % 128))).reshape(-(-n // 128), 128, -(-k // 128), 128)
    scale = torch.from_numpy((np.abs(padded).max((1, 3)) / 448.0).astype(np.float32)).to(f["scale"])
    full = np.repeat(np.repeat(f32(scale), 128, 0), 128, 1)[:n, :k]
    codes = (torch.from_numpy(w / full)).clamp(-448, 448).to(torch.float8_e4m3fn)
    return {"weight": codes, ("weight_scale_inv" if f["method"] == "fp8" else "weight_scale"): scale}


def grouped(f, w, index):
    """Codes [N, K], scales and zeros [N, groups]."""
    groups = int(index.max()) + 1
    scale, zero = np.empty((len(w), groups), np.float32), np.full((len(w), groups), 8)
    for g in range(groups):
        part = w[:, index == g]
        if f["zeros"]:
            low, high = np.minimum(part.min(1), 0), np.maximum(part.max(1), 0)
            scale[:, g] = np.maximum((high - low) / 15, 1e-6)
            zero[:, g] = np.clip(np.round(-low / scale[:, g]), 0, 15)
        else:
            scale[:, g] = np.maximum(np.abs(part).max(1) / 7.5, 1e-6)
    stored = torch.from_numpy(scale).to(f["scale"])
    codes = np.clip(np.round(w / f32(stored)[:, index]) + zero[:, index], 0, 15).astype(np.int64)
    return codes, stored, zero


def order_of(f, k, random):
    index = group_index(f, k)
    return random.permutation(index) if f.get("ordered") else index


def quantise_packed(f, w, random):
    index = order_of(f, w.shape[1], random)
    codes, scale, zero = grouped(f, w, index)
    out = {"weight_packed": torch.from_numpy(words_of(codes, 1)), "weight_scale": scale.contiguous(),
           "weight_shape": torch.tensor(w.shape, dtype=torch.int64)}
    if f["zeros"]:
        out["weight_zero_point"] = torch.from_numpy(words_of(zero, 0))
    if f.get("ordered"):
        out["weight_g_idx"] = torch.from_numpy(index.astype(np.int32))
    return out


def quantise_awq(f, w, random):
    codes, scale, zero = grouped(f, w, group_index(f, w.shape[1]))
    return {"qweight": torch.from_numpy(words_of(swap(np.ascontiguousarray(codes.T), AWQ_ORDER), 1)),
            "qzeros": torch.from_numpy(words_of(swap(np.ascontiguousarray(zero.T), AWQ_ORDER), 1)),
            "scales": scale.T.contiguous()}


def quantise_gptq(f, w, random):
    index = order_of(f, w.shape[1], random)
    codes, scale, zero = grouped(f, w, index)
    stored = f["store_zero"] * np.ones_like(zero) if "store_zero" in f else zero if f.get("v2") else zero - 1 & 15
    return {"qweight": torch.from_numpy(words_of(codes.T, 0)), "qzeros": torch.from_numpy(words_of(stored.T, 1)),
            "scales": scale.T.contiguous(), "g_idx": torch.from_numpy(index.astype(np.int32))}


QUANTISE = {"plain": quantise_plain, "blocks": quantise_blocks, "packed": quantise_packed, "awq": quantise_awq,
            "gptq": quantise_gptq}
DEQUANTISE = {"plain": dequantise_plain, "blocks": dequantise_blocks, "packed": dequantise_packed,
              "awq": dequantise_awq,
              "gptq": dequantise_gptq}
H, B, F = torch.float16, torch.bfloat16, torch.float32


def compressed(form, kind, ignore, **weights):
    return {"quant_method": "compressed-tensors", "format": form, "quantization_status": "compressed", "ignore": ignore,
            "kv_cache_scheme": None, "global_compression_ratio": None,
            "config_groups": {"group_0": {"targets": ["Linear"], "input_activations": None, "output_activations": None,
                                          "weights": {"type": kind, "dynamic": False, "symmetric": True, **weights}}}}


def packed(group, zeros=False, scale=B, ordered=False, ignore=("lm_head",)):
    more = {"strategy": "group", "group_size": group} if group else {"strategy": "channel", "group_size": None}
    return {"layout": "packed", "method": "ct", "zeros": zeros, "scale": scale, "group": group, "ordered": ordered,
            "ignore": ignore,
            "config": compressed("pack-quantized", "int", list(ignore), num_bits=4,
                                 actorder="group" if ordered else None,
                                 **{**more, "symmetric": not zeros})}


def awq(group, scale=H, skip=None):
    return {"layout": "awq", "method": "awq", "zeros": True, "scale": scale, "group": group,
            "ignore": ("lm_head", *(skip or [])),
            "config": {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True, "version": "gemm",
                       "modules_to_not_convert": skip}}


def gptq(group, zeros=False, v2=False, ordered=False, scale=H, **more):
    return {"layout": "gptq", "method": "gptq", "zeros": zeros, "v2": v2, "ordered": ordered, "scale": scale,
            "group": group,
            "ignore": ("lm_head",), **more,
            "config": {"quant_method": "gptq", "bits": 4, "group_size": group or -1, "desc_act": ordered,
                       "sym": not zeros,
                       "checkpoint_format": "gptq_v2" if v2 else "gptq", "true_sequential": True, "lm_head": False}}


def eight(strategy, bits="fp8", scale=B, ignore=("lm_head",)):
    kind = "int" if bits == "int8" else "float"
    return {"layout": "plain", "method": "ct", "bits": bits, "by_tensor": strategy == "tensor", "scale": scale,
            "group": 0, "ignore": ignore,
            "config": compressed("int-quantized" if bits == "int8" else "float-quantized", kind, list(ignore),
                                 num_bits=8, strategy=strategy)}


def blocks(method, scale):
    structure = {"layout": "blocks", "method": method, "scale": scale, "group": 128, "bits": "fp8",
                 "ignore": ("lm_head",)}
    if method == "fp8":
        return {**structure, "config": {"quant_method": "fp8", "activation_scheme": "dynamic",
                                        "weight_block_size": [128, 128]}}
    return {**structure, "config": compressed("float-quantized", "float", ["lm_head"], num_bits=8, strategy="block",
                                              block_structure=[128, 128])}


ONE_LEFT = ("lm_head", "re:.*layers.0.*k_proj$", "model.layers.1.mlp.down_proj")
FORMATS = {
    "fp8_tensor": [eight("tensor"), eight("tensor", scale=F)], "fp8_row": [eight("channel"),
        eight("channel", ignore=())],
    "fp8_block": [blocks("ct", B), blocks("ct", F)], "fp8_inverse": [blocks("fp8", F), blocks("fp8", B)],
    "int8": [eight("channel", "int8"), eight("tensor", "int8"), eight("channel", "int8", F, ONE_LEFT)],
    "w4_symmetric": [packed(128), packed(64, scale=H), packed(32, scale=F), packed(0), packed(128, ignore=()),
                     packed(256, ignore=ONE_LEFT)],
    "w4_asymmetric": [packed(128, True), packed(64, True, H), packed(32, True, F), packed(0, True)],
    "w4_ordered": [packed(128, ordered=True), packed(32, True, ordered=True)],
    "awq": [awq(128), awq(64, B), awq(32), awq(128, skip=["self_attn.o_proj", "model.layers.0.mlp.*"])],
    "gptq_symmetric": [gptq(128), gptq(64, store_zero=8), gptq(32, v2=True), gptq(0)],
    "gptq_asymmetric": [gptq(128, True), gptq(64, True, scale=B), gptq(32, True, True)],
    "gptq_ordered": [gptq(128, ordered=True), gptq(32, True, ordered=True), gptq(64, True, True, True)],
}
LLAMA3 = families.LLAMA3
# family, head_dim, heads, kv heads, hidden, intermediate, layers, vocabulary, tied, prompt, dtype, shard, more keys
ROWS = [
    ("Llama", 64, 2, 2, 128, 344, 3, 304, False, 9, "bfloat16", "1GB", {}),
    ("Qwen2", 64, 14, 2, 896, 400, 2, 336, False, 24, "bfloat16", "1GB", {}),
    ("Qwen3", 128, 8, 1, 200, 264, 2, 1032, False, 90, "bfloat16", "1GB", {}),
    ("Phi3", 64, 8, 4, 512, 640, 2, 400, False, 33, "bfloat16", "1GB", {}),
    ("Llama", 128, 3, 3, 384, 504, 2, 304, True, 100, "bfloat16", "1GB", {"rope": LLAMA3}),
    ("Olmo2", 64, 6, 3, 384, 1032, 2, 304, False, 40, "bfloat16", "1GB", {}),
]
KEPT_ROW = ("Llama", 64, 1, 1, 136, 136, 1, 40, True, 9, "bfloat16", "1GB", {"head_dim": 64})


def models():
    for name, variants in FORMATS.items():
        for i, row in enumerate(ROWS):
            m = dict(zip(families.FIELDS, row))
            yield {**m, "name": f"{name}_{i + 1}", "seed": i + 11}, variants[i % len(variants)]


def is_quantised(name, f):
    import re
    module = name[: -len(".weight")]
    if not name.endswith("_proj.weight") and module != "lm_head":
        return False
    for pattern in f["ignore"]:
        if pattern.startswith("re:"):
            if re.match(pattern[3:], module):
                return False
        elif module == pattern or (f["method"] == "awq" and (module.endswith(pattern) or re.match(pattern, module))):
            return False
    return True


def build(m, f):
    """The model with its weights dequantised, the stored tensors, and their dequantised values by name."""
    model, random = families.model_of(m), np.random.default_rng(m["seed"])
    stored, dequantised = {}, {}
    tied = m["tied"]
    for name, p in model.state_dict().items():
        if name == "lm_head.weight" and tied:
            continue
        if p.ndim != 2 or not is_quantised(name, f):
            stored[name] = p.to(torch.bfloat16).contiguous()
            continue
        w = p.numpy()
        parts = QUANTISE[f["layout"]](f, w, random)
        for part, t in parts.items():
            stored[name[: -len("weight")] + part] = t.contiguous()
        value = bf16(DEQUANTISE[f["layout"]](f, parts, *w.shape))
        assert np.linalg.norm(value - w) < 0.25 * np.linalg.norm(w), name
        dequantised[name] = value
    with torch.no_grad():
        for name, value in dequantised.items():
            model.get_parameter(name).copy_(torch.from_numpy(value))
    return model, stored, dequantised


def write(folder, m, f, model, stored):
    """folder/quantised and folder/bf16."""
    config = json.loads(model.config.to_json_string(use_diff=False))
    config["architectures"] = [m["family"] + "ForCausalLM"]
    config["dtype"] = "float16" if f["scale"] == H else "bfloat16"
    for name in ("quantised", "bf16"):
        path = os.path.join(folder, name)
        os.makedirs(path)
        own = dict(config, **({"quantization_config": f["config"]} if name == "quantised" else {}))
        json.dump(own, open(os.path.join(path, "config.json"), "w"))
        families.write_tokenizer(path, m["vocab"]) if m["vocab"] >= 256 else None
        tensors = stored if name == "quantised" else {
            n: t.to(torch.bfloat16).contiguous() for n, t in model.state_dict().items()
            if not (m["tied"] and n == "lm_head.weight")}
        save_file(tensors, os.path.join(path, "model.safetensors"), metadata={"format": "pt"})


def run(command, folder, m, prompt, *options):
    out, text = os.path.join(folder, "logits.npy"), os.path.join(folder, "prompt")
    open(text, "w").write("".join(map(chr, prompt)))
    done = subprocess.run([command, "run", "-m", folder, "--device", "cpu", "-f", text, "-n", str(STEPS), "-c",
                           str(len(prompt) + STEPS),
                           "--logits", out, "--json", "--ignore-eos", *options], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    return np.load(out)


def check(m, f, command):
    with tempfile.TemporaryDirectory() as folder:
        model, stored, _ = build(m, f)
        write(folder, m, f, model, stored)
        prompt = families.prompt_of(m)
        quantised = run(command, os.path.join(folder, "quantised"), m, prompt)
        plain = run(command, os.path.join(folder, "bf16"), m, prompt)
        rows = run(command, os.path.join(folder, "quantised"), m, prompt, "--rows", "16")
        if quantised.tobytes() != plain.tobytes():
            differ = np.count_nonzero(quantised.view(np.uint32) != plain.view(np.uint32))
            return False, f"bits differ in {differ} of {plain.size}"
        if rows.tobytes() != plain.tobytes():
            return False, "bits differ with 16 rows"
        tokens, want = families.greedy(model.eval(), prompt, False, STEPS)
        worst, steps = 0.0, 0
        for row, expected, token in zip(quantised, want, tokens):
            e = families.error(row.astype(np.float64), expected)
            worst, steps = max(worst, e), steps + 1
            if not e <= LIMIT:
                return False, f"step {steps}: error {e:.2e}"
            if int(row.argmax()) != token:
                break
        return True, f"{worst:.1e}/{steps} distinct {len(set(tokens))}"


@torch.no_grad()
def package(m, f):
    if f["method"] != "ct":
        return True, "not of this package"
    if f.get("ordered"):
        return True, "the package (0.20) refuses actorder group, which older ones wrote"
    heads = m["heads"] * m["head_dim"]
    if f["layout"] == "packed" and f["group"] and any(k % f["group"] for k in (m["hidden"], m["intermediate"], heads)):
        return True, "the package wants groups that divide the rows"
    with tempfile.TemporaryDirectory() as folder:
        model, stored, dequantised = build(m, f)
        write(folder, m, f, model, stored)
        path = os.path.join(folder, "quantised")
        config = transformers.CompressedTensorsConfig(dequantize=True) if hasattr(transformers,
            "CompressedTensorsConfig") else None
        loaded = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32,
                                                                   quantization_config=config).eval()
        ids = torch.tensor([families.prompt_of(m)])
        e = families.error(loaded(ids).logits.numpy(), model.eval()(ids).logits.numpy())
        return e < LIMIT, f"logits {e:.1e}"


def fnv(data):
    h = 0xCBF29CE484222325
    for b in data:
        h = (h ^ b) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return h


def write_golden(name, f):
    """Of NAME: config.json, model.safetensors; golden.txt: prompt, tokens, sums of the dequantised tensors; logits.bin:
    fp32."""
    m = {**dict(zip(families.FIELDS, KEPT_ROW)), "name": name, "seed": 5}
    path = os.path.join(FOLDER, name)
    shutil.rmtree(path, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        model, stored, dequantised = build(m, f)
        write(folder, m, f, model, stored)
        shutil.copytree(os.path.join(folder, "quantised"), path)
    prompt = [x % m["vocab"] for x in families.prompt_of(m)]
    tokens, logits = families.greedy(model.eval(), prompt, False, 12)
    with open(os.path.join(path, "golden.txt"), "w") as out:
        out.write("prompt " + " ".join(map(str, prompt)) + "\ntokens " + " ".join(map(str, tokens)) + "\n")
        for tensor, value in sorted(dequantised.items()):
            data = (value.view(np.uint32) >> 16).astype("<u2").tobytes()
            out.write(f"sum {tensor} {fnv(data):016x}\n")
    logits.astype("<f4").tofile(os.path.join(path, "logits.bin"))
    print(f"{name:24s} {sum(os.path.getsize(os.path.join(path, x)) for x in os.listdir(path))} bytes", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", metavar="MKVM")
    parser.add_argument("--package", action="store_true")
    parser.add_argument("--goldens", action="store_true")
    parser.add_argument("--only", default="")
    a = parser.parse_args()
    if a.goldens:
        for name, variants in FORMATS.items():
            write_golden(name, variants[1 if name in ("w4_asymmetric", "gptq_asymmetric", "int8") else 0])
        return
    bad = 0
    for m, f in models():
        if m["name"].startswith(a.only):
            good, what = package(m, f) if a.package else check(m, f, a.check)
            bad += not good
            print(f"{m['name']:20s} {m['family']:6s} {'ok' if good else 'WRONG'}  {what}", flush=True)
    sys.exit(bad != 0)


if __name__ == "__main__":
    main()
