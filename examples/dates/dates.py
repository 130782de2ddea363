"""Written dates: the forms, the languages, and which dates are held out.

Shared by `train.py` and `heldout.py`, so that both mean the same thing. Needs only the standard library;
`python3 dates.py` checks the rule below on every form and spelling.

The rule: a form is here only if every reader takes it for the same day.

* The year has four digits. A two-digit year names no century in 1900 to 2099.
* Numbers alone are read by their order. Year first means year, month, day. Day first needs full stops, which no
  country uses for the month first. `3/4/2021` and `3-4-2021` are 3 April to some and 4 March to others: excluded.
* Anywhere else the month is a word, and no word or abbreviation names two months, in whatever language.
* A weekday is the date's own.
* One whole date of the Gregorian calendar: no weeks, quarters or days of the year, nothing relative to today.

Text is in Unicode's composed form (NFC). The model reads it in lower case; the forms here are written as people do.
A date belongs to training, validation or the held-out set by a hash of its ISO form, with all its spellings, so the split
depends on no library, no random generator and no order of drawing.
"""

import datetime
import hashlib
import itertools
import random
import string
from dataclasses import dataclass
from typing import Iterator

FIRST, LAST = datetime.date(1900, 1, 1), datetime.date(2099, 12, 31)
HELD_OUT_PERCENT = 8
VALIDATION_PERCENT = 3

ALPHABET = " ',-./0123456789abcdefghijklmnoprstuvwyzºáäéìû"
"""The characters the model knows, in the order of its embedding. Anything else is refused by the plugin."""


@dataclass(frozen=True)
class Language:
    """How one language writes the parts of a date. `short_months` lists the usual abbreviations of each month."""

    months: tuple[str, ...]
    short_months: tuple[tuple[str, ...], ...]
    weekdays: tuple[str, ...]
    short_weekdays: tuple[str, ...]
    plain: dict[int, str]
    """What people type who lack the accents."""
    first: str
    """The ordinal of the first day; English has ordinals for all days."""
    forms: tuple[str, ...]


def words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def abbreviations(text: str) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(month.split("|")) for month in text.split())


# Fields of a form: d, dd the day without and with a leading zero; nth its ordinal; m, mm the month's number; month, mon
# its name and abbreviation; y the year; weekday, wd the weekday's name and abbreviation.
NUMBERS = (
    "{y}-{mm}-{dd}", "{y}-{m}-{d}", "{y}/{mm}/{dd}", "{y}/{m}/{d}", "{y}.{mm}.{dd}", "{y}. {m}. {d}.", "{y} {mm} {dd}", "{y}{mm}{dd}",
    "{dd}.{mm}.{y}", "{d}.{m}.{y}", "{d}. {m}. {y}", "{dd}. {mm}. {y}",
)  # fmt: skip

