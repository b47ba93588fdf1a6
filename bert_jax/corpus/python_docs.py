"""Documentation of installed Python packages: English text that needs no download.

It consists of the docstrings of the standard library and of all installed packages, and
of the language reference that comes with Python. Source files are parsed, never
imported. A document has all docstrings of a module, or is one topic of the reference.

Docstrings also provide labels: `parameters` reads numpydoc sections, which assign
descriptions of parameters to functions.
"""

import ast
import dataclasses
import functools
import itertools
import pathlib
import re
import sysconfig
import warnings
from collections.abc import Callable, Iterable, Iterator

from bert_jax import terminal

# Tests are half of all source text, and their docstrings say little.
_SKIPPED_PARTS = {"test", "tests", "testing", "idle_test"}
# Folders of packages inside the standard library, possibly of another environment.
_SKIPPED_PARTS |= {"site-packages", "dist-packages"}
_MIN_PARAGRAPH_WORDS = 4
_MIN_LETTER_FRACTION = 0.75
_MIN_DOCUMENT_CHARS = 200

_DOCUMENTED = re.compile(b"\"\"\"|'''|topics")
_NUMPYDOC = re.compile(rb"\n *Parameters\r?\n *---")
_UNDERLINE = re.compile(r"^[-=~^*\"'`#.]{3,}$")
_DECLARATION = re.compile(r"^\*{0,2}\w[\w.]*(?:, ?\*{0,2}\w+)* ?: +\S.*$")
_DIRECTIVE = re.compile(r"^\s*\.\. ")
_ROLE = re.compile(r":[a-zA-Z][\w+:.-]*:`~?\.?([^`<]+?)(?: <[^>]*>)?`")
_FOOTNOTE = re.compile(r"\s*\[\d+\]_")
_BACKTICKS = re.compile(r"`+")
# Sphinx: ":param name: text" keeps its text, ":type name: int" is dropped.
_FIELD = re.compile(r"^:(param|returns?|raises?|arg|keyword)\b[^:]*: *")
_TYPE_FIELD = re.compile(r"^:(type|rtype)\b[^:]*:")
# Google style: "Args:" alone on a line, then "name (type): text" for each.
_SECTION = re.compile(r"^[A-Z]\w+( \w+)?:$")
_ITEM = re.compile(r"^\*{0,2}\w+(?: \([^)]*\))?: \S")
_BULLET = re.compile(r"^([-*+•]|\d+[.)]) ")


def source_files() -> list[pathlib.Path]:
    """List the Python files of installed packages and of the standard library."""
    paths = set()
    for root in _roots():
        for path in root.rglob("*.py"):
            parts = path.relative_to(root).parts
            if _SKIPPED_PARTS.isdisjoint(parts) and not parts[-1].startswith("test_"):
                paths.add(path)
    # Editors put dangling links beside the files that they have open.
    return sorted(path for path in paths if path.is_file())


def module_name(path: str | pathlib.Path) -> str:
    """Return the path of a module, relative to the folder with installed packages."""
    path = pathlib.Path(path)
    for root in _roots():
        if path.is_relative_to(root):
            return path.relative_to(root).as_posix()
    return path.as_posix()


@functools.cache
def _roots() -> list[pathlib.Path]:
    # Packages come first, because they may be installed inside the standard library's
    # folder.
    names = ("purelib", "platlib", "stdlib")
    # On some systems, `lib64` is a link to `lib`.
    paths = (pathlib.Path(sysconfig.get_path(name)).resolve() for name in names)
    return list(dict.fromkeys(paths))


def read_module(
    path: str | pathlib.Path, report: Callable[[str], None]
) -> Iterator[str]:
    """Yield the texts of the documents in one source file."""
    tree = _parse(path, report, _DOCUMENTED)
    if module_name(path) == "pydoc_data/topics.py":
        topics = [n.value for n in ast.walk(tree) if isinstance(n, ast.Constant)]
        texts = [_prose(topic) for topic in topics if isinstance(topic, str)]
    else:
        texts = ["\n".join(filter(None, map(_prose, dict.fromkeys(_docstrings(tree)))))]
    for text in texts:
        if len(text) >= _MIN_DOCUMENT_CHARS:
            yield text + "\n"


def _parse(
    path: str | pathlib.Path, report: Callable[[str], None], pattern: re.Pattern[bytes]
) -> ast.Module:
    """Parse a file that matches a pattern; return an empty module for other files."""
    nothing = ast.Module([], [])
    try:
        text = pathlib.Path(path).read_bytes()
        if not pattern.search(text):
            return nothing
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in packages
            return ast.parse(text)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
        report(f"{terminal.printable(str(path))}: cannot be parsed ({error})")
        return nothing


