"""Compares mkvm's rendering of chat templates with transformers': every template in some folders, with many
conversations.

    cmake --build build-ci --target mk_render_template
    python3 tests/text/compare_templates.py FOLDER...            # needs transformers and jinja2
    python3 tests/text/compare_templates.py --scopes 0 10000    # random templates of template_scopes.py, by their seeds

Templates are *.jinja and *.j2 files, what stands under a key with "template" in its name in *.json, and string
constants in *.py that look like one. The same text counts once. Prints a line per folder and what differs; exit code
1 when something does. The templates of others are not part of this repository: unpack packages that hold some, such
as llama-cpp-python, trl, axolotl, vllm, xinference.
"""

import argparse
import ast
import collections
import json
import os
import subprocess
import sys
import warnings

import make_template_golden as golden
import template_scopes

RENDERER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "build-ci", "mk_render_template")
turn, variables, PARALLEL = golden.turn, golden.variables, golden.PARALLEL


def call_text(name, arguments, **more):
    call = {"id": "call00001", "type": "function", "function": {"name": name, "arguments": arguments}}
    return turn("assistant", "", tool_calls=[call], **more)


CONTINUED = "CONTINUE_FINAL_MESSAGE_TAG "  # as apply_chat_template marks where an answer goes on
PARTS = [{"type": "text", "text": "Look: "}, {"type": "image", "image": "a.png"},
         {"type": "text", "text": "what is it?"}]
MORE = [
    variables(golden.SYSTEM, golden.ASK, golden.SAY, golden.ASK, enable_thinking=False),
    variables(golden.ASK, enable_thinking=True, thinking=True, reasoning_effort="high", add_vision_id=True),
    variables(golden.ASK, turn("assistant", "four", reasoning_content="2 and 2\n"), turn("user", "sure?")),
    variables(golden.ASK, turn("assistant", "four", thinking="2 and 2"), turn("user", "sure?"), generate=False),
    variables(golden.ASK, turn("assistant", [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "four"}]),
              turn("user", "sure?")),
    variables(turn("system", [{"type": "text", "text": "Be brief."}]), turn("user", PARTS)),
    variables(turn("developer", "Be brief."), turn("user", "Hi"), tools=[golden.WEATHER]),
    variables(golden.SYSTEM, turn("user", "Oslo?"), call_text("weather", '{"place": "Oslo"}'),
              turn("tool", "cold", tool_call_id="call00001", name="weather"), golden.SAY, turn("user", "And Rome?"),
              tools=[golden.WEATHER, golden.WEATHER]),
    variables(turn("user", "Oslo?"), call_text("weather", {"place": "Oslo", "days": 2}, reasoning_content="tools"),
              turn("tool", "cold", tool_call_id="call00001", name="weather"), tools=[golden.WEATHER]),
    variables(turn("user", "Oslo?"),
              turn("assistant", "",
                   tool_calls=[{"function": {"name": "f", "arguments": {"x": [1, {"y": None}], "z": 2.5}}},
                               {"function": {"name": "g", "arguments": {}}}]),
              turn("tool", [{"type": "text", "text": "cold"}], name="f"), turn("tool", '{"a": 1}', name="g"),
              tools=[{"name": "f", "parameters": {}}]),
    variables(turn("user", "Who?"), documents=[{"title": "T", "text": "D"}, {"title": "U", "contents": "E"}]),
    variables(turn("user", "Hi", name="Ann"), turn("assistant", "Hello", prefix=True), generate=False),
    variables(turn("user", "Straße ΑΣ"), turn("model", "x"), turn("user", ""),
              tokens={"bos_token": "", "eos_token": "</s>", "pad_token": "<pad>", "image_token": "<image>"}),
] + [
    variables(*messages, generate=generate, **more)
    for generate in (True, False)
    for messages, more in [
        ([golden.SYSTEM, golden.ASK], {"enable_thinking": True}),
        ([golden.ASK, turn("assistant", "<think>\n2+2\n</think>\n\nfour"), golden.ASK], {"enable_thinking": False}),
        ([turn("system", "Be brief. /no_think"), turn("user", "Hi /think")], {"xml_tools": [golden.WEATHER],
            "custom_instructions": "Rhyme."}),
        ([turn("system", "/system_override You rhyme."), turn("user", "Hi")], {"python_tools": ["def f(x): ..."],
            "enable_thinking": False}),
        ([golden.ASK, turn("assistant", "four" + CONTINUED)], {}),
        ([golden.SYSTEM, golden.ASK, turn("assistant", [{"type": "text", "text": "four" + CONTINUED}])], {}),
        ([turn("user", "Who?")], {"thinking": True, "documents": [{"doc_id": 1, "title": "T", "text": "D"}]}),
        ([golden.SYSTEM, turn("user", "Who?")],
         {"thinking": False, "controls": {"length": "short", "originality": "abstractive"},
          "documents": [{"text": "D"}]}),
        ([turn("user", "Who?")], {"controls": {"citations": True, "hallucinations": True}, "documents": [{"text": "D"}],
                                  "available_tools": [golden.WEATHER]}),
        ([turn("system", "Functions:", functions="[f]", tools="[g]"), turn("user", "f?"),
          turn("assistant", None, function_calls="f()"), turn("environment", "1")], {}),
        ([turn("user", "f and g?"), PARALLEL, turn("tool", "1", tool_call_id="call00001", name="f"),
          turn("tool", "2", tool_call_id="call00002", name="g"), golden.SAY], {"tools": [golden.WEATHER]}),
        ([turn("user", "f and g?"), PARALLEL, turn("tool", {"a": [1, "\u00e9<"]}, tool_call_id="call00001", name="f")],
         {"tools": [golden.WEATHER], "tools_in_user_message": False}),
        ([golden.ASK, golden.SAY, golden.ASK, turn("assistant", "four", reasoning_content="hm", tool_calls=[]),
          turn("tool_response", "x"), turn("user", "ok")], {"tools": []}),
        ([turn("user", [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "x"}},
                        {"type": "text", "text": "b"}]), golden.SAY, turn("user", [{"type": "text", "text": "c"}])],
                        {}),
    ]
]


