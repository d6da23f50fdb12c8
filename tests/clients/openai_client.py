"""The openai package, unchanged, against `mkvm serve`: both endpoints, streams, log-probabilities, errors, retries,
time-outs, cancellation.

Run by tools/check-clients, which says by the environment where the server is: MKVM_URL (http://127.0.0.1:PORT),
MKVM_KEY, MKVM_MODEL (a name that it serves). The server is of one model with a chat template, 2,048 tokens of
context, and has nothing else to do.
"""

import asyncio
import json
import math
import os
import threading
import time
import unittest
import urllib.error
import urllib.request

import openai

URL = os.environ["MKVM_URL"]
KEY = os.environ["MKVM_KEY"]
MODEL = os.environ["MKVM_MODEL"]
QUESTION = [{"role": "user", "content": "What is a database?"}]
PROMPT = "A database is"


def client(**options):
    return openai.OpenAI(base_url=URL + "/v1", **{"api_key": KEY, "max_retries": 0, "timeout": 120, **options})


def raw(path, body=None, key=KEY, **headers):
    """Status, headers and body of a plain request."""
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    if key:
        given.setdefault("Authorization", "Bearer " + key)
    data = None if body is None else json.dumps(body).encode()
    try:
        answer = urllib.request.urlopen(urllib.request.Request(URL + path, data=data, headers=given), timeout=60)
    except urllib.error.HTTPError as error:
        answer = error
    with answer:
        return answer.status, answer.headers, answer.read().decode()


def metrics():
    found = {}
    for line in raw("/metrics")[2].splitlines():
        if line and not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            found[name] = float(value)
    return found


def running():
    return sum(value for name, value in metrics().items()
               if name.startswith(("vllm:num_requests_running", "vllm:num_requests_waiting")))


class Completions(unittest.TestCase):
    def test_text(self):
        answer = client().completions.create(model=MODEL, prompt=PROMPT, max_tokens=8, temperature=0)
        self.assertEqual(answer.object, "text_completion")
        self.assertEqual(answer.usage.completion_tokens, 8)
        self.assertEqual(answer.choices[0].finish_reason, "length")
        self.assertTrue(answer.choices[0].text)

    def test_stream_is_the_same_text(self):
        whole = client().completions.create(model=MODEL, prompt=PROMPT, max_tokens=24, temperature=0)
        pieces = list(client().completions.create(model=MODEL, prompt=PROMPT, max_tokens=24, temperature=0, stream=True,
                                                  stream_options={"include_usage": True}))
        self.assertEqual("".join(p.choices[0].text for p in pieces if p.choices), whole.choices[0].text)
        self.assertEqual(len({p.id for p in pieces}), 1)
        self.assertEqual(pieces[-1].choices, [])
        self.assertEqual(pieces[-1].usage.completion_tokens, 24)

    def test_ids_and_lists(self):
        ids = json.loads(raw("/tokenize", {"prompt": PROMPT})[2])["tokens"]
        by_text = client().completions.create(model=MODEL, prompt=PROMPT, max_tokens=6, temperature=0)
        by_ids = client().completions.create(model=MODEL, prompt=ids, max_tokens=6, temperature=0)
        both = client().completions.create(model=MODEL, prompt=[PROMPT, "The"], max_tokens=6, temperature=0, n=2)
        self.assertEqual(by_text.choices[0].text, by_ids.choices[0].text)
        self.assertEqual([c.index for c in both.choices], [0, 1, 2, 3])
        self.assertEqual(both.choices[0].text, by_text.choices[0].text)
        self.assertEqual(both.choices[1].text, by_text.choices[0].text)

    def test_log_probabilities(self):
        answer = client().completions.create(model=MODEL, prompt=PROMPT, max_tokens=5, temperature=0, logprobs=3)
        found = answer.choices[0].logprobs
        self.assertEqual(len(found.tokens), 5)
        for chosen, top in zip(found.token_logprobs, found.top_logprobs):
            self.assertEqual(chosen, max(top.values()))
            self.assertLessEqual(chosen, 0)
            self.assertGreaterEqual(len(top), 3)

    def test_of_a_prompt(self):
        answer = client().completions.create(model=MODEL, prompt=PROMPT, max_tokens=0, temperature=0, logprobs=1,
                                             echo=True)
        found = answer.choices[0].logprobs
        self.assertEqual(answer.choices[0].text, PROMPT)
        self.assertEqual("".join(found.tokens[1:]), PROMPT)  # the first one is the tokenizer's own, a BOS
        self.assertIsNone(found.token_logprobs[0])
        self.assertTrue(all(math.isfinite(x) and x <= 0 for x in found.token_logprobs[1:]))
        self.assertEqual(found.text_offset[0], 0)

    def test_seed(self):
        def ask(seed):
            return client().completions.create(model=MODEL, prompt=PROMPT, max_tokens=12, temperature=1,
                                               seed=seed).choices[0].text
        self.assertEqual(ask(5), ask(5))
        self.assertNotEqual(ask(5), ask(6))

    def test_stop(self):
        whole = client().completions.create(model=MODEL, prompt=PROMPT, max_tokens=24, temperature=0).choices[0].text
        word = whole.split()[3]
        answer = client().completions.create(model=MODEL, prompt=PROMPT, max_tokens=24, temperature=0, stop=[word])
        self.assertEqual(answer.choices[0].finish_reason, "stop")
        self.assertEqual(answer.choices[0].text, whole[:whole.index(word)])


