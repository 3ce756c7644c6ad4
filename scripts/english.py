"""Check that docstrings, comments, names, errors and documents follow the project's rules for plain English.

Usage: python scripts/english.py PATH... (Python files, documents in Markdown, or folders of them)

Prints one line per finding, `file:line: rule: text`, and exits with 1 if there is any.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

RELATIVE = re.compile(
    r"^(What|Who|Whose|Whom|Where|Whether|Wherever|Whatever|Of|The same|Those|That which)\b"
)
LATER_RELATIVE = re.compile(r"(?:^|[.;:]\s+)((?:What|Who|Whatever|Whoever|Of those)\b[^?.:;]*)(?=[.:;]|$)")
NO_VERB = re.compile(
    r"^(The|A|An|All|Any|Both|Each|Every|Its?|No|None|One|Some|Two|Three|This|These|Their|They|There|"
    r"How|Which|When|Why|In|On|At|By|For|From|As|With|Without|Only|What|Whether|After|Before|Into|Since|"
    r"[A-Z]{2,}|Python|Columns|Rows|Runs|Values|Whole)\b"
)
ODD_WORDS = re.compile(
    r"\b(told|tells of|so many|so few|alike|besides|side by side|as well|thereof|whoever|nobody|"
    r"inside of|that which|without a word|collector of garbage)\b",
    re.IGNORECASE,
)
IRREGULAR = {
    "begun", "built", "done", "drawn", "dealt", "fed", "felt", "found", "given", "gone", "held", "kept",
    "known", "laid", "led", "lent", "made", "meant", "met", "paid", "said", "seen", "sent", "shown", "taken",
    "thought", "told", "understood", "written",
}  # fmt: skip
VERBS_IN_ED = {"embed", "feed", "need", "proceed", "seed", "shed", "succeed"}
FLAG = re.compile(r"(?<![\w-])--[a-z]")
WIDTH = 110
ATTRIBUTES = {"property", "cached_property", "setter"}
SHORTEST = 16

Finding = tuple[int, str, str]


def main(arguments: list[str]) -> int:
    """Check the given files and folders; return the exit status."""
    count = 0
    for path in _files(arguments):
        text = path.read_text("utf-8")
        found = check_markdown(text) if path.suffix == ".md" else check(text, flags=_has_flags(path))
        for line, rule, text in sorted(found):
            print(f"{path}:{line}: {rule}: {text}")
            count += 1
    if count:
        print(f"{count} findings; the rules are in CONTRIBUTING.md, section 'Plain English'")
    return 1 if count else 0


def _files(arguments: list[str]) -> Iterator[Path]:
    for argument in arguments:
        path = Path(argument)
        found = path.rglob("*") if path.is_dir() else [path]
        yield from sorted(each for each in found if each.suffix in (".py", ".md"))


def _has_flags(path: Path) -> bool:
    """Return whether the errors of a file are only seen on the command line."""
    return "handshake" not in path.parts or "cli" in path.parts


def check_markdown(text: str) -> Iterator[Finding]:
    """Yield the findings in one document. Code, emphasised words and tables of examples are left out."""
    for line, paragraph in _paragraphs(text):
        plain = re.sub(r"`[^`]*`|(?<![*\w])\*[^*]+\*", "it", " ".join(paragraph))
        plain = re.sub(r"^[\s>*-]*(\d+\. )?", "", plain).replace("**", "")
        if found := ODD_WORDS.search(plain):
            yield line, f"uncommon word '{found[0]}'", paragraph[0]
        if found := LATER_RELATIVE.search(plain):
            yield line, "a sentence starts with a relative clause", found[1]
        for offset, each in enumerate(paragraph):
            if len(each) > WIDTH and not each.startswith(("|", "![", "    ")):
                yield line + offset, f"a line of {len(each)} characters", each[:60]


def _paragraphs(text: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the paragraphs, items and rows of tables of a document, each with its first line's number."""
    code, example, first, lines = False, False, 1, list[str]()
    for number, line in enumerate(text.split("\n"), start=1):
        fence, row = line.lstrip().startswith("```"), line.startswith("|")
        example = row and (example or line.startswith("| before |"))
        ends = not line.strip() or re.match(r"\s*([-*#|>]|\d+\.) ?", line) is not None
        if lines and (fence or ends):
            yield first, lines
            lines = []
        code ^= fence
        if not (fence or code or example) and line.strip():
            first, lines = (first if lines else number), [*lines, line]
    if lines:
        yield first, lines


def check(source: str, *, flags: bool = True) -> Iterator[Finding]:
    """Yield the findings in one Python file.

    Args:
        source: The text of the file.
        flags: Whether its errors may name flags of the command line.
    """
    tree = ast.parse(source)
    checked = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _docstring(node)
            checked |= {id(part) for part in node.body[:1]}
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _name(node)
        if isinstance(node, ast.Raise):
            yield from _error(node, flags=flags)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield from _prose(node.lineno, node.value.value, first_is_checked=id(node) in checked)
    yield from _comments(source)


def _docstring(node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[Finding]:
    text = ast.get_docstring(node)
    if not text:
        return
    first, line = text.split("\n")[0], node.body[0].lineno
    is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    if RELATIVE.match(first):
        yield line, "starts with a relative clause", first
    elif is_function and not _is_attribute(node) and not _is_test(node) and NO_VERB.match(first):
        yield line, "a function's docstring starts with a verb", first
    if len(first) < SHORTEST:
        yield line, "says too little", first


def _prose(line: int, text: object, *, first_is_checked: bool) -> Iterator[Finding]:
    """Check all sentences of the docstring of a module, class, function or attribute."""
    if not isinstance(text, str):
        return
    first = text.strip().split("\n")[0]
    for paragraph in re.split(r"\n\s*\n|\n\s*>>>|\n\s+[*\w]+: ", re.sub(r"`[^`]*`", "", text)):
        if found := ODD_WORDS.search(paragraph):
            yield line, f"uncommon word '{found[0]}'", first
        found = LATER_RELATIVE.search(" ".join(paragraph.split()))
        if found and not (first_is_checked and RELATIVE.match(first)):
            yield line, "a sentence starts with a relative clause", found[1]


def _error(node: ast.Raise, *, flags: bool) -> Iterator[Finding]:
    """Check the texts of an error."""
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            if found := ODD_WORDS.search(part.value):
                yield part.lineno, f"uncommon word '{found[0]}'", part.value
            if not flags and FLAG.search(part.value):
                yield part.lineno, "an error outside cli/ names a flag", part.value


def _name(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[Finding]:
    name = node.name.strip("_")
    if name != name.lower():  # camel case: a method that a library calls
        return
    participle = name in IRREGULAR or (name.endswith("ed") and name not in VERBS_IN_ED)
    if participle and "_" not in name and not _is_attribute(node):
        yield node.lineno, "a function is named by a verb", node.name


def _is_attribute(node: ast.AST) -> bool:
    names = {
        d.attr if isinstance(d, ast.Attribute) else getattr(d, "id", "")
        for d in getattr(node, "decorator_list", ())
    }
    return bool(names & ATTRIBUTES)


def _is_test(node: ast.AST) -> bool:
    """Return whether a function is a test, whose docstring may state how the package behaves."""
    return getattr(node, "name", "").startswith("test_")


def _comments(source: str) -> Iterator[Finding]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and (found := ODD_WORDS.search(token.string)):
            yield token.start[0], f"uncommon word '{found[0]}'", token.string


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