def texts_of_json(value, key=""):
    if isinstance(value, dict):
        for name, item in value.items():
            yield from texts_of_json(item, name if isinstance(name, str) else "")
    elif isinstance(value, list):
        for item in value:
            yield from texts_of_json(item, key)
    elif isinstance(value, str) and "template" in key and is_template(value):
        yield value


def is_template(text):
    return "message" in text and "{%" in text and ("endfor" in text or "endif" in text)


def folded(node):
    """A string constant, also one that is put together with +; None otherwise."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = folded(node.left), folded(node.right)
        return None if left is None or right is None else left + right
    return None


def texts_of_python(source):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        stack = [ast.parse(source)]
    while stack:
        node = stack.pop()
        text = folded(node)
        if text is None:
            stack.extend(ast.iter_child_nodes(node))
        elif is_template(text):
            yield text


def texts_of_file(path):
    with open(path, encoding="utf-8", newline="") as file:
        if path.endswith((".jinja", ".j2", ".jinja2")):
            return [file.read()]
        if path.endswith(".json"):
            return list(texts_of_json(json.load(file)))
        return list(texts_of_python(file.read())) if path.endswith(".py") else []


def templates_in(folders):
    """(folder, path, text) of all that are different."""
    seen = set()
    for folder in folders:
        for root, _, names in sorted(os.walk(folder)):
            for name in sorted(names):
                path = os.path.join(root, name)
                try:
                    texts = texts_of_file(path) if os.path.getsize(path) < 1 << 26 else []
                except (ValueError, SyntaxError, RecursionError, OSError):
                    continue
                for text in texts:
                    if text not in seen:
                        seen.add(text)
                        yield folder, path, text


def render_here(process, text, all_variables):
    process.stdin.write(json.dumps({"template": text, "variables": all_variables}) + "\n")
    process.stdin.flush()
    return json.loads(process.stdout.readline())


def verdict(theirs, ours):
    if "text" in theirs and "text" in ours:
        return "equal" if theirs["text"] == ours["text"] else "DIFFERENT"
    if "error" in theirs and "error" in ours:
        return "both refuse"
    return "lacks" if "text" in theirs and "not supported" in ours["error"] else "DIFFERENT"


def report(path, index, text, theirs, ours):
    print("\n%s, conversation %s" % (path, index))
    if "text" in theirs and "text" in ours:
        at = next((i for i, (a, b) in enumerate(zip(theirs["text"], ours["text"])) if a != b),
                  min(len(theirs["text"]), len(ours["text"])))
        print("  from character %d on, transformers: %r\n  mkvm: %r" % (at, theirs["text"][at : at + 100],
            ours["text"][at : at + 100]))
    else:
        print("  transformers: %s\n  mkvm: %s" % (str(theirs)[:300], str(ours)[:300]))


def compare(sources, all_variables):
    process = subprocess.Popen([RENDERER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    counts = collections.defaultdict(collections.Counter)
    lacking, where = collections.Counter(), {}
    different = 0
    for folder, path, text in sources:
        ours = render_here(process, text, all_variables)
        verdicts = []
        for index, values in enumerate(all_variables):
            theirs = golden.render(text, values)
            verdicts.append(verdict(theirs, ours[index]))
            if verdicts[-1] == "lacks":
                what = ours[index]["error"].split(": ", 1)[-1]
                lacking[what] += 1
                where.setdefault(what, path)
            elif verdicts[-1] == "DIFFERENT":
                different += 1
                if different <= 20:
                    report(path, index, text, theirs, ours[index])
        counts[folder].update(verdicts)
        counts[folder]["templates"] += 1
        counts[folder]["templates without a difference"] += "DIFFERENT" not in verdicts and "lacks" not in verdicts
    process.stdin.close()
    columns = ["templates", "templates without a difference", "equal", "both refuse", "lacks", "DIFFERENT"]
    print("\n" + " | ".join(columns) + " | folder")
    total = collections.Counter()
    for folder in counts:
        total.update(counts[folder])
        print(" | ".join("%*d" % (len(c), counts[folder][c]) for c in columns) + " | " + folder)
    print(" | ".join("%*d" % (len(c), total[c]) for c in columns) + " | all")
    for what, count in lacking.most_common():
        print("lacks, %d renderings: %s (first in %s)" % (count, what, where[what]))
    return total["DIFFERENT"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folders", nargs="*")
    parser.add_argument("--scopes", nargs=2, type=int, metavar=("FIRST", "END"))
    options = parser.parse_args()
    golden.fix_the_date()
    if options.scopes:
        sources = (("scopes", "seed %d" % seed, template_scopes.template(seed)) for seed in range(*options.scopes))
        return compare(sources, [template_scopes.VARIABLES]) > 0
    return compare(templates_in(options.folders), golden.CONVERSATIONS + MORE) > 0


if __name__ == "__main__":
    sys.exit(main())