def _docstrings(tree: ast.Module) -> Iterator[str]:
    """Yield the docstrings of a module and of the definitions in it, in order.

    Some packages repeat one many times.
    """
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    statements = ast.stmt | ast.excepthandler | ast.match_case
    # Without recursion: each `elif` is an `if` in the one before.
    remaining: list[ast.AST] = [tree]
    while remaining:
        node = remaining.pop()
        if isinstance(node, documented) and (docstring := ast.get_docstring(node)):
            yield docstring
        for child in reversed([*ast.iter_child_nodes(node)]):
            if isinstance(child, statements):
                remaining.append(child)


def _prose(docstring: str) -> str:
    """Extract the prose of a docstring, one paragraph per line, without markup."""
    paragraphs: list[list[str]] = [[]]
    in_fence = in_code = False
    code_indent = 0
    # An escape may stand for half a surrogate pair, which cannot be encoded.
    docstring = docstring.encode("utf-8", "ignore").decode("utf-8")
    lines = docstring.expandtabs().split("\n")
    for i, line in enumerate(lines):
        stripped = line.strip()
        indent = _indent(line)
        following = lines[i + 1].strip() if i + 1 < len(lines) else ""
        is_left_out = True
        if stripped.startswith("```"):
            in_fence = not in_fence
        elif stripped:
            in_code = in_code and indent > code_indent
            begins_code = stripped.startswith((">>>", "... ")) or _DIRECTIVE.match(line)
            if begins_code and not (in_fence or in_code):
                # The indented block below a prompt or a directive belongs to it.
                in_code, code_indent = True, indent
            is_left_out = in_fence or in_code
        if (
            is_left_out
            or _UNDERLINE.match(stripped)
            or _UNDERLINE.match(following)
            or _SECTION.match(stripped)
            or _TYPE_FIELD.match(stripped)
            or _is_declaration(lines, i)
        ):
            paragraphs.append([])
            continue
        if _BULLET.match(stripped) or _FIELD.match(stripped) or _ITEM.match(stripped):
            paragraphs.append([])
        paragraphs[-1].append(stripped)
        if stripped.endswith("::"):
            in_code, code_indent = True, indent
            paragraphs.append([])
    cleaned = (_without_markup(" ".join(p)) for p in paragraphs if p)
    return "\n".join(p for p in cleaned if _is_prose(p))


def _without_markup(text: str) -> str:
    text = _ROLE.sub(r"\1", text)
    text = _FOOTNOTE.sub("", text)
    text = _BACKTICKS.sub("", text)
    text = _FIELD.sub("", _BULLET.sub("", text))
    if text.endswith("::"):
        text = text[:-1]
    return text.strip()


def _is_prose(text: str) -> bool:
    if len(text.split()) < _MIN_PARAGRAPH_WORDS:
        return False
    letters = sum(c.isalpha() or c == " " for c in text)
    return letters >= _MIN_LETTER_FRACTION * len(text)


# ---- labels


@dataclasses.dataclass(frozen=True)
class Parameter:
    """Parameter of a function, from its numpydoc section."""

    description: str  # paragraph below its declaration, as one line of prose
    summary: str  # first paragraph of the docstring, as one line of prose
    module: str  # path of the module


def parameters(path: str | pathlib.Path) -> Iterator[Parameter]:
    """Yield the parameters in the numpydoc sections of one source file."""
    tree = _parse(path, lambda line: None, _NUMPYDOC)
    for docstring in dict.fromkeys(_docstrings(tree)):
        lines = docstring.expandtabs().split("\n")
        summary = _one_line(itertools.takewhile(str.strip, lines))
        for i in range(len(lines)):
            if not _is_declaration(lines, i):
                continue
            deeper = functools.partial(_is_deeper, _indent(lines[i]))
            if description := _one_line(itertools.takewhile(deeper, lines[i + 1 :])):
                yield Parameter(description, summary, module_name(path))


def _is_deeper(indent: int, line: str) -> bool:
    return bool(line.strip()) and _indent(line) > indent


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _one_line(lines: Iterable[str]) -> str:
    return _prose("\n".join(lines)).replace("\n", " ")


def _is_declaration(lines: list[str], i: int) -> bool:
    """Return whether line `i` declares a parameter: `name : type`, text below."""
    return (
        _DECLARATION.match(lines[i].strip()) is not None
        # "name : type" is numpydoc; "name: text" is a sentence that continues below.
        and " :" in lines[i]
        and i + 1 < len(lines)
        and _is_deeper(_indent(lines[i]), lines[i + 1])
    )
