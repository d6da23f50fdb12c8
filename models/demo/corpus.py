#!/usr/bin/env python3
"""Builds the demo model's corpus from prose that Debian packages carry.

    corpus.py --work DIR --out DIR

Downloads the packages of SOURCES with `apt-get download` into DIR/debs, unpacks each with `dpkg -x` (nothing is
installed), converts the files to plain paragraphs, drops paragraphs that are not prose, drops every paragraph that
occurred before anywhere in the corpus, and splits by document. Needs Debian's apt and dpkg and the standard library.

Writes train.txt and heldout.txt (UTF-8, paragraphs divided by an empty line, documents by a line holding a single
form feed) and sources.tsv (package, version, documents, bytes kept). A document is one file: a page, a chapter, a
manual page; a dictionary is cut into entries and a game's story into scenes.
"""

import argparse
import glob
import gzip
import hashlib
import html
import html.parser
import os
import re
import subprocess
import xml.etree.ElementTree

HELD_OUT_ONE_IN = 40

# package, converter, glob patterns under the unpacked package
SOURCES = [
    ("anarchism", "html", ["usr/share/doc/anarchism/html/*.html"]),
    ("debian-handbook", "html", ["usr/share/doc/debian-handbook/html/en-US/*.html"]),
    ("debian-reference-en", "html", ["usr/share/debian-reference/*.en.html"]),
    ("developers-reference", "html", ["usr/share/doc/developers-reference/*.html",
                                      "usr/share/developers-reference/*.html"]),
    ("debian-policy", "html", ["usr/share/doc/debian-policy/policy.html/*.html"]),
    ("debian-kernel-handbook", "html", ["usr/share/doc/kernel-handbook/*.html",
                                        "usr/share/doc/debian-kernel-handbook/**/*.html"]),
    ("harden-doc", "html", ["usr/share/doc/harden-doc/html/en-US/*.html"]),
    ("maint-guide", "html", ["usr/share/doc/maint-guide/html/*.en.html", "usr/share/doc/maint-guide/*.en.html"]),
    ("gnome-user-docs", "mallard", ["usr/share/help/C/**/*.page"]),
    ("libreoffice-help-en-us", "html", ["usr/share/libreoffice/help/en-US/text/**/*.html"]),
    ("perl-doc", "pod", ["usr/share/perl/*/pod/*.pod"]),
    ("python3.11-doc", "html", ["usr/share/doc/python3.11/html/**/*.html"]),
    ("python-django-doc", "html", ["usr/share/doc/python-django-doc/html/**/*.html"]),
    ("postgresql-doc-15", "html", ["usr/share/doc/postgresql-doc-15/html/*.html"]),
    ("apache2-doc", "html", ["usr/share/doc/apache2-doc/manual/en/**/*.html"]),
    ("rust-doc", "html", ["usr/share/doc/rust-doc/html/%s/**/*.html" % book for book in
                          ("book", "nomicon", "reference", "rust-by-example", "edition-guide", "embedded-book",
                           "cargo", "rustc", "unstable-book", "std")]),
    ("r-doc-html", "html", ["usr/share/R/doc/manual/*.html"]),
    ("sqlite3-doc", "html", ["usr/share/doc/sqlite3/**/*.html", "usr/share/doc/sqlite3-doc/**/*.html"]),
    ("erlang-doc", "html", ["usr/share/doc/erlang-doc/**/*.html"]),
    ("python-sqlalchemy-doc", "html", ["usr/share/doc/python-sqlalchemy-doc/html/**/*.html"]),
    ("swi-prolog-doc", "html", ["usr/share/swi-prolog/doc/**/*.html"]),
    ("racket-doc", "html", ["usr/share/doc/racket/%s/**/*.html" % book for book in
                            ("guide", "quick", "more", "continue", "web-server", "scribble", "style", "plot", "eopl",
                             "how-to-htdp", "typed-racket-guide", "foreign", "redex", "slideshow", "drracket")]),
    ("cmake-doc", "html", ["usr/share/doc/cmake-data/html/**/*.html"]),
    ("exim4-doc-html", "html", ["usr/share/doc/exim4-doc-html/spec_html/*.html"]),
    ("mercurial-common", "text", ["usr/lib/python3/dist-packages/mercurial/helptext/*.txt"]),
    ("dict-jargon", "jargon", ["usr/share/dictd/jargon.dict.dz"]),
    ("crawl-common", "crawl", ["usr/share/crawl/dat/descript/*.txt", "usr/share/crawl/dat/database/FAQ.txt"]),
    ("endless-sky-data", "endless_sky", ["usr/share/games/endless-sky/data/**/*.txt"]),
    ("naev-data", "naev", ["usr/share/games/naev/dat/**/*.lua", "usr/share/games/naev/dat/**/*.xml",
                           "usr/share/naev/dat/**/*.lua", "usr/share/naev/dat/**/*.xml"]),
    ("widelands-data", "naev", ["usr/share/games/widelands/data/campaigns/**/*.lua",
                                "usr/share/games/widelands/data/scripting/**/*.lua",
                                "usr/share/games/widelands/data/tribes/**/*.lua"]),
    ("wesnoth-1.16-data", "wesnoth", ["usr/share/games/wesnoth/1.16/data/**/*.cfg"]),
] + [("wesnoth-1.16-" + name, "wesnoth", ["usr/share/games/wesnoth/1.16/data/campaigns/**/*.cfg"]) for name in
     "did dm dw ei httt l low nr sof sota sotbe thot trow tsg ttb utbs".split()]

