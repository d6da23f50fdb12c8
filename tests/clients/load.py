"""Load on `mkvm serve` (or any OpenAI endpoint) over loopback, by plain sockets: streams of /v1/completions whose
prompts are random ids.

    python3 load.py http://127.0.0.1:8080 --concurrency 16 --requests 48 --in 512 --out 128
            [--rate R] [--key K] [--processes 4]

Prints one line of JSON: requests/s, tokens/s, time to the first token and between tokens (p50, p99, milliseconds). A
token is an event of the stream; times are taken when its bytes come out of the socket. With --rate requests arrive
at random, as a Poisson process of which is known that so many come in --requests / --rate seconds; else there are
always `--concurrency` of them. requests/s counts to the end of the last answer. Two requests warm up and do not
count.
"""

import argparse
import asyncio
import json
import multiprocessing
import random
import time
import urllib.parse


async def one(o, seed, first, gaps):
    """A request, on a connection of its own. Returns its number of tokens and when it ended."""
    numbers = random.Random(seed)
    body = json.dumps({"prompt": [numbers.randrange(10, o.vocabulary) for _ in range(o.length)], "max_tokens": o.out,
                       "temperature": o.temperature,
                       "stream": True, "ignore_eos": True, "seed": seed}).encode()
    start = time.perf_counter()
    reader, writer = await asyncio.open_connection(o.host, o.port)
    head = (f"POST /v1/completions HTTP/1.1\r\nHost: {o.host}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n")
    key = f"Authorization: Bearer {o.key}\r\n" if o.key else ""
    writer.write((head + key + "\r\n").encode() + body)
    status = (await reader.readline()).split()
    if len(status) < 2 or status[1] != b"200":
        raise RuntimeError(f"the server says {status}: {(await reader.read(2000))!r}")
    count, last, rest = 0, start, b""
    while True:
        data = await reader.read(1 << 16)
        now = time.perf_counter()
        if not data:
            break
        rest += data
        lines = rest.split(b"\n")
        rest = lines.pop()
        for line in lines:
            if line.startswith(b"data: {"):
                if b'"error"' in line[:12]:
                    raise RuntimeError(line.decode())
                (first if count == 0 else gaps).append((now - last) * 1e3)
                count, last = count + 1, now
            elif line.startswith(b"data: [DONE]"):
                writer.close()
                return count, last
    raise RuntimeError("the stream ended without [DONE]")


async def closed(o, seeds, first, gaps, out):
    async def worker():
        while seeds:
            out.append(await one(o, seeds.pop(), first, gaps))
    await asyncio.gather(*(worker() for _ in range(o.mine)))


async def opened(o, seeds, first, gaps, out):
    async def later(seed, wait):
        await asyncio.sleep(wait)
        out.append(await one(o, seed, first, gaps))
    await asyncio.gather(*(later(seed, o.arrivals[seed - o.seed]) for seed in seeds))


def work(o, seeds, mine, barrier, results):
    o.mine = mine
    first, gaps, out = [], [], []
    barrier.wait()
    start = time.perf_counter()
    asyncio.run((opened if o.rate else closed)(o, list(seeds), first, gaps, out))
    results.put((first, gaps, [n for n, _ in out], start, max((t for _, t in out), default=start)))


def quantile(values, share):
    values = sorted(values)
    return round(values[min(len(values) - 1, int(share * len(values)))], 3) if values else None


def main():
    p = argparse.ArgumentParser()
    p.add_argument("url")
    p.add_argument("--concurrency", type=int, default=1)
    p.add_argument("--requests", type=int, default=32)
    p.add_argument("--in", dest="length", type=int, default=512)
    p.add_argument("--out", type=int, default=128)
    p.add_argument("--rate", type=float, default=0)
    p.add_argument("--temperature", type=float, default=0)
    p.add_argument("--vocabulary", type=int, default=1000)
    p.add_argument("--key", default="")
    p.add_argument("--processes", type=int, default=4)
    p.add_argument("--seed", type=int, default=time.time_ns() // 1000 % 10**12,
                   help="of the prompts; usually they are new ones")
    o = p.parse_args()
    url = urllib.parse.urlsplit(o.url)
    o.host, o.port = url.hostname, url.port
    numbers = random.Random(o.seed)
    o.arrivals = sorted(numbers.uniform(0, o.requests / o.rate) for _ in range(o.requests)) if o.rate else []
    o.processes = min(o.processes, o.requests if o.rate else o.concurrency)
    for warm in (1, 2):
        asyncio.run(one(o, o.seed - warm, [], []))
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(o.processes), context.Queue()
    seeds = range(o.seed, o.seed + o.requests)
    for i in range(o.processes):
        mine = o.concurrency // o.processes + (i < o.concurrency % o.processes)
        context.Process(target=work, args=(o, list(seeds[i::o.processes]), mine, barrier, results), daemon=True).start()
    first, gaps, counts, starts, ends = [], [], [], [], []
    for _ in range(o.processes):
        a, b, c, start, end = results.get()
        first, gaps, counts, starts, ends = first + a, gaps + b, counts + c, starts + [start], ends + [end]
    seconds = max(ends) - min(starts)
    print(json.dumps({"concurrency": o.concurrency, "rate": o.rate, "in": o.length, "out": o.out,
                      "requests": len(counts),
                      "requests_per_s": round(len(counts) / seconds, 2),
                      "tokens_per_s": round(sum(counts) / seconds, 1),
                      "first_ms": [quantile(first, 0.5), quantile(first, 0.99)],
                      "between_ms": [quantile(gaps, 0.5), quantile(gaps, 0.99)]}))


if __name__ == "__main__":
    main()
