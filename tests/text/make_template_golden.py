"""Writes the JSON files of tests/text/data/templates: what transformers' chat template environment renders.

    python3 tests/text/make_template_golden.py

golden.json: every *.jinja of that folder with every conversation below. constructs.json: the templates of
constructs.txt, one line each, with the values below. scopes.json: random templates of template_scopes.py. An entry
holds the template (in golden.json its name, and the variables by their index in "variables"), and "text" or "error":
the message where the template raised one, or null.
"""

import datetime
import json
import os

import template_scopes
import transformers.utils.chat_template_utils as chat

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "data", "templates")
NOW = (2026, 1, 5, 14, 3, 9)  # test_template.c has the same


SCOPES = 300  # random templates about scopes

VALUES = {
    "s": "hello World", "n": 7, "l": [1, 2, 3], "d": {"k": "v", "B": 2, "a": 1}, "u": ["b", "A", "c", "a"],
    "f": 3.14159, "mixed": ["x", 1],
    "ms": [{"r": "u", "c": "hi", "n": {"v": 3}}, {"r": "a", "c": "yo", "n": {"v": 1}}, {"r": "U", "c": "zz"}],
    "html": "<b>&'\"",
    "uni": "Straße ΑΣ ǆ ﬁ İ ŉ ΟΔΥΣΣΕΥΣ.", "multi": "a\n\nb\r\nc\x0bd\u2028e", "none_": None,
    "tree": [{"v": 1, "k": [{"v": 2, "k": [{"v": 3, "k": []}]}]}, {"v": 4, "k": []}],
}


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
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}, "days": {"type": "integer"}},
                       "required": []},
        "return": {"type": "number"},
    },
}


def called(name, identifier="abc123def", **arguments):
    return turn("assistant", None,
                tool_calls=[{"id": identifier, "type": "function", "function": {"name": name, "arguments": arguments}}])


PARALLEL = turn("assistant", "", tool_calls=[{"id": "call0000%d" % i, "type": "function",
                                              "function": {"name": name, "arguments": {"x": i}}}
                                             for i, name in ((1, "f"), (2, "g"))])
ASK = turn("user", "  What is\n2 + 2? ")
SAY = turn("assistant", "4.\n")
SYSTEM = turn("system", "Answer \u00abbriefly\u00bb. ")
LLAMA2 = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
LLAMA3 = {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"}


def variables(*messages, tokens=LLAMA3, generate=True, tools=None, **more):
    return {"messages": list(messages), "tools": tools, "documents": None, "add_generation_prompt": generate, **tokens,
            **more}


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
    variables(SYSTEM, turn("user", "Oslo?"), called("weather", place="Oslo", days=2), turn("tool", {"content": -3.5}),
              tools=[WEATHER]),
    variables(SYSTEM, turn("user", "Oslo?"), called("search", "no", q="Oslo"), turn("ipython", "cold"), SAY,
              builtin_tools=["search", "interpreter"], tools_in_user_message=False, date_string="31 Dec 1999",
              tools=[WEATHER]),
    variables(turn("user", ""), turn("assistant", "<think>\n2+2\n</think>\n\nfour"), turn("critic", "so so")),
    variables(turn("user", [{"type": "image"}, {"type": "text", "text": " Who is\nthis? "}, {"type": "audio"}]),
              turn("assistant", [])),
    variables(*[turn(("user", "assistant")[i % 2], f"turn {i}") for i in range(9)]),
    variables(SYSTEM, ASK, enable_thinking=False),
    variables(ASK, turn("assistant", "<think>\n2+2\n</think>\n\nfour"), turn("user", "sure?"), thinking=True,
              custom_instructions=" /think Rhyme.\nAlways. "),
    variables(ASK, turn("assistant", "four", reasoning_content="2 and 2\n"), generate=False),
    variables(turn("user", "f and g?"), PARALLEL, turn("tool", "1", tool_call_id="call00001", name="f"),
              turn("tool", "2", tool_call_id="call00002", name="g"), SAY, turn("user", "h?"),
              tools=[WEATHER, {"name": "f", "parameters": {}}]),
    variables(turn("user", "Who?"), documents=[{"doc_id": 7, "title": "T", "text": "D"}, {"text": "E", "about": "F"}],
              controls={"citations": True, "length": "short"}, thinking=False),
    variables(turn("system", [{"type": "text", "text": "Be brief."}]),
              turn("user", [{"type": "text", "text": " Look: "}, {"type": "image_url", "image_url": {}}]),
              turn("assistant", "A cat", prefix=True), generate=False),
    variables(turn("user", "f?"), called("f", "short", x=None), turn("tool", "1"), tools=[WEATHER]),
]


def fix_the_date():
    chat.datetime = FixedDate


def render(text, values):
    """{"text": ...}, or {"error": ...} with the message where the template or what is undefined in it is at fault, else
    None."""
    try:
        return {"text": chat._cached_compile_jinja_template(text).render(**values)}
    except Exception as error:  # whatever Python raises is an error of the template
        known = type(error).__name__ in ("TemplateError", "UndefinedError")
        return {"error": str(error) if known else None}


def write(name, head, cases):
    with open(os.path.join(FOLDER, name), "w") as file:
        file.write("{" + head + '"cases": [\n' + ",\n".join(json.dumps(case) for case in cases) + "\n]}\n")
    print(name + ":", len(cases), "cases,", sum("error" in case for case in cases), "of them errors")


def whole_templates():
    for name in sorted(os.listdir(FOLDER)):
        if name.endswith(".jinja"):
            with open(os.path.join(FOLDER, name), newline="") as file:
                text = file.read()
            for index, values in enumerate(CONVERSATIONS):
                yield {"template": name, "variables": index, **render(text, values)}


def constructs():
    """constructs.txt: a line a template, in which \\n is a line end; a line with # starts a group of them."""
    group = None
    with open(os.path.join(FOLDER, "constructs.txt"), encoding="utf-8") as file:
        for line in file:
            if line.startswith("# "):
                group = line[2:].strip()
            elif line.strip():
                text = line.rstrip("\n").replace("\\n", "\n")
                yield {"group": group, "template": text, **render(text, VALUES)}


def main():
    fix_the_date()
    write("golden.json", '"variables": [\n' + ",\n".join(json.dumps(v) for v in CONVERSATIONS) + "\n], ",
          list(whole_templates()))
    write("constructs.json", '"variables": ' + json.dumps(VALUES) + ",\n", list(constructs()))
    write("scopes.json", '"variables": ' + json.dumps(template_scopes.VARIABLES) + ",\n",
          [{"template": template_scopes.template(seed), **render(template_scopes.template(seed),
                                                                 template_scopes.VARIABLES)} for seed in range(SCOPES)])


if __name__ == "__main__":
    main()