# Lists, indexes and release notes: regular files of the patterns above that hold no running text.
SKIP_FILE = re.compile(r"(genindex|contents|search|copyright|license|perl5\d+delta|perltoc|changelog|whatsnew/changelog"
                       r"|bookindex|/releases/|/notes\.html|print\.html|/ru/|quotes\.txt)", re.I)


def collapse(text):
    return re.sub(r"\s+", " ", text).strip()


class Paragraphs(html.parser.HTMLParser):
    """Collects the text of paragraph-like elements; code, tables and navigation are left out."""

    BLOCKS = {"p", "li", "dd", "dt", "div", "section", "blockquote", "h1", "h2", "h3", "h4", "h5", "h6", "td", "tr",
              "ul", "ol", "dl", "br", "body", "article", "main", "details", "summary"}
    DROPPED = {"pre", "script", "style", "table", "nav", "head", "footer", "header", "form", "button", "svg", "h1",
               "h2", "h3", "h4", "h5", "h6", "dt"}

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.found, self.parts, self.dropped = [], [], []

    def flush(self):
        text = collapse("".join(self.parts))
        self.parts = []
        if text:
            self.found.append(text)

    def handle_starttag(self, tag, attributes):
        if tag in self.BLOCKS and not (tag == "br" and self.parts):
            self.flush()
        elif tag == "br":
            self.parts.append(" ")
        if tag in self.DROPPED:
            self.dropped.append(tag)

    def handle_endtag(self, tag):
        if tag in self.BLOCKS:
            self.flush()
        if tag in self.dropped:
            while self.dropped.pop() != tag:
                pass

    def handle_data(self, data):
        if not self.dropped:
            self.parts.append(data)


def from_html(data):
    parser = Paragraphs()
    parser.feed(data)
    parser.close()
    parser.flush()
    return [parser.found]


def from_mallard(data):
    root = xml.etree.ElementTree.fromstring(data)
    return [[collapse("".join(p.itertext())) for p in root.iter("{http://projectmallard.org/1.0/}p")]]


def from_text(data):
    return [[collapse(p) for p in re.split(r"\n\s*\n", data) if not p.startswith("  ")]]


def from_pod(data):
    data = re.sub(r"\n=begin.*?\n=end[^\n]*", "", data, flags=re.S)
    found = []
    for block in re.split(r"\n\s*\n", data):
        if block[:1].isspace() or block.startswith("="):
            continue
        for _ in range(4):
            block = re.sub(r"[XZ]<[^<>]*>", "", block)
            block = re.sub(r"L<(?:[^<>|]*\|)?([^<>]*)>", lambda m: m.group(1).strip('"/'), block)
            block = re.sub(r"[BCFISU]<<+ (.*?) >>+", r"\1", block)
            block = re.sub(r"[BCFISU]<([^<>]*)>", r"\1", block)
        block = block.replace("E<lt>", "<").replace("E<gt>", ">")
        found.append(collapse(block))
    return [found]


def from_jargon(data):
    documents = []
    for entry in re.split(r"\n(?=\S)", data):
        head, _, body = entry.partition("\n")
        paragraphs = [collapse(p) for p in re.split(r"\n\s*\n", body)]
        paragraphs = [re.sub(r"[{}]", "", p) for p in paragraphs]
        paragraphs = [re.sub(r"^\[[^\]]*\] ", "", p) for p in paragraphs if len(p) > 60]
        if paragraphs and len(head) < 40:
            paragraphs[0] = head.strip() + ": " + paragraphs[0]
            documents.append(paragraphs)
    return documents


