#!/usr/bin/env python3
"""Trains the demo model: a Llama of 5.5 million parameters that reads and writes English prose.

    train.py --corpus DIR --out DIR [--minutes 60]

DIR of --corpus is what corpus.py wrote. Writes a Hugging Face model directory: config.json, generation_config.json,
model.safetensors (bf16), tokenizer.json, tokenizer_config.json, and train.log beside them. Needs torch, tokenizers and
safetensors; a GPU makes it minutes instead of days.

Three phases: windows of 1024 tokens; windows of 2048 tokens, so that the scaled rotary frequencies are trained over the
whole context; then a short phase on corpus and own text in equal measure, against loops (see train_on_own_text).
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
    """Random windows of the token stream. Half of them start at a paragraph, after a BOS, as a prompt does."""

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


def repeated_next(ids, order=4):
    """[batch, vocabulary] of bool: tokens that would complete an `order`-gram that the row already holds."""
    tail = ids[:, 1 - order:]
    if ids.shape[1] < order:
        return torch.zeros(ids.shape[0], CONFIG["vocab_size"], dtype=torch.bool, device=ids.device)
    match = (ids[:, :-1].unfold(1, order - 1, 1) == tail[:, None, :]).all(-1)
    banned = torch.zeros(ids.shape[0], CONFIG["vocab_size"], dtype=torch.int32, device=ids.device)
    return banned.scatter_add_(1, ids[:, order - 1:], match.int()) > 0


@torch.no_grad()
def compose(model, prompts, count, temperature, hold, may_ban, device):
    """Continues the prompts [batch, length] by `count` tokens without repeating a 4-gram.

    The first half of the rows takes the most likely token, which is what greedy decoding does; the other half samples.
    Tokens that stood in the row already are held back by the factors `hold` (of either half), as in CTRL
    (arXiv:1909.05858), and the text may end from its 96th token on. Returns (ids, tempting): `tempting` holds for each
    position of ids the banned token that the model would have preferred there, or -1.
    """
    model.eval()
    ids, tempting = prompts, torch.full_like(prompts, -1)
    half = ids.shape[0] // 2
    factor = torch.full((ids.shape[0], 1), hold[1], device=device)
    factor[:half] = hold[0]
    for step in range(count):
        with torch.autocast(device, dtype=torch.bfloat16):
            logits = model(ids)[:, -1].float()
        banned = repeated_next(ids) & may_ban
        first = logits.argmax(-1)
        refused = banned.gather(1, first[:, None])[:, 0]
        used = torch.zeros_like(banned).scatter_(1, ids, True)
        logits = torch.where(used, torch.where(logits > 0, logits / factor, logits * factor), logits)
        logits = logits.masked_fill(banned, -1e9)
        logits[:, CONFIG["bos_token_id"]] = -1e9
        if step < 96:
            logits[:, CONFIG["eos_token_id"]] = -1e9
        best = logits.argmax(-1)
        probable = torch.where(logits >= logits.topk(20, -1).values[:, -1:], logits, -1e9)
        drawn = torch.multinomial((probable / temperature).softmax(-1), 1)[:, 0]
        chosen = torch.cat([best[:half], drawn[half:]])
        tempting = torch.cat([tempting, torch.where(refused, first, -1)[:, None]], dim=1)
        ids = torch.cat([ids, chosen[:, None]], dim=1)
    model.train()
    return ids, tempting


def train_on_own_text(model, windows, tokenizer, held_out, options, deadline, say, device):
    """Trains on the model's own text without repetitions, and on the corpus in equal measure.

    A small model decoded greedily falls into loops. Here it writes under rules that a greedy decoder does not have,
    learns to write so without them, and does that for a few rounds, since the model that has learnt finds other loops.
    Where a rule banned the token that the model liked best, that token is made less likely (unlikelihood, Welleck et
    al. 2019, arXiv:1908.04319).
    """
    # Only a token that begins a word or is no word at all may be banned: a word once begun must go on as it did.
    pieces = [tokenizer.id_to_token(i) for i in range(CONFIG["vocab_size"])]
    may_ban = torch.tensor([not piece[0].isalpha() or piece[0] == "\u0120" for piece in pieces], device=device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.own_rate, betas=(0.9, 0.98), weight_decay=0.0)
    bank, rows = [], max(4, options.batch // 96)
    steps, part = options.own_rounds * options.own_steps, max(2, options.batch // 2 // options.own_length)
    for step in range(steps):
        if step % options.own_steps == 0:
            for turn in range(options.own_turns):
                prompt = 2 + 3 * (turn % 6)
                ids, tempting = compose(model, windows.draw(2 * rows, prompt)[:rows, :prompt],
                                        options.own_length - prompt, 0.7, (options.own_hold, 1.12), may_ban, device)
                is_end = (ids == CONFIG["eos_token_id"]).int()
                over = is_end.cumsum(1) - is_end > 0
                bank.append(torch.stack([ids.masked_fill(over, -100), tempting.masked_fill(over, -1)], dim=1))
            own_texts = torch.cat(bank)
            newest = torch.cat(bank[-options.own_turns:])
            say("%d own texts of %d tokens; banned where preferred at %.3f of the newest positions" %
                (len(own_texts), options.own_length, (newest[:, 1] >= 0).float().mean().item()))
            for row in (0, rows // 2):
                say("own text: %s" % tokenizer.decode(ids[row].tolist())[:400].replace("\n", " / "))
        rate = options.own_rate * min(1.0, (step + 1) / 30) * (1 - 0.95 * step / steps)
        for group in optimizer.param_groups:
            group["lr"] = rate
        picks = torch.randint(len(own_texts), (part,), generator=windows.generator, device=device)
        ids, tempting = own_texts[picks, 0], own_texts[picks, 1, 1:]
        with torch.autocast(device, dtype=torch.bfloat16):
            logits = model(ids[:, :-1].clamp(min=0)).float()
            real = model.loss(windows.draw(max(2, options.batch // 2048), 1024))
        own = functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), ids[:, 1:].reshape(-1), ignore_index=-100)
        wrong = logits.log_softmax(-1).gather(2, tempting.clamp(min=0)[..., None])[..., 0]
        penalty = -torch.log1p(-wrong.exp().clamp(max=1 - 1e-4)) * (tempting >= 0)
        unlikely = penalty.sum() / (ids >= 0).sum()
        (real + own + options.own_penalty * unlikely).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % max(1, steps // 15) == 0 or step == steps - 1:
            say("step %d of %d: loss %.4f, own text %.4f, penalty %.4f, held out %.4f" %
                (step, steps, real.item(), own.item(), unlikely.item(), held_out_loss(model, held_out, device)))
        if time.time() > deadline:
            say("out of time after %d steps" % (step + 1))
            break


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
    parser.add_argument("--epochs", type=float, default=45.0, help="passes over the training text (default 45)")
    parser.add_argument("--minutes", type=float, default=60.0,
                        help="do fewer steps if all would take longer than this (default 60)")
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--rate", type=float, default=2e-3, help="peak learning rate (default 2e-3)")
    parser.add_argument("--batch", type=int, default=32768, help="tokens per step (default 32768)")
    parser.add_argument("--own-rounds", type=int, default=5)
    parser.add_argument("--own-turns", type=int, default=14, help="batches of own text in a round; 0: no third phase")
    parser.add_argument("--own-length", type=int, default=256, help="tokens of one own text (default 256)")
    parser.add_argument("--own-steps", type=int, default=400, help="training steps in a round (default 400)")
    parser.add_argument("--own-rate", type=float, default=5e-4)
    parser.add_argument("--own-hold", type=float, default=1.12,
                        help="how far used tokens are held back in the greedy half; 1: not at all (default 1.12)")
    parser.add_argument("--own-penalty", type=float, default=4.0,
                        help="weight of the loss on banned tokens (default 4)")
    parser.add_argument("--start", metavar="DIR", help="begin with the model written there, at the third phase")
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
    if options.start:
        weights = safetensors.torch.load_file(os.path.join(options.start, "model.safetensors"))
        model.load_state_dict({name.removeprefix("model."): value for name, value in weights.items()})
        steps = 0
    timed_from, step = None, 0
    while step < steps:
        # The last fifth runs at the full context; lengths change once, so that two graphs are compiled.
        length = 1024 if step < 0.8 * steps else 2048
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

    if not options.start:
        write_model(model, tokenizer, os.path.join(options.out, "base"))
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    if options.own_turns > 0:
        deadline = begin + options.minutes * 60
        train_on_own_text(model, windows, tokenizer, held_out, options, deadline, say, device)

    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.to(torch.bfloat16).float())
    write_model(model, tokenizer, options.out)
    say("held out, weights rounded to bf16: %.4f nats a token" % held_out_loss(model, held_out, device))


if __name__ == "__main__":
    main()
