#!/usr/bin/env python3
"""Trains the demo model: a Llama of 5.5 million parameters that reads and writes English prose.

    train.py --corpus DIR --out DIR [--epochs 40] [--minutes 6]

DIR of --corpus is what corpus.py wrote. Writes a Hugging Face model directory: config.json, generation_config.json,
model.safetensors (bf16), tokenizer.json, tokenizer_config.json, and train.log beside them. Needs torch, tokenizers and
safetensors; a GPU makes it minutes instead of days.

Three phases: windows of 512 tokens; windows of 2048 tokens, so that the scaled rotary frequencies are trained over the
whole context; then a short phase that lowers the probability of tokens by which the model's own greedy continuations
repeat themselves (unlikelihood training on sequences, Welleck et al. 2019, arXiv:1908.04319).
"""

import argparse
import json
import math
import os
import time

import numpy
import safetensors.torch
import tokenizers
import torch
import torch.nn.functional as functional

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 4094,
    "eos_token_id": 4095,
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 256,
    "initializer_range": 0.02,
    "intermediate_size": 576,
    "max_position_embeddings": 2048,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 4,
    "num_hidden_layers": 7,
    "num_key_value_heads": 2,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 4.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 512,
        "rope_type": "llama3",
    },
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "vocab_size": 4096,
}
BOS, EOS = "<|begin_of_text|>", "<|end_of_text|>"

# How Llama 3 cuts text into pieces before the byte pair merges.
SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
         r"|\s*[\r\n]+|\s+(?!\S)|\s+")


def read_documents(path):
    with open(path, encoding="utf-8") as file:
        return [document.strip("\n") for document in file.read().split("\n\f\n")]