LANGUAGES = {
    "English": Language(
        words("January February March April May June July August September October November December"),
        abbreviations("Jan Feb Mar Apr May Jun Jul Aug Sep|Sept Oct Nov Dec"),
        words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday"),
        words("Mon Tue Wed Thu Fri Sat Sun"),
        {},
        "1st",
        (
            "{d} {month} {y}", "{d} {mon} {y}", "{month} {d}, {y}", "{mon} {d}, {y}", "{month} {d} {y}", "{month} {nth}, {y}",
            "{mon} {nth} {y}", "{nth} {month} {y}", "{nth} of {month} {y}", "the {nth} of {month}, {y}", "{month} the {nth}, {y}",
            "{weekday}, {d} {month} {y}", "{weekday}, {month} {d}, {y}", "{weekday} {month} {nth} {y}", "{weekday} the {nth} of {month} {y}",
            "{wd}, {dd} {mon} {y}", "{wd} {mon} {d} {y}", "{dd}-{mon}-{y}", "{y} {month} {d}", "{y}-{mon}-{dd}", "on {month} {d}, {y}",
            "{dd}{mon}{y}", "{mon}/{dd}/{y}",
        ),
    ),
    "German": Language(
        words("Januar Februar März April Mai Juni Juli August September Oktober November Dezember"),
        abbreviations("Jan Feb Mär|Mrz Apr Mai Jun Jul Aug Sep|Sept Okt Nov Dez"),
        words("Montag Dienstag Mittwoch Donnerstag Freitag Samstag Sonntag"),
        words("Mo Di Mi Do Fr Sa So"),
        str.maketrans({"ä": "ae"}),
        "1",
        (
            "{d}. {month} {y}", "{dd}. {month} {y}", "{d}. {mon} {y}", "{d} {month} {y}", "am {d}. {month} {y}", "den {d}. {month} {y}",
            "der {d}. {month} {y}", "{weekday}, {d}. {month} {y}", "{weekday}, den {d}. {month} {y}", "{weekday}, der {d}. {month} {y}",
            "{wd}, {d}. {month} {y}", "{wd}., {d}. {mon} {y}", "{weekday}, {dd}.{mm}.{y}", "{wd} {d}.{m}.{y}", "am {weekday}, dem {d}. {month} {y}",
            "{dd}-{mon}-{y}", "{month} {d}, {y}",
        ),
    ),
    "French": Language(
        words("janvier février mars avril mai juin juillet août septembre octobre novembre décembre"),
        abbreviations("janv févr|fév mars avr mai juin juil août sept oct nov déc"),
        words("lundi mardi mercredi jeudi vendredi samedi dimanche"),
        words("lun mar mer jeu ven sam dim"),
        str.maketrans("éû", "eu"),
        "1er",
        (
            "{d} {month} {y}", "{nth} {month} {y}", "{d} {mon} {y}", "le {d} {month} {y}", "le {nth} {month} {y}", "{weekday} {d} {month} {y}",
            "{weekday} {nth} {month} {y}", "le {weekday} {nth} {month} {y}", "{weekday}, le {d} {month} {y}", "{wd} {d} {mon} {y}", "{wd}. {d} {month} {y}",
            "le {d} {mon} {y}", "le {dd}.{mm}.{y}", "{weekday} {dd}.{mm}.{y}", "{dd}-{mon}-{y}", "l'an {y}, le {nth} {month}",
        ),
    ),
    "Spanish": Language(
        words("enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre diciembre"),
        abbreviations("ene feb mar abr may jun jul ago sep|sept oct nov dic"),
        words("lunes martes miércoles jueves viernes sábado domingo"),
        words("lun mar mié jue vie sáb dom"),
        str.maketrans("áé", "ae"),
        "1º",
        (
            "{d} de {month} de {y}", "{d} de {month} del {y}", "{nth} de {month} de {y}", "{d} {month} {y}", "{d} {mon} {y}", "el {d} de {month} de {y}",
            "el {d} de {month} del {y}", "{weekday}, {d} de {month} de {y}", "{weekday} {d} de {month} de {y}", "el {weekday} {d} de {month} de {y}",
            "{wd}, {d} de {month} de {y}", "{wd}. {d} {mon} {y}", "{d} de {mon} de {y}", "{month} {d}, {y}", "a {d} de {month} de {y}", "{dd}-{mon}-{y}",
        ),
    ),
    "Italian": Language(
        words("gennaio febbraio marzo aprile maggio giugno luglio agosto settembre ottobre novembre dicembre"),
        abbreviations("gen feb mar apr mag giu lug ago set|sett ott nov dic"),
        words("lunedì martedì mercoledì giovedì venerdì sabato domenica"),
        words("lun mar mer gio ven sab dom"),
        str.maketrans("ì", "i"),
        "1º",
        (
            "{d} {month} {y}", "{nth} {month} {y}", "{d} {mon} {y}", "il {d} {month} {y}", "il {nth} {month} {y}", "{weekday} {d} {month} {y}",
            "{weekday}, {d} {month} {y}", "{weekday} {nth} {month} {y}", "{wd} {d} {mon} {y}", "{wd}. {d} {month} {y}", "{dd}-{mon}-{y}",
            "{weekday} {dd}.{mm}.{y}", "addì {d} {month} {y}",
        ),
    ),
}  # fmt: skip


