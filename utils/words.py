"""Words as a reader sees them: nothing invisible, endless, or turned round.

Labels of figures and the viewer show tokens by these functions alone.
"""

import functools
import re
import unicodedata
import warnings

import matplotlib.pyplot as plt
from matplotlib import ft2font
from matplotlib.font_manager import FontProperties, findfont, get_font

LONGEST_WORD = 16  # letters
SIGNS = {"\n": "⏎", "\t": "⇥"}
# letters and marks to Unicode, and yet no font draws anything for them
BLANK = "\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0"
RIGHT_TO_LEFT = "R", "AL", "AN"
TURNS = hasattr(ft2font, "__libraqm_version__")  # older matplotlib draws them reversed
SUBSCRIPT = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")


def names(tokens: list[str]) -> list[str]:
    """Return what a sentence calls the tokens; those that look alike get numbers.

    >>> names(["the", "cat", "the"])
    ['the₀', 'cat', 'the₂']
    """
    tokens = [visible(token) for token in tokens]
    looks = [token.strip() for token in tokens]  # " the" and "the" look alike
    numbers = [str(position).translate(SUBSCRIPT) for position in range(len(tokens))]
    return [
        token if looks.count(look) == 1 else token + number
        for token, look, number in zip(tokens, looks, numbers)
    ]


def visible(token: str) -> str:
    """Return a token as it is labelled: nothing invisible, nothing endless.

    A single space before a word, or between two, stays; every other one is a ␣.

    >>> visible(" cat"), visible("   "), visible("\\n\\u200b"), visible("\\u0301")
    (' cat', '␣␣␣', '⏎\\\\u200b', '◌\u0301')
    """
    token = legible(re.sub(r" (?=\s|$)|(?<=\s) ", "␣", token)) or "∅"
    return token if len(token) <= LONGEST_WORD else f"{token[: LONGEST_WORD - 1]}…"


def legible(text: str) -> str:
    """Return a text in which what cannot be seen, but for spaces, is written out."""
    return "".join(map(_letter, text, f" {text}"))


def _letter(letter: str, before: str) -> str:
    """Return how a letter is written; a mark needs another one that carries it."""
    if not letter.isprintable() or letter in BLANK:
        return SIGNS.get(letter, ascii(letter)[1:-1])
    carried = before.isprintable() and before not in f"␣ {BLANK}"
    return letter if carried or unicodedata.category(letter)[0] != "M" else f"◌{letter}"


def isolated(text: str) -> str:
    """Return a text for a sentence: right-to-left words do not turn it round."""
    return f"\u2068{text}\u2069" if any(map(_turned, text)) else text


def _turned(letter: str) -> bool:
    return unicodedata.bidirectional(letter) in RIGHT_TO_LEFT


def drawable(text: str, instead: str | None = None) -> str:
    """Return a text as matplotlib can draw it: no box, and no word drawn backwards.

    instead: what is drawn where a letter is lacking; without it that letter is escaped.
    """
    if text.isascii():
        return text
    families = [FontProperties(family=[f]) for f in plt.rcParams["font.family"]]
    fonts = [_letters(findfont(family)) for family in families]
    lacking = {c for c in text if c != "\n" and not any(ord(c) in f for f in fonts)}
    lacking |= set() if TURNS else set(filter(_turned, text))
    if not lacking:
        return text
    _say_what_is_lacking()
    return instead or "".join(ascii(c)[1:-1] if c in lacking else c for c in text)


@functools.cache
def _letters(font: str) -> frozenset[int]:
    """Return the letters that a font has, by their numbers in Unicode."""
    return frozenset(get_font(font).get_charmap())


@functools.cache  # once: matplotlib makes Python forget what was warned of
def _say_what_is_lacking() -> None:
    warnings.warn(
        "Some letters cannot be drawn here: #3 stands for the token at position 3, "
        "\\u4e2d for a letter of a title. To see them, put a font that has them first "
        "in plt.rcParams['font.family']; Hebrew and Arabic need matplotlib 3.11.",
        stacklevel=2,
    )
