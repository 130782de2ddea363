"""Checks the project's pages: line width, sentence length, page size, links and anchors.

    pages.py              every page that git knows
    pages.py PAGE...      these pages
    pages.py --self-test  the checks themselves, on made-up pages

Prose is paragraphs and list items. Code blocks, tables, headings and HTML are not prose, but their links are checked too.
"""

import argparse
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
COLUMNS_MAX = 100
SENTENCE_WORDS_MAX = 35
SENTENCE_WORDS_MEAN_MAX = 20
# Lines that a page may have. A page without a bound is as long as its task needs.
LINES_MAX = {
    "README.md": 200,
    "CHANGELOG.md": 120,
    "CONTRIBUTING.md": 80,
    "SECURITY.md": 80,
    "examples/README.md": 60,
    "host/ARCHITECTURE.md": 350,
    "tests/README.md": 150,
    "tests/benchmarks.md": 300,
}

FENCE = re.compile(r"^\s*(```+|~~~+)")
ITEM = re.compile(r"^\s*(?:[-*+]|\d+[.)])\s+")
# A sentence ends with its mark, maybe a closing bracket or quote, and then space and the beginning of another.
SENTENCE_END = re.compile(r"(?<=[.!?])[)\]\"'*_]*\s+(?=[\"'(\[*_`]*[A-Z0-9`])")
# These end with a full stop inside a sentence.
ABBREVIATION = re.compile(r"\b(e\.g|i\.e|etc|vs|cf|Fig|No|approx|al)\.")
LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^)\s]+)(?:\s+\"[^\"]*\")?\)")
HTML_LINK = re.compile(r"<(?:a|img|source)\b[^>]*?\b(?:href|src|srcset)=\"([^\"]+)\"")


class Page:
    """A page cut into what is checked: paragraphs with their line numbers, headings, and lines outside code."""

    def __init__(self, text):
        self.lines = text.splitlines()
        self.paragraphs = []  # (number of the first line, lines)
        self.headings = []
        self.outside_code = []  # (number, line)
        paragraph = None
        fence = None
        for number, line in enumerate(self.lines, 1):
            mark = FENCE.match(line)
            if fence or mark:
                paragraph = None
                if not fence:
                    fence = mark.group(1)
                elif line.strip().startswith(fence) and not line.strip().strip(fence[0]):
                    fence = None
                continue
            self.outside_code.append((number, line))
            stripped = line.strip()
            if stripped.startswith("#"):
                self.headings.append(stripped.lstrip("#").strip())
                paragraph = None
            elif not stripped or stripped.startswith(("|", "<", "---")):
                paragraph = None
            else:
                item = ITEM.match(line)
                if paragraph is None or item:
                    paragraph = (number, [])
                    self.paragraphs.append(paragraph)
                paragraph[1].append(line[item.end() :] if item else stripped)

    def anchors(self):
        """The anchors that GitHub makes of the headings."""
        found = set()
        for heading in self.headings:
            plain = LINK.sub(lambda link: link.group(0)[1:].split("](")[0], heading)
            slug = re.sub(r"[^\w\- ]", "", plain.lower().replace("`", "")).replace(" ", "-")
            candidate, again = slug, 0
            while candidate in found:
                again += 1
                candidate = f"{slug}-{again}"
            found.add(candidate)
        for _, line in self.outside_code:
            found.update(re.findall(r"\b(?:id|name)=\"([^\"]+)\"", line))
        return found


def sentences(paragraph):
    """The sentences of a paragraph's lines. A span of code is one word, and so is a link's target none."""
    text = " ".join(line.strip() for line in paragraph)
    text = re.sub(r"`[^`]*`", "Code", text)
    text = LINK.sub(lambda link: link.group(0).split("](")[0].lstrip("!["), text)
    text = ABBREVIATION.sub(r"\1", text)
    return [sentence for sentence in SENTENCE_END.split(text) if re.search(r"\w", sentence)]


def words(sentence):
    return len([word for word in sentence.split() if re.search(r"\w", word)])


