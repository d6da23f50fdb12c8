"""Writes tests/models/data/templates/golden.json: what transformers' chat template environment renders.

    python3 tests/models/make_template_golden.py

Every *.jinja of that folder is rendered with every conversation below. An entry holds the template's name, the variables by
their index in "variables", and "text" or "error": the message where the template raised one, or the kind of the exception.
"""

import datetime
import json
import os

import transformers.utils.chat_template_utils as chat

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "data", "templates")
NOW = (2026, 1, 5, 14, 3, 9)  # test_template.c has the same


class FixedDate(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(*NOW)


def turn(role, content, **more):
    return {"role": role, "content": content, **more}


WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a \"place\", in °C",
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}, "days": {"type": "integer"}}, "required": []},
        "return": {"type": "number"},
    },
}


def called(name, identifier="abc123def", **arguments):
    return turn("assistant", None, tool_calls=[{"id": identifier, "type": "function", "function": {"name": name, "arguments": arguments}}])


ASK = turn("user", "  What is\n2 + 2? ")
SAY = turn("assistant", "4.\n")
SYSTEM = turn("system", "Answer \u00abbriefly\u00bb. ")
LLAMA2 = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
LLAMA3 = {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"}


def variables(*messages, tokens=LLAMA3, generate=True, tools=None, **more):
    return {"messages": list(messages), "tools": tools, "documents": None, "add_generation_prompt": generate, **tokens, **more}


CONVERSATIONS = [
    variables(ASK),
    variables(SYSTEM, ASK, tokens=LLAMA2),
    variables(ASK, SAY, turn("user", "And \U0001f980 + 'é'?\t"), tokens=LLAMA2),
    variables(SYSTEM, ASK, SAY, turn("user", "<|eot_id|>[/INST] \"quoted\" \\ and <b>&amp;</b>"), SAY, generate=False),
    variables(ASK, ASK),
    variables(SAY, ASK, tokens=LLAMA2),
    variables(SYSTEM, generate=False),
    variables(),
    variables(turn("user", "Oslo?"), tools=[WEATHER], pad_token="<pad>"),
    variables(SYSTEM, turn("user", "Oslo?"), called("weather", place="Oslo", days=2), turn("tool", {"content": -3.5}), tools=[WEATHER]),
    variables(SYSTEM, turn("user", "Oslo?"), called("search", "no", q="Oslo"), turn("ipython", "cold"), SAY,
              builtin_tools=["search", "interpreter"], tools_in_user_message=False, date_string="31 Dec 1999", tools=[WEATHER]),
    variables(turn("user", ""), turn("assistant", "<think>\n2+2\n</think>\n\nfour"), turn("critic", "so so")),
    variables(turn("user", [{"type": "image"}, {"type": "text", "text": " Who is\nthis? "}, {"type": "audio"}]), turn("assistant", [])),
    variables(*[turn(("user", "assistant")[i % 2], f"turn {i}") for i in range(9)]),
]


def expected(compiled, values):
    try:
        return {"text": compiled.render(**values)}
    except Exception as error:  # whatever Python raises is an error of the template
        known = type(error).__name__ in ("TemplateError", "UndefinedError")
        return {"error": str(error) if known else None}


def main():
    chat.datetime = FixedDate
    cases = []
    for name in sorted(os.listdir(FOLDER)):
        if name.endswith(".jinja"):
            with open(os.path.join(FOLDER, name), newline="") as file:
                compiled = chat._cached_compile_jinja_template(file.read())
            for index, values in enumerate(CONVERSATIONS):
                cases.append({"template": name, "variables": index, **expected(compiled, values)})
    with open(os.path.join(FOLDER, "golden.json"), "w") as file:
        file.write('{"variables": [\n' + ",\n".join(json.dumps(v) for v in CONVERSATIONS) + '\n], "cases": [\n')
        file.write(",\n".join(json.dumps(case) for case in cases) + "\n]}\n")
    print(len(cases), "cases,", sum("error" in case for case in cases), "of them errors")


if __name__ == "__main__":
    main()