def from_crawl(data):
    documents = []
    data = re.sub(r"(?m)^#.*\n", "", data)
    for entry in data.split("%%%%"):
        _, _, body = entry.strip().partition("\n")
        if "{{" in body:
            continue
        body = re.sub(r"</?[a-z]+>", "", body)
        documents.append([collapse(p) for p in re.split(r"\n\s*\n", body)])
    return documents


STAND_INS = {
    "<first>": ["Mara", "Tomas", "Ilse", "Rowan"], "<last>": ["Venn", "Harrow", "Okafor", "Lindt"],
    "<ship>": ["the Heron", "the Long Road", "the Kestrel"],
    "<planet>": ["Farpoint", "Greenrock", "New Boston", "Harmony"], "<origin>": ["Farpoint", "Hestia"],
    "<destination>": ["Greenrock", "Arden", "Clark"], "<stopovers>": ["the moons of Arden"],
    "<system>": ["Rigel", "Vega"], "<commodity>": ["machine parts", "medicine", "food"],
    "<cargo>": ["machine parts", "medicine"], "<tons>": ["twenty tons"], "<bunks>": ["three"],
    "<payment>": ["ten thousand credits", "forty thousand credits"], "<date>": ["the end of the month"],
    "<day>": ["the end of the month"], "<npc>": ["the Grey Gull"], "<passengers>": ["three passengers"],
}


def fill_in(text):
    def stand_in(match):
        words = STAND_INS.get(match.group(0))
        return words[len(text) % len(words)] if words else match.group(0)
    return re.sub(r"<[a-z]+>", stand_in, text)


def from_endless_sky(data):
    documents = []
    for block in re.split(r"\n(?=\w)", data):
        lines = re.findall(r"(?m)^\s*(?:description |spaceport |log (?:\"[^\"]*\" )*|dialog )?`\t?(.*?)`\s*$", block)
        documents.append([fill_in(collapse(line)) for line in lines])
    return documents


def from_wesnoth(data):
    documents, speaker = [[]], ""
    pattern = (r"^\s*(speaker|story|message|description)\s*=\s*(?:\w+\s*\+\s*)?"
               r"((?:_\s*)?\"(?:[^\"]|\"\")*\"(?:\s*\+\s*_?\s*\"(?:[^\"]|\"\")*\")*|\S+)")
    for match in re.finditer(pattern, data, flags=re.M):
        key, value = match.groups()
        if key == "speaker":
            speaker = value.strip('"')
            continue
        if not value.startswith("_"):
            continue
        text = "".join(re.findall(r"\"((?:[^\"]|\"\")*)\"", value)).replace('""', '"')
        text = re.sub(r"</?[a-z][^<>]*>", "", text)
        text = re.sub(r"^[a-z ]+\^", "", text)
        for paragraph in re.split(r"\n\s*\n", text):
            paragraph = collapse(paragraph)
            if key == "message" and re.match(r"^[A-Z][a-z]+(?: [A-Z][a-z]+)?$", speaker):
                paragraph = speaker + ": " + paragraph
            documents[0].append(paragraph)
        speaker = ""
    return documents


def from_naev(data):
    if data.lstrip().startswith("<?xml"):
        found = re.findall(r"<(?:description|bar|general|lore|welcome)>(.*?)</", data, flags=re.S)
        return [[collapse(html.unescape(p)) for text in found for p in re.split(r"\n\s*\n", text)]]
    data = re.sub(r"--\[\[.*?\]\]", "", data, flags=re.S)
    found = []
    for match in re.finditer(r"_\(\s*(?:\[\[(.*?)\]\]|\"((?:[^\"\\]|\\.)*)\")", data, flags=re.S):
        text = match.group(1) or match.group(2) or ""
        text = text.replace('\\"', '"').replace("\\n", "\n")
        text = re.sub(r"#[a-z0!]", "", text)
        found += [collapse(p) for p in re.split(r"\n\s*\n", text)]
    return [[p for p in found if "%" not in p and "{" not in p]]


CONVERTERS = {"html": from_html, "mallard": from_mallard, "text": from_text, "pod": from_pod, "jargon": from_jargon,
              "crawl": from_crawl, "endless_sky": from_endless_sky, "wesnoth": from_wesnoth, "naev": from_naev}
STORIES = {"crawl", "endless_sky", "wesnoth", "naev"}

PLAIN = str.maketrans({"\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"', "\u2013": "-", "\u2014": " - ",
                       "\u2026": "...", "\u00a0": " ", "\u2010": "-", "\u2011": "-", "\u2212": "-", "\u00b6": "",
                       "\u200b": "", "\u00ad": "", "`": "'"})
