"""Reads ids of models that the table does not have: quantized variants, fine-tunes, local folders.

A name is its words, split at separators and before the digits of a family (``qwen3`` is ``qwen``
and ``3``). The words of a known id without its stage (``instruct``, ``base``) are its stem. An
unknown name has the shape of the known one with the longest stem among its words.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import PurePosixPath
from typing import NamedTuple

from costmodels.datafile import read_data
from costmodels.models.published import BUILT_IN, checkpoints, stored_form
from sim.errors import ScenarioError

Words = tuple[str, ...]

_FILE = "models/model_names.yaml"
_SIZE = re.compile(r"[ae]?\d+(?:\.\d+)?[bt]|\d{2,3}m|\d+x\d+(?:\.\d+)?b|\d+e")
_VERSION = re.compile(r"v\d+(?:\.\d+)*|\d{3,8}|r\d+|\d+[km]")
_LONG_STEM = 3
_NUMBER = re.compile(r"\d{1,2}(?:\.\d+)?")
_SNAPSHOT = re.compile(r"models--([^/]+?)--([^/]+)")
_FAMILY_DIGITS = re.compile(r"([a-z]{3,})(\d.*)")


class Understood(NamedTuple):
    """What an id says of a model that the table does not have."""

    model_id: str
    """The known checkpoint of the same shape."""
    form: str | None
    """How the weights are stored, as a form of ``model_names.yaml``; None: as of ``model_id``."""
    note: str
    """Sentence on what was assumed."""


def find_checkpoint(name: str) -> str | None:
    """Return the known id that a name spells out: the id, its last part, or an alias; case does
    not matter."""
    return _spellings().get(name.casefold())


def understand(name: str) -> Understood:
    """Return what a name says. Raises `ScenarioError` with names of the same family and size if it
    does not say the shape, and for formats that are not modelled."""
    org, tails = _split(name)
    shape, read = None, []
    for tail in tails:
        read.append(_form(org, tail))
        shape = _shape(org, read[-1].rest)
        if shape is not None:
            break
    if shape is None:
        raise ScenarioError(_unknown(name, words_of(read[0].rest)))
    known, leftover = shape
    model_id, found = _spellings()[known.casefold()], read[-1]
    if name.count("/") != 1:  # a local folder, whose files are most likely the publisher's own
        found = _form(model_id.partition("/")[0], tail)
    note = f"{name} is taken to have the shape of {known}"
    if not all(_is_neutral(word) for word in leftover):
        note += " as a fine-tune of it"
    if found.form is not None:
        about = f" ({found.about})" if found.about else ""
        note += f", with weights in {stored_form(found.form)['said']}{about}"
    return Understood(model_id, found.form, f"{note}: its name says so, no config.json was read")


def form_in_name(name: str) -> str | None:
    """Return the form of ``model_names.yaml`` that a name says its weights are in; None if it
    does not say."""
    org, tails = _split(name)
    try:
        return _form(org, tails[0]).form
    except ScenarioError:
        return None


def words_of(name: str) -> Words:
    """Return the words of a name without its publisher, in lower case."""
    text = re.sub(r"(?<=[a-z]{3})(\d)(\d)(?![\d.a-z])", r"\1.\2", _dotted(name))  # qwen35 is 3.5
    words: list[str] = []
    for part in re.split(r"[^a-z0-9.]+", text):
        bare = part.strip(".")
        digits = _FAMILY_DIGITS.fullmatch(bare)
        words += [digits[1], digits[2]] if digits else [bare]
    return tuple(word for word in words if word and word not in _listed("brands"))


def _dotted(name: str) -> str:
    """Return a name in lower case with dots in versions that have underscores: ``llama-3_3``."""
    return re.sub(r"(?<=\d)_(?=\d(?![\d.]*[bm]))", ".", name.casefold())


@cache
def _listed(kind: str) -> frozenset[str]:
    return frozenset(read_data(_FILE)[kind].split())


def _split(name: str) -> tuple[str, list[str]]:
    """Return a name's publisher and its last part; of a folder, the parts above it follow."""
    snapshot = _SNAPSHOT.search(name)
    if snapshot is not None:
        return snapshot[1], [snapshot[2]]
    folder = re.sub(r"^[a-z]:", "", name.replace("\\", "/"), flags=re.IGNORECASE)
    # A GGUF repository names its file after a colon, any repository its revision after an at.
    path, _, kind = folder.partition("@")[0].partition(":")
    *above, last = PurePosixPath(path.rstrip("/")).parts or (name,)
    org = above[-1] if above else ""
    tails = [f"{last}-{kind}" if kind else last]
    return org, [*tails, *reversed(above)] if path.count("/") > 1 else tails