def faults_of(name, text, exists=None, anchors_of=None):
    """What is wrong with a page, a line of text each. `exists` and `anchors_of` say what links lead to."""
    page = Page(text)
    found = []
    most = LINES_MAX.get(name)
    if most and len(page.lines) > most:
        found.append(f"{name}: {len(page.lines)} lines, of at most {most}")
    lengths = []
    for first, paragraph in page.paragraphs:
        for offset, line in enumerate(paragraph):
            whole = page.lines[first - 1 + offset]
            # A word that is too long by itself, such as an address, cannot be broken.
            if len(whole) > COLUMNS_MAX and " " in line.strip():
                found.append(f"{name}:{first + offset}: {len(whole)} columns, of at most {COLUMNS_MAX}")
        for sentence in sentences(paragraph):
            lengths.append(words(sentence))
            if lengths[-1] > SENTENCE_WORDS_MAX:
                found.append(f"{name}:{first}: a sentence of {lengths[-1]} words, of at most {SENTENCE_WORDS_MAX}: {sentence[:70]}…")
    for number, line in page.outside_code:
        if not line.strip().startswith("|"):
            continue
        for cell in line.strip().strip("|").split("|"):
            for sentence in sentences([cell]):
                if words(sentence) > SENTENCE_WORDS_MAX:
                    found.append(f"{name}:{number}: a sentence of {words(sentence)} words in a table: {sentence.strip()[:70]}…")
    mean = sum(lengths) / len(lengths) if lengths else 0
    if mean > SENTENCE_WORDS_MEAN_MAX:
        found.append(f"{name}: sentences have {mean:.1f} words on average, of at most {SENTENCE_WORDS_MEAN_MAX}")
    if exists:
        for number, line in page.outside_code:
            line = re.sub(r"`[^`]*`", lambda code: re.sub(r"[()\[\]]", "", code.group(0)), line)
            for target in LINK.findall(line) + HTML_LINK.findall(line):
                if re.match(r"[a-z]+:", target):
                    continue
                path, _, anchor = target.partition("#")
                if path and not exists(name, path):
                    found.append(f"{name}:{number}: a link to `{path}`, which is not there")
                elif anchor and (not path or path.endswith(".md")) and anchor not in anchors_of(name, path):
                    found.append(f"{name}:{number}: a link to `{target}`: the page has no such anchor")
    return found


def target_of(name, path):
    return (ROOT / name).parent / path if path else ROOT / name


def check(names):
    known = set(subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n"))

    def exists(name, path):
        # What git ignores, or what lies outside, is not there for a reader of the repository.
        target = target_of(name, path).resolve()
        if not target.is_relative_to(ROOT):
            return False
        inside = target.relative_to(ROOT).as_posix()
        return inside in known if target.is_file() else any(file.startswith(f"{inside}/") for file in known)

    def anchors_of(name, path):
        return Page(target_of(name, path).read_text(encoding="utf-8")).anchors()

    pages = names or sorted(name for name in known if name.endswith(".md") and (ROOT / name).is_file())
    found = []
    for name in pages:
        found += faults_of(name, (ROOT / name).read_text(encoding="utf-8"), exists, anchors_of)
    for name in LINES_MAX:
        if not names and not (ROOT / name).is_file():
            found.append(f"{name} is missing")
    return pages, found


def self_test():
    """Each rule is seen to fail on a page that breaks it, and the good page passes."""
    good = "# Title\n\nA short sentence. Another one, see [the title](#title).\n\n```sh\n" + "x" * 200 + "\n```\n"
    cases = {
        "a long line": "word " * 30,
        "a long sentence": "\n".join(["one two three four five six"] * 6),
        "a long mean": "\n\n".join("\n".join(["word " * 8] * 3) for _ in range(3)),
        "a long cell": "|a|\n|-|\n|" + "word " * 36 + "|",
        "no such file": "[a](missing.md)",
        "no such anchor": "[a](#missing)",
        "a file in HTML": '<img src="missing.svg">',
    }

    def faults(name, text):
        return faults_of(name, text, lambda _, path: path == "there.md", lambda *_: Page(text).anchors())

    assert not faults("page.md", good), faults("page.md", good)
    for rule, text in cases.items():
        assert faults("page.md", text), f"a page with {rule} passes"
    assert faults("SECURITY.md", "a\n\n" * 50), "a page that is too long passes"
    assert Page("# A `b` c\n# A `b` c\n").anchors() == {"a-b-c", "a-b-c-1"}
    assert sentences(["It ends here. `x` begins, e.g. here. Then [a link](b.md) ends."]) == ["It ends here.", "Code begins, e.g here.", "Then a link ends."]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*")
    parser.add_argument("--self-test", action="store_true")
    options = parser.parse_args()
    if options.self_test:
        self_test()
        print("the checks of pages find what they should")
        return
    pages, found = check(options.pages)
    print("\n".join(found), file=sys.stderr)
    if found:
        sys.exit(f"{len(found)} faults in {len(pages)} pages")
    print(f"{len(pages)} pages")


if __name__ == "__main__":
    main()
