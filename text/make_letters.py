"""Writes text/letters_tables.h: what Python's str knows of every character.

    python3 text/make_letters.py

The tables are those of the Python that runs this; its Unicode version is noted in the file. Python 3.11 has Unicode 14.
"""

import os
import sys
import unicodedata

PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "letters_tables.h")
FLAGS = ["ALPHA", "DECIMAL", "DIGIT", "NUMERIC", "LOWER", "UPPER", "TITLE", "PRINTABLE", "CASED", "IGNORABLE"]
MAPPINGS = [("upper", str.upper), ("lower", str.lower), ("title", str.title), ("fold", str.casefold)]
CHARACTERS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]


def flags(c):
    s = chr(c)
    title = unicodedata.category(s) == "Lt"
    cased = s.islower() or s.isupper() or title
    # Not told by any function: what lower() skips when it looks whether a sigma ends a word.
    ignorable = ("A\u03a3" + s).lower()[1] == "\u03c2" if cased else ("A\u03a3" + s + "A").lower()[1] == "\u03c3"
    each = [s.isalpha(), s.isdecimal(), s.isdigit(), s.isnumeric(), s.islower(), s.isupper(), title, s.isprintable(),
            cased, ignorable]
    return sum(bool(is_set) << bit for bit, is_set in enumerate(each))


def runs(pairs):
    """(first, count, step, delta) of runs of characters with the same distance to their image."""
    out = []
    for c, image in pairs:
        delta = image - c
        if out and out[-1][3] == delta:
            first, count, step, _ = out[-1]
            last = first + (count - 1) * step
            if c - last == (step if count > 1 else c - last) and c - last <= 2:
                out[-1] = (first, count + 1, c - last, delta)
                continue
        out.append((c, 1, 1, delta))
    return out


def lines(items, width=120):
    text, line = "", "   "
    for item in items:
        if len(line) + len(item) + 2 > width:
            text, line = text + line + "\n", "   "
        line += " " + item + ","
    return text + line + "\n"


def main():
    out = ["/* Written by text/make_letters.py from the tables of Python %d.%d, Unicode %s; do not edit.\n"
           " * Private to text/letters.c. */\n"
           % (*sys.version_info[:2], unicodedata.unidata_version), "/* clang-format off */\n"]
    changes, before = [], None
    for c in CHARACTERS:
        now = flags(c)
        if now != before:
            changes.append("0x%x" % (c << len(FLAGS) | now))
            before = now
    out.append("/* Where the flags of characters change: first << %d | flags. */\n"
               "static const uint32_t kFlags[] = {\n%s};\n" % (len(FLAGS), lines(changes)))
    for name, function in MAPPINGS:
        simple, several = [], []
        for c in CHARACTERS:
            image = function(chr(c))
            if len(image) > 1:
                several.append([c] + [ord(i) for i in image] + [0] * (3 - len(image)))
            elif image != chr(c):
                simple.append((c, ord(image)))
        out.append("static const mk_case_run k%sRuns[] = {\n%s};\n" % (name.capitalize(),
            lines("{0x%x, %d, %d, %d}" % r for r in runs(simple))))
        out.append("static const mk_case_special k%sSpecials[] = {\n%s};\n" % (
            name.capitalize(), lines("{0x%x, {0x%x, 0x%x, 0x%x}}" % tuple(s) for s in several)
            if several else "    {0, {0, 0, 0}},\n"))
    with open(PATH, "w") as file:
        file.write("".join(out))
    print(PATH, os.path.getsize(PATH), "bytes")


if __name__ == "__main__":
    main()