class _Stored(NamedTuple):
    """What a name says of how its weights are stored, a remark on it, and the rest of the name."""

    form: str | None
    about: str
    rest: str


def _form(org: str, tail: str) -> _Stored:
    """Return the form that a part of a name says.

    Raises `ScenarioError` for a format that is not modelled.
    """
    plain = re.sub(r"[-_ ]+", "-", _dotted(tail)).removesuffix(".gguf")
    form, about, rest = None, "", plain
    for rule in read_data(_FILE)["rules"]:
        if "orgs" in rule and org.casefold() not in rule["orgs"]:
            continue
        if "ids" in rule and rule["ids"] not in plain:
            continue
        found = re.search(rf"(?:^|[-.])({rule['pattern']})(?=$|[-.])", rest)
        if found is None:
            continue
        if "refused" in rule and form is None:
            raise ScenarioError(
                f"unknown model {tail!r}: {found[1]} in its name: {rule['refused']}; name a "
                "checkpoint in fp8, AWQ, GPTQ, NVFP4 or 16 bits, or set engine.quantization"
            )
        # A second match says the same in other words: -W4A16-AutoRound, -GGUF-Q4_K_M.
        rest = f"{rest[: found.start()]}{rest[found.end() :]}"
        if form is None:
            form, about = rule["form"], rule.get("note", "")
    if form is None:
        return _Stored(None, "", tail)
    return _Stored(form, about, re.sub(r"-(quantized|dynamic)\b", "", rest))


@cache
def _spellings() -> Mapping[str, str]:
    found: dict[str, str] = {}
    for model_id, row in checkpoints().items():
        for spelling in (model_id, model_id.rpartition("/")[2], *row.aliases):
            found.setdefault(spelling.casefold(), model_id)
    return found


@cache
def _written() -> Mapping[str, str]:
    """Return the known ids and aliases as they are written, by their spellings in lower case."""
    found: dict[str, str] = {}
    for model_id, row in checkpoints().items():
        for written in (model_id, *row.aliases):
            found.setdefault(written.casefold(), written)
            found.setdefault(written.rpartition("/")[2].casefold(), written)
    return found


@cache
def _stems() -> Mapping[Words, str]:
    """Return the known ids and aliases by stem; one without its version, too, if a size is left."""
    found: dict[Words, str] = {}
    for written in _written().values():
        found.setdefault(_stem(words_of(written.rpartition("/")[2])), written)
    for stem, written in list(found.items()):
        if _VERSION.fullmatch(stem[-1]) and any(map(_is_size, stem)):
            found.setdefault(stem[:-1], written)
    return found


def _stem(words: Words) -> Words:
    stem = tuple(word for word in words if word not in _listed("stages"))
    return stem or words


def _shape(org: str, name: str) -> tuple[str, Words] | None:
    """Return the known id or alias that a name is, or with the longest stem among its words; and
    the words beside it."""
    for spelling in (f"{org}/{name}", name):
        known = _written().get(spelling.casefold())
        if known is not None:
            return known, ()
    words, best = words_of(name), 0
    shape = None
    for stem, written in _stems().items():
        leftover = _beside(words, stem, words_of(org)) if len(stem) > best else None
        if leftover is not None:
            best, shape = len(stem), (written, leftover)
    return shape


