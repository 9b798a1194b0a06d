"""Split shell text, as people paste it, into simple commands: words without quotes and comments."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator, Mapping

from sim.errors import ScenarioError

ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
# What word processors and pages make of quotes and dashes.
_SINGLE = {"'": "'", "\u2018": "'\u2019", "\u2019": "'\u2019"}
_DOUBLE = {'"': '"', "\u201c": '"\u201d', "\u201d": '"\u201d'}
_LONG_DASH = re.compile("[\u2013\u2014\u2212](?=[a-z])")
_QUOTED_LINE = re.compile(r"^[ \t]*>[ \t]*(?=-)", re.MULTILINE)
_COMMENT_LINE = re.compile(r"^[ \t]*#.*\n?", re.MULTILINE)
_CONTINUED = re.compile(r"(?:\\[ \t]*(?:#[^\n]*)?\n|\^[ \t]*\n|^([^`\n]*)`[ \t]*\n)", re.MULTILINE)
_NEXT_FLAG = re.compile(r"\s*\n\s*(?=--?[A-Za-z])")
_BLANK = re.compile(r"(?:[^\S\n]|\u200b|\\n?[ \t]+(?=-)|\\n(?=--)|\\[ \t\n]*\Z)+")
_COMMENT = re.compile(r"#[^\n]*")
_PLACEHOLDER = re.compile(r"<[A-Za-z_][\w .:/-]*>|\{\{.*?\}\}", re.DOTALL)
_REDIRECTION = re.compile(r"(?:\d*|&)[<>]{1,3}(?:&\d|&-|\|)?[ \t]*")
_VARIABLE = re.compile(
    r"\$(?:(\w+)|\{(\w+)(?:\[[@*]\])?(?::?[-=]((?:[^{}]|\{[^{}]*\})*)|:?\?[^}]*)?\}|\((\w+)\))"
)
_ARRAY = re.compile(r"(\w+)=\(")
_WINDOWS_PATH = re.compile(r"[A-Za-z]:\\[^\s\"']+")
_PLAIN = re.compile("[^\\s\"'\\\\$`;&|()<>{}\u2018\u2019\u201c\u201d\u200b]+")
_JSON = re.compile(r"\{\s*[\"']")
_ENDS = ";&|()\n"
_UNCLOSED = "the command cannot be read: no closing quotation"
_PROMPTS = ("$", "%", ">", "PS", ">>>")
_DECLARES = ("export", "declare", "local", "readonly", "set")


class Shell:
    """Reads simple commands one after another, as a shell that runs none of them.

    Variables keep what the text assigns to them; of others the default is taken where the text has
    one, and else the name stays.
    """

    def __init__(self, variables: Mapping[str, str] | None = None) -> None:
        self.variables = {name: [value] for name, value in (variables or {}).items()}
        self.exported: dict[str, str] = {}
        self._text = ""
        self._at = 0

    def commands(self, text: str) -> Iterator[list[str]]:
        """Yield the words of each simple command that is not just assignments.

        Raises `ScenarioError` where a quotation does not end.
        """
        self._text, self._at = _tidied(text), 0
        words: list[str] = []
        while self._at < len(self._text):
            if self._take(_BLANK):
                continue
            if self._text[self._at] in _ENDS and not self._starts(_REDIRECTION):
                self._at += 1
                yield from self._unless_assigned(words)
                words = []
            elif self._starts(_COMMENT):
                self._take(_COMMENT)
            elif placeholder := self._take(_PLACEHOLDER):
                words.append(placeholder + "".join(self._word()))
            elif redirection := self._take(_REDIRECTION):
                if redirection.rstrip()[-1] in "<>|":
                    self._word()  # the file
            elif array := _ARRAY.match(self._text, self._at):
                self._at = array.end()
                self.variables[array[1]] = self._until_closed()
            else:
                words += self._word()
        yield from self._unless_assigned(words)

    def _unless_assigned(self, words: list[str]) -> Iterator[list[str]]:
        words = words[1:] if words and words[0] in _PROMPTS else words
        if words:
            words[0] = words[0].removeprefix("!")  # a notebook's
        declares = bool(words) and words[0] in _DECLARES
        assigned = [word for word in words[declares:] if ASSIGNMENT.fullmatch(word)]
        if words and len(assigned) < len(words) and not (declares and assigned):
            yield words
            return
        for word in assigned:
            name, _, value = word.partition("=")
            self.variables[name] = [value]
            if declares and words[0] == "export":
                self.exported[name] = value

    def _starts(self, pattern: re.Pattern[str]) -> bool:
        return pattern.match(self._text, self._at) is not None

    def _take(self, pattern: re.Pattern[str]) -> str:
        """Return what matches here, and go on behind it; empty if nothing does."""
        match = pattern.match(self._text, self._at)
        if match is None:
            return ""
        self._at = match.end()
        return match[0]

    def _until_closed(self) -> list[str]:
        words: list[str] = []
        while self._at < len(self._text) and self._text[self._at] != ")":
            if not (self._take(_BLANK) or self._take(_COMMENT)):
                if self._text[self._at] in _ENDS:
                    self._at += 1
                words += self._word()
        self._at += 1
        return words

    def _word(self) -> list[str]:
        """Read one word; expansions can make it none or several."""
        done: list[str] = []
        word: str | None = None
        while self._at < len(self._text):
            char = self._text[self._at]
            if char.isspace() or ((char in _ENDS or char in "<>") and word is not None):
                break
            if word is None and self._take(_LONG_DASH):
                word = "--"
            elif path := self._take(_WINDOWS_PATH) if word is None else "":
                word = path
            elif plain := self._take(_PLAIN):
                word = (word or "") + plain
            elif char in _SINGLE:
                word = (word or "") + self._single(_SINGLE[char])
            elif char in _DOUBLE:
                parts = self._double(_DOUBLE[char])
                done += [(word or "") + parts[0], *parts[1:]][:-1]
                word = parts[-1] if len(parts) > 1 else (word or "") + parts[0]
            elif char == "\\":
                word = (word or "") + self._text[self._at + 1 : self._at + 2]
                self._at += 2
            elif kept := self._substitution():
                word = (word or "") + kept
            elif char == "$":
                values = " ".join(self._expansion()).split()
                if values:
                    values[0] = (word or "") + values[0]
                    done += values[:-1]
                    word = values[-1]
            elif char == "\u200b":
                self._at += 1
            elif char == "{" and self._is_json():
                word = (word or "") + self._json()
            else:
                word = (word or "") + char
                self._at += 1
        return done if word is None else [*done, word]

    def _single(self, closing: str) -> str:
        ends = [self._text.find(mark, self._at + 1) for mark in closing]
        if max(ends) < 0:
            raise ScenarioError(_UNCLOSED)
        end = min(end for end in ends if end >= 0)
        found, self._at = self._text[self._at + 1 : end], end + 1
        return found

    def _double(self, closing: str) -> list[str]:
        """Read what stands in double quotes: one word, or those of an array."""
        parts, self._at = [""], self._at + 1
        while (char := self._text[self._at : self._at + 1]) not in tuple(closing):
            if not char:
                raise ScenarioError(_UNCLOSED)
            if char == "\\" and self._text[self._at + 1 : self._at + 2] in tuple('"\\$`'):
                parts[-1] += self._text[self._at + 1]
                self._at += 2
            elif kept := self._substitution():
                parts[-1] += kept
            elif char == "$":
                values = self._expansion()
                parts[-1] += "".join(values[:1])
                parts += values[1:]
            else:
                parts[-1] += char
                self._at += 1
        self._at += 1
        return parts

    def _expansion(self) -> list[str]:
        """Return what a variable holds, or the text itself of one that is not set."""
        match = _VARIABLE.match(self._text, self._at)
        if match is not None:
            self._at = match.end()
            name = match[1] or match[2] or match[4]
            if name in self.variables:
                return self.variables[name]
            if match[3] is None:
                return [match[0]]
            return [expanded(match[3].strip("\"'"), self.variables)]
        self._at += 1
        return ["$"]

    def _substitution(self) -> str:
        """Return the text of a command whose output would stand here; empty if there is none."""
        start, opened = self._at, self._text[self._at : self._at + 2]
        if opened == "$(" and not self._starts(_VARIABLE):
            self._at = _closing(self._text, self._at + 1, "()")
            inner = expanded(self._text[start : self._at], self.variables)
            for name, values in self.variables.items():  # inside $(( )) names stand alone too
                inner = re.sub(rf"\b{name}\b", " ".join(values), inner)
            return _computed(inner) if inner.startswith("$((") else self._text[start : self._at]
        if opened[0] == "`":
            end = self._text.find("`", self._at + 1)
            self._at = self._at + 1 if end < 0 else end + 1
        return self._text[start : self._at]

    def _is_json(self) -> bool:
        return self._starts(_JSON)

    def _json(self) -> str:
        start = self._at
        self._at = _closing(self._text, self._at, "{}")
        return self._text[start : self._at]


def expanded(word: str, variables: Mapping[str, list[str]]) -> str:
    """Expand the variables in a text that are set, or that have a default."""

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2] or match[4]
        return " ".join(variables.get(name, [match[0] if match[3] is None else match[3]]))

    return _VARIABLE.sub(value, word)


def _computed(text: str) -> str:
    """Compute ``$((8 * 1024))``; any other text stays as it is."""
    names = re.sub(r"\$\{?|\}", "", text[3:-2])
    if not text.startswith("$((") or not re.fullmatch(r"[\d\s+*/%()-]{1,200}", names):
        return text
    try:
        return str(_value(ast.parse(names.strip().replace("/", "//"), mode="eval").body))
    except (SyntaxError, ValueError, ZeroDivisionError, OverflowError, RecursionError):
        return text


_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


def _value(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_value(node.left), _value(node.right))
    raise ValueError(ast.dump(node))


def _tidied(text: str) -> str:
    """Undo what pages, terminals and mail do to a command, and join its lines."""
    text = text.replace("\r\n", "\n")
    lines = [line for line in text.splitlines() if line.strip()]
    if all(line.lstrip().startswith(">") for line in lines):
        text = "\n".join(line.lstrip()[1:] for line in lines)
    text = _COMMENT_LINE.sub("", _QUOTED_LINE.sub("", text))
    return _NEXT_FLAG.sub(" ", _CONTINUED.sub(r"\1 ", text))


def _closing(text: str, start: int, pair: str) -> int:
    """Return the place behind the bracket that closes the one at ``start``, or the end."""
    depth = 0
    for at in range(start, len(text)):
        depth += (text[at] == pair[0]) - (text[at] == pair[1])
        if not depth:
            return at + 1
    return len(text)