class Chat(unittest.TestCase):
    def test_answer(self):
        answer = client().chat.completions.create(model=MODEL, messages=QUESTION, max_completion_tokens=12,
                                                  temperature=0)
        self.assertEqual(answer.object, "chat.completion")
        self.assertEqual(answer.choices[0].message.role, "assistant")
        self.assertIn(answer.choices[0].finish_reason, ("stop", "length"))
        self.assertEqual(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens)

    def test_stream(self):
        whole = client().chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=12, temperature=0)
        pieces = list(client().chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=12, temperature=0,
                                                       stream=True))
        roles = [p.choices[0].delta.role for p in pieces if p.choices and p.choices[0].delta.role]
        text = "".join(p.choices[0].delta.content or "" for p in pieces if p.choices)
        self.assertEqual(roles, ["assistant"])
        self.assertEqual(text, whole.choices[0].message.content)
        self.assertEqual(pieces[-1].choices[0].finish_reason, whole.choices[0].finish_reason)

    def test_log_probabilities(self):
        answer = client().chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=4, temperature=0,
                                                  logprobs=True, top_logprobs=5)
        content = answer.choices[0].logprobs.content
        self.assertEqual(len(content), answer.usage.completion_tokens)
        for token in content:
            self.assertEqual(len(token.top_logprobs), 5)
            self.assertEqual(token.logprob, token.top_logprobs[0].logprob)
            self.assertEqual(bytes(token.bytes).decode(errors="replace"), token.token)

    def test_parts_and_choices(self):
        parts = [{"role": "user", "content": [{"type": "text", "text": "What is a database?"}]}]
        one = client().chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=6, temperature=0)
        two = client().chat.completions.create(model=MODEL, messages=parts, max_tokens=6, temperature=0, n=2)
        self.assertEqual([c.message.content for c in two.choices], [one.choices[0].message.content] * 2)


class Idle(unittest.TestCase):
    def wait_until_idle(self):
        deadline = time.time() + 20
        while running() != 0:
            self.assertLess(time.time(), deadline, "the request of a client that has gone still runs")
            time.sleep(0.05)