def _beside(words: Words, stem: Words, own: Words) -> Words | None:
    """Return the words beside a stem, if it may describe them; None if not.

    With a size, it may stand in two pieces, and other words are those of a fine-tune. Without, it
    stands in one piece, and other words say nothing, or are the publisher's ``own``; a long stem
    may have any before it.
    """
    cut = next((n for n, word in enumerate(stem) if _is_size(word)), len(stem))
    pieces = [piece for piece in (stem[:cut], stem[cut:]) if piece]
    rest: Words = words
    before: Words = ()
    for piece in pieces:
        place = _place(rest, piece)
        if place is None:
            return None
        before, after = rest[:place], rest[place + len(piece) :]
        if piece is pieces[0] and after[:1] and _NUMBER.fullmatch(after[0]):
            return None  # another version
        rest = before + after
    if any(word in _listed("others") or _is_size(word) for word in rest):
        return None
    if len(pieces) > 1:
        return rest
    told = rest[len(before) :] if len(stem) >= _LONG_STEM else rest
    return rest if all(_is_neutral(word) or word in own for word in told) else None


def _place(words: Sequence[str], piece: Sequence[str]) -> int | None:
    places = range(len(words) - len(piece) + 1)
    return next((n for n in places if tuple(words[n : n + len(piece)]) == tuple(piece)), None)


def _is_size(word: str) -> bool:
    return _SIZE.fullmatch(word) is not None


def _is_neutral(word: str) -> bool:
    return word in _listed("stages") or _VERSION.fullmatch(word) is not None


_MOST_NEAR = 4
_NEAR_SIZE = 1.5
_SHORTEST_TYPO = 4


def _unknown(name: str, words: Words) -> str:
    """Return the message for a name whose shape is not known: near names are of its family, and
    of its size where it has one."""
    families = {stem[0] for stem in _stems()}
    named = [word for word in words if word in families] or _one_letter_off(words[:1], families)
    size = _billions(words)
    ranked = []
    for order, (stem, written) in enumerate(_stems().items()):
        own = checkpoints()[_spellings()[written.casefold()]].billions or _billions(stem)
        if stem[0] not in named or not _is_near(size, own):
            continue
        apart = abs(math.log(own / size)) if size and own else 0.0
        unlike = len(set(stem) - set(words)) - len(set(stem) & set(words))
        ranked.append((unlike, apart, order, written))
    near = list(dict.fromkeys(written for *_, written in sorted(ranked)))[:_MOST_NEAR]
    if near:
        hint = f"did you mean {', '.join(near)}?"
    elif named:
        hint = f"no {named[0]} model of that size is known"
    else:
        built_in = {words_of(one.rpartition("/")[2])[0] for one in read_data(BUILT_IN)["models"]}
        hint = f"known: models of {', '.join(sorted(built_in))}"
    other = [word for word in words if word in _listed("others")]
    kind = f" ({other[0]!r} says another shape or kind)" if other and near else ""
    return f"unknown model {name!r}; {hint}{kind}"


def _one_letter_off(words: Words, families: set[str]) -> list[str]:
    """Return the family that a misspelled word of four letters or more may mean."""
    long = [word for word in words if len(word) >= _SHORTEST_TYPO]
    return [
        family
        for word in long
        for family in difflib.get_close_matches(word, families, n=1, cutoff=1 - 1.1 / len(word))
    ]


def _is_near(size: float | None, other: float | None) -> bool:
    if size is None:
        return True
    return other is not None and 1 / _NEAR_SIZE < other / size < _NEAR_SIZE


def _billions(words: Words) -> float | None:
    """Return the parameters in billions that the words say, all experts together."""
    for word in words:
        if not _is_size(word) or word[0] == "a" or word.endswith("e"):
            continue
        number = word.lstrip("e").rstrip("bmt")
        times, _, each = number.partition("x")
        count = float(times) * float(each) if each else float(times)
        return count * {"b": 1.0, "t": 1000.0, "m": 0.001}[word[-1]]
    return None
