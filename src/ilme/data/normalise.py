"""Text normalisation in two profiles.

`spoken` is what an acoustic transcript without punctuation looks like: lower case, numbers and symbols in
English words, accents folded, no punctuation but the apostrophe inside a word. `written` keeps case,
punctuation and digits, and only makes one form out of several: straight quotes, single spaces, no control characters.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from typing import Literal

__all__ = ["Profile", "clean", "normalise", "spoken", "written"]

Profile = Literal["spoken", "written"]

_QUOTES = dict.fromkeys("“”„‟«»〝〞＂", '"') | dict.fromkeys("‘’‚‛ʼ′`´＇", "'")
_INVISIBLE = dict.fromkeys("\xad\u200b\u200c\u200d\u200e\u200f\u2060\ufeff")
_CLEAN = str.maketrans({**_QUOTES, **_INVISIBLE, "_": None} | {chr(i): " " for i in (*range(32), *range(127, 160))})


def clean(text: str) -> str:
    """Straight quotes, compatibility characters in their plain form, no control characters, single spaces."""
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text.translate(_CLEAN))
    return " ".join(text.translate(_CLEAN).split())


def normalise(text: str, profile: Profile) -> str:
    return spoken(text) if profile == "spoken" else written(text)


def written(text: str) -> str:
    """Case, punctuation and digits kept."""
    return clean(text)


_TITLES = {"mr": "mister", "mrs": "missus", "dr": "doctor", "prof": "professor", "capt": "captain", "rev": "reverend"}
_TITLE = re.compile(r"\b(Mr|Mrs|Dr|Prof|Capt|Rev)\b\.?(?=\s)", re.IGNORECASE)
_SAINT = re.compile(r"\bSt\.(?=\s[A-Z])")
_SYMBOLS = {"&": " and ", "%": " percent ", "@": " at ", "+": " plus ", "=": " equals ", "°": " degrees "}
_SYMBOL = re.compile("[&%@+=°]")
_APOSTROPHE = re.compile(r"(?<![^\W\d_])'|'(?![^\W\d_])")
_NOT_SPOKEN = re.compile(r"[^\w']+|_")


def spoken(text: str) -> str:
    """Lower case, numbers in words, no punctuation."""
    text = clean(text)
    text = _TITLE.sub(lambda m: _TITLES[m[1].lower()], text)
    text = _SAINT.sub("Saint", text)
    if any(map(str.isdigit, text)):
        text = _numbers(text)
    text = _SYMBOL.sub(lambda m: _SYMBOLS[m[0]], text).lower()
    if not text.isascii():
        text = _fold_accents(text)
    return " ".join(_APOSTROPHE.sub(" ", _NOT_SPOKEN.sub(" ", text)).split())


def _fold_accents(text: str) -> str:
    """café → cafe; letters of other scripts keep their marks."""
    pieces: list[str] = []
    for c in unicodedata.normalize("NFD", text):
        if unicodedata.category(c) == "Mn" and pieces and pieces[-1].isascii():
            continue
        pieces.append(c)
    return unicodedata.normalize("NFC", "".join(pieces))


_AMOUNT = r"(\d{1,3}(?:,\d{3})+|\d+)"
_FRESH = r"(?<!\d)(?<!\d,)"  # not inside a number; without it, long runs of digits would take quadratic time
_MONEY = re.compile(rf"([$£€]) ?{_AMOUNT}(?:\.(\d\d))?(?!\d)(?: (hundred|thousand|million|billion|trillion)\b)?")
_CLOCK = re.compile(r"\b([01]?\d|2[0-4]):([0-5]\d)\b")
_ORDINAL = re.compile(rf"{_FRESH}{_AMOUNT}(st|nd|rd|th)\b", re.IGNORECASE)
_DECADE = re.compile(r"\b((?:1[1-9]|20)?\d0)'?s\b")
_DECIMAL = re.compile(rf"(?:{_FRESH}{_AMOUNT})?\.(\d+)(?![\d.])")
_YEAR = re.compile(r"(?<![\d,.])(1[1-9]\d\d|20\d\d)(?!,?\d)")
_NUMBER = re.compile(rf"{_AMOUNT}")
_UNITS = {"$": ("dollar", "cent"), "£": ("pound", "penny"), "€": ("euro", "cent")}
_LONGEST_NUMBER = 15  # digits; longer ones, and those with leading zeros, are read digit by digit


def _numbers(text: str) -> str:
    text = _MONEY.sub(_say_money, text)
    text = _CLOCK.sub(_say_clock, text)
    text = _ORDINAL.sub(lambda m: f" {_say(m[1].replace(',', ''), 'ordinal')} ", text)
    text = _DECADE.sub(lambda m: f" {_plural(_say(m[1], 'year' if len(m[1]) == 4 else 'cardinal'))} ", text)
    text = _DECIMAL.sub(_say_decimal, text)
    text = _YEAR.sub(lambda m: f" {_say(m[1], 'year')} ", text)
    return _NUMBER.sub(lambda m: f" {_say(m[1].replace(',', ''))} ", text)


def _say_money(match: re.Match[str]) -> str:
    whole, fraction = _UNITS[match[1]]
    amount = match[2].replace(",", "")
    if match[4]:
        point = f" point {_digits(match[3])}" if match[3] else ""
        return f" {_say(amount)}{point} {match[4]} {_plural(whole)} "
    words = f"{_say(amount)} {whole if int(amount) == 1 else _plural(whole)}"
    if match[3] and int(match[3]):
        cents = int(match[3])
        coins = fraction if cents == 1 else "pence" if fraction == "penny" else _plural(fraction)
        words += f" and {_say(str(cents))} {coins}"
    return f" {words} "


def _say_clock(match: re.Match[str]) -> str:
    hour, minute = int(match[1]), int(match[2])
    tail = "o'clock" if minute == 0 else f"oh {_say(str(minute))}" if minute < 10 else _say(str(minute))
    return f" {_say(str(hour))} {tail} "


def _say_decimal(match: re.Match[str]) -> str:
    whole = _say(match[1].replace(",", "")) if match[1] else ""
    return f" {whole} point {_digits(match[2])} "


def _plural(words: str) -> str:
    return f"{words[:-1]}ies" if words.endswith("ty") else f"{words}es" if words.endswith("x") else f"{words}s"


def _digits(digits: str) -> str:
    return " ".join(_say(d) for d in digits)


@lru_cache(maxsize=1 << 16)
def _say(digits: str, kind: Literal["cardinal", "ordinal", "year"] = "cardinal") -> str:
    """Digits in words: 42 → forty two."""
    from num2words import num2words

    if len(digits) > 1 and (len(digits) > _LONGEST_NUMBER or digits[0] == "0"):
        return _digits(digits)
    words: str = num2words(int(digits), lang="en", to=kind)
    return words.replace("-", " ").replace(",", "")