COMMON = {"the", "a", "an", "of", "to", "and", "is", "in", "you", "that", "it", "for", "i", "we", "be", "are", "this",
          "your", "he", "she", "they", "not", "with", "if"}


def tidy(text):
    text = text.translate(PLAIN).replace("''", '"')
    text = re.sub(r"\[(?:\d+|Note:?[^\]]*)\]", "", text)
    text = re.sub(r"\s+([,.;:!?])(?=\s|$)", r"\1", text)
    return collapse(text)


def is_prose(text, story):
    """True for a paragraph of whole English sentences. Stories may be short; code-like characters are rare."""
    if len(text) < (30 if story else 80) or len(text) > 4000:
        return False
    if not re.match(r"[A-Z\"'(]|[a-z][\w -]{1,30}: ", text) or not re.search(r"[.!?][\"')]*$", text):
        return False
    letters = sum(c.isalpha() or c == " " for c in text)
    code = sum(c in "<>{}[]=|\\/@#$%^*~_&+" for c in text)
    beyond = sum(ord(c) > 126 for c in text)
    if letters < 0.91 * len(text) or code > 0.008 * len(text) or beyond > 0.01 * len(text):
        return False
    words = re.findall(r"[a-z']+", text.lower())
    common = sum(w in COMMON for w in words)
    capitals = sum(w.isupper() and len(w) > 1 for w in text.split())
    return common >= (0.12 if story else 0.2) * len(words) and capitals <= 0.08 * len(text.split())


def read(path):
    data = open(path, "rb").read()
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    return data.decode("utf-8", "replace")


def unpack(package, work):
    """Returns (directory, version); downloads and unpacks where that has not been done."""
    debs, tree = os.path.join(work, "debs"), os.path.join(work, "x", package)
    os.makedirs(debs, exist_ok=True)
    if not glob.glob(os.path.join(debs, package + "_*.deb")):
        subprocess.run(["apt-get", "download", package], cwd=debs, check=True)
    deb = sorted(glob.glob(os.path.join(debs, package + "_*.deb")))[-1]
    if not os.path.isdir(tree):
        subprocess.run(["dpkg", "-x", deb, tree], check=True)
    version = subprocess.run(["dpkg-deb", "-f", deb, "Version"], check=True, capture_output=True, text=True)
    return tree, version.stdout.strip()


def main():
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("--work", required=True, help="directory for packages and unpacked trees")
    arguments.add_argument("--out", required=True, help="directory for train.txt, heldout.txt, sources.tsv")
    options = arguments.parse_args()
    os.makedirs(options.out, exist_ok=True)

    seen, rows = set(), []
    parts = {"train": [], "heldout": []}
    for package, kind, patterns in SOURCES:
        tree, version = unpack(package, options.work)
        paths = sorted({p for pattern in patterns for p in glob.glob(os.path.join(tree, pattern), recursive=True)
                        if os.path.isfile(p)})
        count, kept = 0, 0
        for path in paths:
            name = os.path.relpath(path, tree)
            if SKIP_FILE.search("/" + name):
                continue
            for index, paragraphs in enumerate(CONVERTERS[kind](read(path))):
                document = []
                for paragraph in map(tidy, paragraphs):
                    # Two paragraphs that differ in figures, case or punctuation alone count as one.
                    key = hashlib.md5(re.sub(r"[^a-z]+", " ", paragraph.lower()).encode()).digest()
                    if is_prose(paragraph, kind in STORIES) and key not in seen:
                        seen.add(key)
                        document.append(paragraph)
                text = "\n\n".join(document)
                if len(text) < 200:
                    continue
                count += 1
                kept += len(text.encode())
                digest = hashlib.sha256(("%s/%s#%d" % (package, name, index)).encode()).digest()
                held = int.from_bytes(digest[:4], "big") % HELD_OUT_ONE_IN == 0
                parts["heldout" if held else "train"].append(text)
        rows.append((package, version, count, kept))
        print("%-26s %-28s %6d documents %9d bytes" % rows[-1], flush=True)

    for part, documents in parts.items():
        with open(os.path.join(options.out, part + ".txt"), "w", encoding="utf-8") as out:
            out.write("\n\f\n".join(documents) + "\n")
        print(part, len(documents), "documents", sum(len(d.encode()) for d in documents), "bytes")
    with open(os.path.join(options.out, "sources.tsv"), "w", encoding="utf-8") as out:
        out.writelines("%s\t%s\t%d\t%d\n" % row for row in rows)


if __name__ == "__main__":
    main()