def train_tokenizer(documents):
    """Byte-level BPE; the two special tokens take the last ids, as in Llama 3."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([
        tokenizers.pre_tokenizers.Split(tokenizers.Regex(SPLIT), behavior="isolated"),
        tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=CONFIG["vocab_size"] - 2, show_progress=False,
                                             initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(documents, trainer)
    tokenizer.add_special_tokens([BOS, EOS])
    bos, eos = tokenizer.token_to_id(BOS), tokenizer.token_to_id(EOS)
    if (bos, eos) != (CONFIG["bos_token_id"], CONFIG["eos_token_id"]):
        raise SystemExit("train.py: the corpus is too small for a vocabulary of %d tokens" % CONFIG["vocab_size"])
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single=BOS + " $A", pair=BOS + " $A " + BOS + ":1 $B:1", special_tokens=[(BOS, bos)])
    return tokenizer


def encode(tokenizer, documents):
    """All documents in one stream of ids, each between BOS and EOS."""
    encoded = tokenizer.encode_batch(documents)
    return numpy.concatenate([numpy.array(e.ids + [CONFIG["eos_token_id"]], dtype=numpy.int16) for e in encoded])


def rotary_tables(length, device):
    """cos and sin, [length, head_dim], of the llama3-scaled rotary frequencies (Llama 3.1 report's reference code)."""
    scaling, half = CONFIG["rope_scaling"], CONFIG["head_dim"] // 2
    frequency = CONFIG["rope_theta"] ** (-torch.arange(half, dtype=torch.float64) / half)
    turns = scaling["original_max_position_embeddings"] * frequency / (2 * math.pi)
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    smooth = ((turns - low) / (high - low)).clamp(0, 1)
    frequency = frequency * (smooth + (1 - smooth) / scaling["factor"])
    angle = torch.outer(torch.arange(length, dtype=torch.float64), frequency)
    angle = torch.cat([angle, angle], dim=1)
    return angle.cos().float().to(device), angle.sin().float().to(device)


class Norm(torch.nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(size))

    def forward(self, x):
        return functional.rms_norm(x.float(), (x.shape[-1],), self.weight, CONFIG["rms_norm_eps"])


def linear(inputs, outputs, scale=1.0):
    layer = torch.nn.Linear(inputs, outputs, bias=False)
    torch.nn.init.normal_(layer.weight, std=CONFIG["initializer_range"] * scale)
    return layer


class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        hidden, size = CONFIG["hidden_size"], CONFIG["head_dim"]
        self.heads, self.groups, self.size = CONFIG["num_attention_heads"], CONFIG["num_key_value_heads"], size
        self.q_proj = linear(hidden, self.heads * size)
        self.k_proj = linear(hidden, self.groups * size)
        self.v_proj = linear(hidden, self.groups * size)
        self.o_proj = linear(self.heads * size, hidden, (2 * CONFIG["num_hidden_layers"]) ** -0.5)

    def forward(self, x, cos, sin):
        batch, length, _ = x.shape

        def split(y, heads):
            return y.view(batch, length, heads, self.size).transpose(1, 2)

        def rotate(y):
            first, second = y.chunk(2, dim=-1)
            return (y * cos + torch.cat([-second, first], dim=-1) * sin).to(y.dtype)

        q, k = rotate(split(self.q_proj(x), self.heads)), rotate(split(self.k_proj(x), self.groups))
        v = split(self.v_proj(x), self.groups)
        repeat = self.heads // self.groups
        out = functional.scaled_dot_product_attention(q, k.repeat_interleave(repeat, 1), v.repeat_interleave(repeat, 1),
                                                      is_causal=True)
        return self.o_proj(out.transpose(1, 2).reshape(batch, length, -1))


class Mlp(torch.nn.Module):
    def __init__(self):
        super().__init__()
        hidden, inner = CONFIG["hidden_size"], CONFIG["intermediate_size"]
        self.gate_proj, self.up_proj = linear(hidden, inner), linear(hidden, inner)
        self.down_proj = linear(inner, hidden, (2 * CONFIG["num_hidden_layers"]) ** -0.5)

    def forward(self, x):
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(torch.nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.input_layernorm, self.self_attn = Norm(CONFIG["hidden_size"]), Attention()
        self.post_attention_layernorm, self.mlp = Norm(CONFIG["hidden_size"]), Mlp()
        self.dropout = torch.nn.Dropout(dropout)

    def forward(self, x, cos, sin):
        x = x + self.dropout(self.self_attn(self.input_layernorm(x), cos, sin))
        return x + self.dropout(self.mlp(self.post_attention_layernorm(x)))


class Llama(torch.nn.Module):
    """Token ids [batch, length] to logits [batch, length, vocabulary]; parameter names as Hugging Face has them."""

    def __init__(self, dropout, device):
        super().__init__()
        self.embed_tokens = torch.nn.Embedding(CONFIG["vocab_size"], CONFIG["hidden_size"])
        torch.nn.init.normal_(self.embed_tokens.weight, std=CONFIG["initializer_range"])
        self.layers = torch.nn.ModuleList([Layer(dropout) for _ in range(CONFIG["num_hidden_layers"])])
        self.norm = Norm(CONFIG["hidden_size"])
        self.dropout = torch.nn.Dropout(dropout)
        self.cos, self.sin = rotary_tables(CONFIG["max_position_embeddings"], device)
        self.to(device)

    def forward(self, ids):
        length = ids.shape[1]
        cos, sin = self.cos[:length], self.sin[:length]
        x = self.dropout(self.embed_tokens(ids))
        for layer in self.layers:
            x = layer(x, cos, sin)
        return functional.linear(self.norm(x), self.embed_tokens.weight)

    def loss(self, ids):
        """Mean cross entropy, nats per token, of ids [batch, length + 1]. BOS as a target teaches nothing."""
        targets = ids[:, 1:].reshape(-1)
        targets = torch.where(targets == CONFIG["bos_token_id"], -100, targets)
        logits = self(ids[:, :-1]).float()
        return functional.cross_entropy(logits.view(-1, logits.shape[-1]), targets, ignore_index=-100)


class Windows:
    """Random windows of the token stream. Half of them start at a paragraph, behind a BOS, as a prompt does."""

    def __init__(self, stream, tokenizer, device, generator):
        self.stream = torch.from_numpy(stream).to(device)
        ends = [i for i in range(CONFIG["vocab_size"]) if tokenizer.decode([i]).endswith("\n\n")]
        ends.append(CONFIG["bos_token_id"])
        starts = numpy.flatnonzero(numpy.isin(stream[:-CONFIG["max_position_embeddings"] - 2], ends)) + 1
        self.starts = torch.from_numpy(starts).to(device)
        self.generator, self.device = generator, device

    def draw(self, batch, length):
        half = batch // 2
        picks = torch.randint(len(self.starts), (half,), generator=self.generator, device=self.device)
        free = torch.randint(len(self.stream) - length - 1, (batch - half,), generator=self.generator,
                             device=self.device)
        begin = torch.cat([self.starts[picks] - 1, free])
        ids = self.stream[begin[:, None] + torch.arange(length + 1, device=self.device)].long()
        ids[:half, 0] = CONFIG["bos_token_id"]
        return ids


@torch.no_grad()
def held_out_loss(model, stream, device, length=1024):
    """Nats per token over the stream in windows of `length`, BOS not counted as a target."""
    model.eval()
    usable = (len(stream) - 1) // length * length
    ids = torch.from_numpy(stream[:usable + 1].astype(numpy.int64)).to(device)
    inputs, targets = ids[:-1].view(-1, length), ids[1:].view(-1, length)
    total, count = 0.0, 0
    for i in range(0, len(inputs), 16):
        with torch.autocast(device, dtype=torch.bfloat16):
            logits = model(inputs[i:i + 16]).float()
        wanted = targets[i:i + 16].reshape(-1)
        losses = functional.cross_entropy(logits.view(-1, logits.shape[-1]), wanted, reduction="none")
        keep = wanted != CONFIG["bos_token_id"]
        total, count = total + losses[keep].sum().item(), count + keep.sum().item()
    model.train()
    return total / count


def repeated(ids, order=4):
    """[batch, length] of bool: the `order` tokens that end here stood in that order earlier in the row."""
    grams = ids.unfold(1, order, 1)
    same = (grams[:, :, None, :] == grams[:, None, :, :]).all(-1)
    seen = same.tril(-1).any(-1)
    return functional.pad(seen, (order - 1, 0))


@torch.no_grad()
def continue_greedily(model, ids, count, device):
    model.eval()
    for _ in range(count):
        with torch.autocast(device, dtype=torch.bfloat16):
            ids = torch.cat([ids, model(ids)[:, -1].argmax(-1, keepdim=True)], dim=1)
    model.train()
    return ids


def repetition_loss(model, prompts, count, device):
    """(loss, share of repeated tokens) over greedy continuations of the prompts: -log(1 - p) where they repeat."""
    ids = continue_greedily(model, prompts, count, device)
    marked = repeated(ids)[:, prompts.shape[1]:]
    # What follows an end of text is no part of the continuation.
    ended = (ids[:, prompts.shape[1]:] == CONFIG["eos_token_id"]).cumsum(1) > 0
    marked = marked & ~ended
    with torch.autocast(device, dtype=torch.bfloat16):
        logits = model(ids[:, :-1])[:, prompts.shape[1] - 1:].float()
    chosen = logits.log_softmax(-1).gather(2, ids[:, prompts.shape[1]:, None])[..., 0]
    penalty = -torch.log1p(-chosen.exp().clamp(max=1 - 1e-5))
    loss = (penalty * marked).sum() / marked.sum().clamp(min=1)
    return loss, marked.sum().item() / max(1, (~ended).sum().item())


def write_model(model, tokenizer, directory):
    os.makedirs(directory, exist_ok=True)
    tensors = {"model." + name: value.detach().to("cpu", torch.bfloat16).contiguous()
               for name, value in model.state_dict().items()}
    safetensors.torch.save_file(tensors, os.path.join(directory, "model.safetensors"), metadata={"format": "pt"})
    os.chmod(os.path.join(directory, "model.safetensors"), 0o644)
    tokenizer.save(os.path.join(directory, "tokenizer.json"), pretty=False)
    settings = {
        "config.json": CONFIG,
        "generation_config.json": {"bos_token_id": CONFIG["bos_token_id"], "eos_token_id": CONFIG["eos_token_id"],
                                   "do_sample": False},
        "tokenizer_config.json": {"bos_token": BOS, "eos_token": EOS, "clean_up_tokenization_spaces": False,
                                  "model_input_names": ["input_ids", "attention_mask"],
                                  "model_max_length": CONFIG["max_position_embeddings"],
                                  "tokenizer_class": "PreTrainedTokenizerFast"},
    }
    for name, value in settings.items():
        with open(os.path.join(directory, name), "w", encoding="utf-8") as file:
            json.dump(value, file, indent=2)
            file.write("\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--corpus", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--epochs", type=float, default=40.0, help="passes over the training text (default 40)")
    parser.add_argument("--minutes", type=float, default=60.0, help="do fewer steps if all would take longer than this (default 60)")
    parser.add_argument("--dropout", type=float, default=0.05)
    parser.add_argument("--rate", type=float, default=2e-3, help="peak learning rate (default 2e-3)")
    parser.add_argument("--batch", type=int, default=32768, help="tokens per step (default 32768)")
    parser.add_argument("--repetition-steps", type=int, default=200)
    parser.add_argument("--repetition-target", type=float, default=0.06,
                        help="share of repeated 4-grams that is left alone (default 0.06, about that of real text)")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(options.seed)
    torch.set_float32_matmul_precision("high")
    os.makedirs(options.out, exist_ok=True)
    log = open(os.path.join(options.out, "train.log"), "w", encoding="utf-8")
    begin = time.time()

    def say(message):
        line = "%7.1f s  %s" % (time.time() - begin, message)
        print(line, flush=True)
        log.write(line + "\n")
        log.flush()

    documents = read_documents(os.path.join(options.corpus, "train.txt"))
    tokenizer = train_tokenizer(documents)
    stream = encode(tokenizer, documents)
    held_out = encode(tokenizer, read_documents(os.path.join(options.corpus, "heldout.txt")))
    say("%d training tokens, %d held out, on %s" %
        (len(stream), len(held_out), torch.cuda.get_device_name() if device == "cuda" else "cpu"))

    generator = torch.Generator(device).manual_seed(options.seed)
    windows = Windows(stream, tokenizer, device, generator)
    model = Llama(options.dropout, device)
    say("%d parameters" % sum(p.numel() for p in model.parameters()))
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}],
                                  lr=options.rate, betas=(0.9, 0.95), fused=device == "cuda")
    loss_of = torch.compile(model.loss, dynamic=False) if device == "cuda" else model.loss

    steps = max(20, int(options.epochs * len(stream) / options.batch))
    timed_from, step = None, 0
    while step < steps:
        # The last fifth runs at the full context; lengths change once, so that two graphs are compiled.
        length = 512 if step < 0.8 * steps else 2048
        rate = options.rate * min(1.0, (step + 1) / 300) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * step / steps)))
        for group in optimizer.param_groups:
            group["lr"] = rate
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = loss_of(windows.draw(max(2, options.batch // length), length))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step += 1
        if step == 50 and device == "cuda":
            torch.cuda.synchronize()
            timed_from = time.time()
        if step == 150 and timed_from:
            # Seven tenths of the time are for this loop; the rest is for the second graph and the repetition phase.
            torch.cuda.synchronize()
            each = (time.time() - timed_from) / 100
            affordable = 150 + int((options.minutes * 42 - (time.time() - begin)) / each)
            say("%.1f ms a step, %d steps wanted, %d affordable" % (each * 1e3, steps, affordable))
            steps = min(steps, affordable)
        if step % max(1, steps // 20) == 0 or step == steps:
            say("step %d of %d, length %d: loss %.4f, held out %.4f" %
                (step, steps, length, loss.item(), held_out_loss(model, held_out, device)))

    write_model(model, tokenizer, os.path.join(options.out, "base"))
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    share = 1.0
    for step in range(options.repetition_steps):
        for group in optimizer.param_groups:
            group["lr"] = 0.05 * options.rate * (1 - 0.9 * step / options.repetition_steps)
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = model.loss(windows.draw(max(2, options.batch // 1024), 512))
        prompts = windows.draw(max(2, options.batch // 256), 16 + 8 * (step % 4))[:, :-1]
        penalty, now = repetition_loss(model, prompts, 160, device)
        share = now if step == 0 else 0.9 * share + 0.1 * now
        weight = min(1.0, max(0.0, share - options.repetition_target) * 10)
        (loss + weight * penalty).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % max(1, options.repetition_steps // 15) == 0 or step == options.repetition_steps - 1:
            say("repetition step %d: loss %.4f, repeated %.3f, held out %.4f" %
                (step, loss.item(), now, held_out_loss(model, held_out, device)))
        if time.time() - begin > options.minutes * 60:
            say("out of time after %d repetition steps" % (step + 1))
            break

    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.to(torch.bfloat16).float())
    write_model(model, tokenizer, options.out)
    say("held out, weights rounded to bf16: %.4f nats a token" % held_out_loss(model, held_out, device))


if __name__ == "__main__":
    main()
