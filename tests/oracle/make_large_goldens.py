"""Makes goldens of shapes whose weights are too large to keep: on a machine with a large GPU, for mkvm_gpu_tests there.

    python3 make_large_goldens.py OUTPUT_FOLDER [NAME ...]       NAME: one of MODELS

The same files as make_goldens.py writes, of transformers in fp32 with the weights of models/synth.h; the hash runs
on the GPU, and long prompts go through the model in pieces.
"""

import math
import sys

import torch

import make_goldens as small

LLAMA3 = dict(theta=500000.0, rope=8192, low=1.0, high=4.0, vocab=128256, max_position=131072, seed=1)
SHAPES = {
    "1b": dict(hidden=2048, intermediate=8192, layers=16, heads=32, kv_heads=8, head_dim=64, tied=True, factor=32.0),
    "3b": dict(hidden=3072, intermediate=8192, layers=28, heads=24, kv_heads=8, head_dim=128, tied=True, factor=32.0),
    "8b": dict(hidden=4096, intermediate=14336, layers=32, heads=32, kv_heads=8, head_dim=128, tied=False, factor=8.0),
}
# Name: shape, prompt, steps.
MODELS = {"1b_64": ("1b", 64, 128), "1b_16000": ("1b", 16000, 16), "3b_64": ("3b", 64, 128), "8b_64": ("8b", 64, 128)}
PIECE = 512


def signed(value):
    return value - (1 << 64) if value >= 1 << 63 else value


def shifted(z, bits):
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def synth_values(key, count, offset, scale, device):
    """make_goldens.synth_bits on the GPU, as fp32 values."""
    out = torch.empty(count, dtype=torch.float32, device=device)
    for first in range(0, count, 1 << 26):
        n = min(1 << 26, count - first)
        z = torch.arange(first, first + n, dtype=torch.int64, device=device) * signed(small.GOLDEN_RATIO) + signed(key)
        z = (z ^ shifted(z, 30)) * signed(0xBF58476D1CE4E5B9)
        z = (z ^ shifted(z, 27)) * signed(0x94D049BB133111EB)
        z = z ^ shifted(z, 31)
        r = (shifted(z, 48).to(torch.int32) - 32768).to(torch.float32)
        out[first : first + n] = (offset + r * scale).to(torch.bfloat16).to(torch.float32)
    return out


def synth_parameter(seed, name, shape, device):
    if name == "model.norm.weight":
        offset, scale = 0.0, math.sqrt(3.0) / 32768.0
    elif len(shape) == 1:
        offset, scale = 1.0, 2.0**-16
    else:
        gain = next(gain for kind, gain in small.GAINS.items() if kind in name)
        offset, scale = 0.0, gain * math.sqrt(3.0 / shape[1]) / 32768.0
    scale = float(small.np.float32(scale))
    return synth_values(small.synth_key(seed, name), math.prod(shape), offset, scale, device).reshape(shape)


def hf_config(m):
    config = small.hf_config(m)
    config.rope_parameters["factor"] = m["factor"]
    return config


@torch.no_grad()
def load(m, device):
    with torch.device(device):
        model = small.LlamaForCausalLM(hf_config(m)).float().eval()
    for name, parameter in model.named_parameters():
        parameter.copy_(synth_parameter(m["seed"], name, tuple(parameter.shape), device))
    return model


@torch.no_grad()
def greedy(model, prompt, steps, device):
    past, ids = None, torch.tensor([prompt], device=device)
    for first in range(0, len(prompt), PIECE):
        out = model(input_ids=ids[:, first : first + PIECE], past_key_values=past, use_cache=True, logits_to_keep=1)
        past = out.past_key_values
    tokens, rows = [], []
    for step in range(steps):
        row = out.logits[0, -1].float()
        rows.append(row.cpu().numpy())
        tokens.append(int(row.argmax()))
        if step + 1 < steps:
            feed = torch.tensor([[tokens[-1]]], device=device)
            out = model(input_ids=feed, past_key_values=past, use_cache=True, logits_to_keep=1)
            past = out.past_key_values
    return tokens, small.np.stack(rows)


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    small.GOLDENS = sys.argv[1]
    device = "cuda"
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    loaded = None
    for name in sys.argv[2:] or MODELS:
        shape, prompt_count, steps = MODELS[name]
        m = dict(LLAMA3, **SHAPES[shape], name=name, prompt=prompt_count)
        if loaded is None or loaded[0] != shape:
            loaded = None
            torch.cuda.empty_cache()
            loaded = (shape, load(m, device))
            if shape == "1b":  # the hash itself, against numpy's
                want = small.synth_bits(small.synth_key(1, "model.layers.3.mlp.up_proj.weight"), 0, 4096, 0.0,
                                        small.np.float32((3.0 / 2048) ** 0.5 / 32768.0))
                got = loaded[1].model.layers[3].mlp.up_proj.weight.detach().flatten()[:4096].cpu().numpy()
                assert (got.view("<u4") >> 16 == want).all(), "the hash on the GPU differs"
        prompt = small.synth_prompt(m)
        tokens, logits = greedy(loaded[1], prompt, steps, device)
        size = small.write_golden(m, prompt, tokens, logits, False)
        print(small.describe(m, tokens, logits), f"{size / 1e6:.1f} MB", flush=True)


if __name__ == "__main__":
    main()