def ordinal(day: int, name: str) -> str:
    if name != "English":
        return LANGUAGES[name].first if day == 1 else str(day)
    teen = 10 <= day % 100 <= 20
    return str(day) + ("th" if teen else {1: "st", 2: "nd", 3: "rd"}.get(day % 10, "th"))


def numbers(date: datetime.date) -> dict[str, tuple[str, ...]]:
    """Each numeric field with its one spelling."""
    day, month = date.day, date.month
    return {"d": (str(day),), "dd": (f"{day:02}",), "m": (str(month),), "mm": (f"{month:02}",), "y": (str(date.year),)}


def fields(date: datetime.date, name: str) -> dict[str, tuple[str, ...]]:
    """Each field with all its spellings in a language."""
    language = LANGUAGES[name]
    full = language.months[date.month - 1]
    short = language.short_months[date.month - 1]
    stopped = tuple(f"{word}." for word in short if word != full)
    return numbers(date) | {
        "nth": (ordinal(date.day, name),),
        "month": (full,),
        "mon": short + stopped,
        "weekday": (language.weekdays[date.weekday()],),
        "wd": (language.short_weekdays[date.weekday()],),
    }


def write(date: datetime.date, rng: random.Random) -> str:
    """A date as somebody might write it: any language, then any of its forms and spellings."""
    name = rng.choice(["", *LANGUAGES])
    if not name:
        return rng.choice(NUMBERS).format_map({field: only[0] for field, only in numbers(date).items()})
    language = LANGUAGES[name]
    text = rng.choice(language.forms).format_map({field: rng.choice(spellings) for field, spellings in fields(date, name).items()})
    return text.translate(language.plain) if rng.random() < 0.1 else text


def every(date: datetime.date) -> Iterator[str]:
    """Every text that `write` may give for a date."""
    for name, form in [("", form) for form in NUMBERS] + [(name, form) for name in LANGUAGES for form in LANGUAGES[name].forms]:
        spellings = fields(date, name) if name else numbers(date)
        used = [field for _, field, _, _ in string.Formatter().parse(form) if field]
        for choice in itertools.product(*(spellings[field] for field in used)):
            text = form.format_map(dict(zip(used, choice)))
            yield text
            if name:
                yield text.translate(LANGUAGES[name].plain)


def part(date: datetime.date) -> str:
    """Which set a date belongs to: `held-out`, `validation` or `training`."""
    percent = int.from_bytes(hashlib.sha256(date.isoformat().encode()).digest()[:4], "big") % 100
    if percent < HELD_OUT_PERCENT:
        return "held-out"
    return "validation" if percent < HELD_OUT_PERCENT + VALIDATION_PERCENT else "training"


def pairs(wanted: str, seed: int) -> Iterator[tuple[str, str]]:
    """Endless (text, ISO date) pairs of one set, always the same ones for a seed; each round takes every date once."""
    rng = random.Random(seed)
    span = (FIRST + datetime.timedelta(days) for days in range((LAST - FIRST).days + 1))
    dates = [date for date in span if part(date) == wanted]
    while True:
        rng.shuffle(dates)
        for date in dates:
            yield write(date, rng), date.isoformat()


def request(identifier: str, text: str) -> dict:
    """An Open Inference Protocol v2 inference request."""
    return {"id": identifier, "inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": [text]}]}


def check() -> None:
    """Fails where a text names two dates, or needs a character outside of the alphabet.

    Two years are enough: every form spells the year in full, so texts of different years differ.
    """
    meaning, longest = {}, ""
    for days in range(731):
        date = datetime.date(2023, 1, 1) + datetime.timedelta(days)
        for text in map(str.lower, every(date)):
            assert meaning.setdefault(text, date) == date, f"{text!r} is {meaning[text]} and {date}"
            longest = max(longest, text, key=len)
    assert sorted(set("".join(meaning))) == list(ALPHABET), sorted(set("".join(meaning)) ^ set(ALPHABET))
    forms = len(NUMBERS) + sum(len(language.forms) for language in LANGUAGES.values())
    print(f"{forms} forms, {len(LANGUAGES)} languages, {len(meaning)} texts, all unambiguous; {len(ALPHABET)} characters")
    print(f"the longest has {len(longest)}: {longest}")


if __name__ == "__main__":
    check()
