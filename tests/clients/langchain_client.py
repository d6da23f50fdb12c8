"""The recipe for LangChain in docs/SERVING.md, against `mkvm serve`: an answer, a stream, log-probabilities, many
questions at a time, an error.

Run by tools/check-clients; the environment is that of openai_client.py.
"""

import os
import unittest

import langchain_openai
import openai

URL = os.environ["MKVM_URL"]
KEY = os.environ["MKVM_KEY"]
MODEL = os.environ["MKVM_MODEL"]
QUESTION = "What is a database?"


def chat(**options):
    return langchain_openai.ChatOpenAI(base_url=URL + "/v1", model=MODEL,
                                       **{"api_key": KEY, "temperature": 0, "max_tokens": 8, "max_retries": 0,
                                          **options})


class LangChain(unittest.TestCase):
    def test_an_answer(self):
        answer = chat().invoke([("system", "Be short."), ("human", QUESTION)])
        self.assertTrue(answer.content)
        self.assertEqual(answer.usage_metadata["output_tokens"], 8)
        self.assertEqual(answer.response_metadata["finish_reason"], "length")

    def test_a_stream(self):
        whole = chat().invoke(QUESTION).content
        pieces = list(chat(stream_usage=True).stream(QUESTION))
        self.assertEqual("".join(piece.content for piece in pieces), whole)
        self.assertGreater(len(pieces), 3)
        self.assertEqual(sum(piece.usage_metadata["output_tokens"] for piece in pieces if piece.usage_metadata), 8)

    def test_log_probabilities(self):
        told = chat(logprobs=True, top_logprobs=2).invoke(QUESTION).response_metadata["logprobs"]["content"]
        self.assertEqual(len(told), 8)
        self.assertTrue(all(len(token["top_logprobs"]) == 2 for token in told))

    def test_many_questions(self):
        alone = chat().invoke(QUESTION).content
        self.assertEqual([answer.content for answer in chat().batch([QUESTION] * 6)], [alone] * 6)

    def test_completions(self):
        text = langchain_openai.OpenAI(base_url=URL + "/v1", api_key=KEY, model=MODEL, temperature=0, max_tokens=8,
                                       max_retries=0)
        self.assertTrue(text.invoke("A database is"))

    def test_a_wrong_key(self):
        with self.assertRaises(openai.AuthenticationError):
            chat(api_key="wrong").invoke(QUESTION)


if __name__ == "__main__":
    unittest.main()
