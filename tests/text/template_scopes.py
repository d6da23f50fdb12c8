"""Random templates that are about scopes: who sees which value of a variable, and when.

make_template_golden.py takes the first few hundred; to compare many more with jinja2, see compare_templates.py
--scopes.
"""

import random

NAMES = ["a", "b", "c", "x", "loop", "m", "caller"]
VARIABLES = {"a": "A", "x": "X", "items": [1, 2], "rows": [{"v": 1, "k": [{"v": 2, "k": []}]}, {"v": 3, "k": []}]}


class Writer:
    def __init__(self, seed):
        self.random = random.Random(seed)
        self.macros = []
        self.in_loop = self.in_recursive = False

    def name(self, to_assign=False):
        names = [n for n in NAMES if not (to_assign and (n == "loop" or n == "m"))]
        return self.random.choice(names)

    def show(self):
        return "{{ %s }}," % self.name()

    def value(self):
        return self.random.choice(["1", "2", "'s'", self.name(True), "a", "x", "(b or 9)", "x ~ 'y'", "[a, b]", "ns.v"])

    def call(self):
        if not self.macros:
            return self.show()
        name = self.random.choice(self.macros)
        arguments = self.random.choice(["", "1", "a", "1, 2", "b=3", "*items", "**{'b': x}", "x, b=a"])
        return "{{ %s(%s) if %s is defined else '!' }}" % (name, arguments, name)

    def body(self, depth):
        return "".join(self.statement(depth) for _ in range(self.random.randint(1, 4)))

    def loop(self, depth):
        outer = self.in_loop, self.in_recursive
        self.in_recursive = self.random.random() < 0.2
        self.in_loop = True
        test = self.random.choice(["", "", " if %s != 2" % self.name(True), " if (x is defined)", " if a"])
        target = self.random.choice(["a", "b", "i", "i", "x"])
        items = "rows" if self.in_recursive else self.random.choice(["items", "[1]", "[]", "items + [b]", "rows"])
        body = self.body(depth - 1)
        if self.in_recursive:
            body += "{%% if %s is mapping and loop.depth < 3 %%}({{ loop(%s.k) }}){%% endif %%}" % (target, target)
        text = "{%% for %s in %s%s%s %%}%s" % (target, items, test, " recursive" if self.in_recursive else "", body)
        self.in_loop, self.in_recursive = outer
        if self.random.random() < 0.3:
            text += "{% else %}" + self.body(depth - 1)
        return text + "{% endfor %}"

    def macro(self, depth):
        name = self.random.choice(["m", "f", "g"])
        parameters = self.random.choice(["", "a", "a, b=a", "b=b", "x=a, b=x", "a=1, c=caller", "a, caller=none"])
        outer, self.in_loop, before = self.in_loop, False, list(self.macros)
        self.macros = []  # no recursion
        body = self.body(depth - 1) + self.random.choice(["", "{{ caller() if caller else '' }}", "{{ varargs }}",
                                                          "{{ kwargs }}"])
        self.in_loop, self.macros = outer, before + [name]
        return "{%% macro %s(%s) %%}%s{%% endmacro %%}" % (name, parameters, body)

    def call_block(self, depth):
        if not self.macros:
            return self.show()
        outer, self.in_loop = self.in_loop, False
        text = "{%% call%s %s(%s) %%}%s{%% endcall %%}" % (
            self.random.choice(["", "", "(b)", "(c=a)"]), self.random.choice(self.macros),
            self.random.choice(["", "1", "a"]), self.body(depth - 1))
        self.in_loop = outer
        return text

    def branch(self, depth):
        text = "{%% if %s %%}%s" % (self.random.choice(["a", "b is defined", "false", "c", "x == 1", "true"]),
                                    self.body(depth - 1))
        for _ in range(self.random.choice([0, 0, 1, 2])):
            text += "{%% elif %s %%}%s" % (self.random.choice(["a", "true", "c"]), self.body(depth - 1))
        if self.random.random() < 0.4:
            text += "{% else %}" + self.body(depth - 1)
        return text + "{% endif %}"

    def statement(self, depth):
        pick = self.random.random()
        if depth == 0 or pick < 0.3:
            return self.show()
        if pick < 0.47:
            return "{%% set %s = %s %%}" % (self.name(True), self.value())
        if pick < 0.5:
            return self.random.choice(["{%% set ns.v = %s %%}" % self.value(), "{% set b, c = [a, x] %}"])
        if pick < 0.58:
            return self.branch(depth)
        if pick < 0.7:
            return self.loop(depth)
        if pick < 0.76:
            return self.macro(depth)
        if pick < 0.83:
            return self.call()
        if pick < 0.87:
            return self.call_block(depth)
        if pick < 0.91:
            return "{%% with %s = %s, c = %s %%}%s{%% endwith %%}" % (self.name(True), self.value(), self.value(),
                                                                      self.body(depth - 1))
        if pick < 0.94:
            return "{%% set %s %%}%s{%% endset %%}" % (self.name(True), self.body(depth - 1))
        if pick < 0.96:
            return "{%% filter %s %%}%s{%% endfilter %%}" % (self.random.choice(["upper", "replace('A', b or 'z')",
                "trim|lower"]), self.body(depth - 1))
        if pick < 0.98 and self.in_loop:
            return "{%% if %s %%}{%% %s %%}{%% endif %%}" % (self.random.choice(["a == 2", "x", "c"]),
                                                             self.random.choice(["break", "continue"]))
        outer, self.in_loop = self.in_loop, False
        text = "{% generation %}" + self.body(depth - 1) + "{% endgeneration %}"
        self.in_loop = outer
        return text


def template(seed):
    writer = Writer(seed)
    return "{% set ns = namespace(v=0) %}" + "".join(writer.statement(3) + "." for _ in range(5))
