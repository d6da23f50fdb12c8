#!/usr/bin/env python3
"""Measures the held-out loss of a model directory with mkvm itself, so also with a KV cache in fp8.

    loss.py --corpus DIR --model DIR [--kv bf16|fp8] [--mkvm PATH]

The same figures as `evaluate.py --loss`: nats per token and bits per byte, every document on its own in windows of 1024
tokens after a BOS. A window is a prompt of token ids to `mkvm serve`, whose log-probabilities come back with `echo`.
Needs nothing but Python.
"""

import argparse
import concurrent.futures
import json
import math
import os
import re
import subprocess
import time
import urllib.error
import urllib.request


def read_documents(path):
    with open(path, encoding="utf-8") as file:
        return [document.strip("\n") for document in file.read().split("\n\f\n")]


def ask(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def wait_until_ready(url):
    while True:
        try:
            urllib.request.urlopen(url + "/ready").close()
            return
        except urllib.error.HTTPError: # it still loads
            time.sleep(0.1)


def nats_of(url, window):
    answer = ask(url + "/v1/completions", {"prompt": window, "max_tokens": 0, "echo": True, "logprobs": 0})
    logprobs = answer["choices"][0]["logprobs"]["token_logprobs"]
    assert len(logprobs) == len(window) and logprobs[0] is None
    return -sum(logprobs[1:])


def windows_of(url, documents, bos, eos, length=1024):
    for document in documents:
        ids = ask(url + "/tokenize", {"prompt": document, "add_special_tokens": False})["tokens"] + [eos]
        for start in range(0, len(ids), length):
            yield [bos] + ids[start:start + length]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--corpus", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--kv", default="bf16")
    parser.add_argument("--mkvm", default="build/mkvm")
    options = parser.parse_args()
    with open(os.path.join(options.model, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    documents = read_documents(os.path.join(options.corpus, "heldout.txt"))
    server = subprocess.Popen([options.mkvm, "serve", "-m", options.model, "--port", "0", "--no-log", "--device", "cpu",
                               "--kv", options.kv], stdout=subprocess.PIPE, text=True)
    try:
        url = re.search(r"http://\S+", server.stdout.readline()).group()
        wait_until_ready(url)
        windows = list(windows_of(url, documents, config["bos_token_id"], config["eos_token_id"]))
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            nats = sum(pool.map(lambda window: nats_of(url, window), windows))
    finally:
        server.terminate()
        server.wait()
    tokens = sum(len(window) - 1 for window in windows)
    size = sum(len(document.encode()) for document in documents)
    print("held out: %.4f nats a token, %.4f bits a byte (%d tokens, %d bytes), KV cache %s" %
          (nats / tokens, nats / math.log(2) / size, tokens, size, options.kv))


if __name__ == "__main__":
    main()