class Errors(Idle):
    def test_key(self):
        for key in ("wrong", KEY.upper(), KEY + "x", KEY[:-1]):
            with self.assertRaises(openai.AuthenticationError):
                client(api_key=key).models.list()

    def test_model(self):
        with self.assertRaises(openai.NotFoundError):
            client().chat.completions.create(model="no-such-model", messages=QUESTION)
        self.assertIn(MODEL, [m.id for m in client().models.list()])
        self.assertEqual(client().models.retrieve(MODEL).id, MODEL)

    def test_refused_by_name(self):
        for field, value in (("tools", [{"type": "function", "function": {"name": "f"}}]),
                             ("response_format", {"type": "json_object"})):
            with self.assertRaises(openai.BadRequestError) as raised:
                client().chat.completions.create(model=MODEL, messages=QUESTION, **{field: value})
            self.assertIn(field, raised.exception.message)

    def test_context(self):
        with self.assertRaises(openai.BadRequestError) as raised:
            client().completions.create(model=MODEL, prompt=[5] * 5000, max_tokens=1)
        self.assertEqual(raised.exception.body["type"], "invalid_request_error")

    def test_values(self):
        for field, value in (("temperature", 3), ("top_p", -1), ("n", 0), ("max_tokens", -5),
                             ("logit_bias", {"9999999": 1})):
            with self.assertRaises(openai.BadRequestError) as raised:
                client().completions.create(model=MODEL, prompt=PROMPT, **{field: value})
            self.assertTrue((raised.exception.param or "").startswith(field), raised.exception.body)

    def test_timeout(self):
        with self.assertRaises(openai.APITimeoutError):
            client(timeout=0.02).completions.create(model=MODEL, prompt=PROMPT, max_tokens=1500,
                                                    extra_body={"ignore_eos": True})
        self.wait_until_idle()


class Cancelled(Idle):
    def test_stream_is_closed(self):
        stream = client().completions.create(model=MODEL, prompt=PROMPT, max_tokens=1500, temperature=0, stream=True,
                                             extra_body={"ignore_eos": True})
        for count, _ in enumerate(stream):
            if count == 3:
                break
        stream.close()
        self.wait_until_idle()

    def test_async_task(self):
        async def ask():
            async with openai.AsyncOpenAI(base_url=URL + "/v1", api_key=KEY, max_retries=0) as c:
                task = asyncio.create_task(c.completions.create(model=MODEL, prompt=PROMPT, max_tokens=1500,
                                                                extra_body={"ignore_eos": True}))
                await asyncio.sleep(0.3)
                task.cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await task
        asyncio.run(ask())
        self.wait_until_idle()


class Together(unittest.TestCase):
    def test_many_have_what_one_has(self):
        prompts = [PROMPT, "The", "Once upon a time", "def main():"] * 3
        alone = {p: client().completions.create(model=MODEL, prompt=p, max_tokens=16,
                                                temperature=0).choices[0].text for p in set(prompts)}
        got = [None] * len(prompts)

        def ask(i):
            got[i] = client().completions.create(model=MODEL, prompt=prompts[i], max_tokens=16,
                                                 temperature=0).choices[0].text

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(prompts))]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(got, [alone[p] for p in prompts])

    def test_retries_when_the_queue_is_full(self):
        def ask(i, answers):
            answers[i] = client(max_retries=8).completions.create(model=MODEL, prompt=PROMPT, max_tokens=8,
                                                                  temperature=0).choices[0].text

        answers = [None] * 40
        threads = [threading.Thread(target=ask, args=(i, answers)) for i in range(len(answers))]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(len(set(answers)), 1)
        self.assertIsNotNone(answers[0])


class Raw(unittest.TestCase):
    def test_headers(self):
        status, headers, _ = raw("/v1/completions", {"prompt": PROMPT, "max_tokens": 1}, key=None,
                                 Authorization="bearer " + KEY,
                                 X_Request_Id="mine-7")
        self.assertEqual(status, 200)
        self.assertEqual(headers["x-request-id"], "mine-7")
        self.assertEqual(headers["content-type"].split(";")[0], "application/json")

    def test_without_a_key(self):
        for path, want in (("/", 200), ("/health", 200), ("/ready", 200), ("/version", 401), ("/v1/models", 401),
                           ("/nothing", 401)):
            self.assertEqual(raw(path, key=None)[0], want, path)
        self.assertEqual(set(json.loads(raw("/v1/models", key=None)[2])["error"]), {"message", "type", "param", "code"})

    def test_text_and_back(self):
        ids = json.loads(raw("/tokenize", {"prompt": PROMPT})[2])["tokens"]
        self.assertEqual(json.loads(raw("/detokenize", {"tokens": ids})[2])["prompt"], PROMPT)


if __name__ == "__main__":
    unittest.main(verbosity=1)
