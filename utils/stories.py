"""Very short stories, written by a small grammar: what they say agrees with itself.

Two children, a thing with a colour, places and boxes. A `Story` knows where everybody
is and who has the thing. So it knows which sentences can come next, and with which
probability: this writes stories, and it says how probable a text is.
"""

import itertools
import math
import random
import re
from os.path import commonprefix

import torch
from torch import Tensor

from utils.data import IGNORED, SPLIT

WHO = {"girl": ("She", "her"), "boy": ("He", "him")}
FIRST = "Alex Billie Charlie Kim Max Robin".split()  # names of girls and of boys
SECOND = "Andy Jo Lou Nicky Sam Toni".split()
LOOKS = "big black blue brown green new pink red shiny small white yellow".split()
THINGS = "ball bell boat book cup doll drum hat key kite lamp ring".split()
PLACES = "attic barn forest garden kitchen park school yard".split()
BOXES = "bag basket box bucket drawer".split()
# event: how it is told. {A} does it, and is a name, or She or He for the child that the
# sentence before was about; {b} is the other child.
TOLD = """
start: There was a {who} named {a}. {She} had a {thing}. \
{She} had a friend, a {other} named {b}.
start: Once a {who} named {a} got a {thing}. {She} loved it. \
{She} lived next door to a {other} named {b}.
go: {A} went to the {place}.
go: {A} ran to the {place}.
come: {A} came to the {place}, too.
come: {A} followed {b} to the {place}.
lose: {A} lost the {thing} in the {place}. {She} was sad.
lose: {A} played in the {place} and lost the {thing}. {She} cried.
find: {A} found the {thing} in the {place}. {She} was happy.
find: {A} looked around the {place} and saw the {thing}. {She} took it.
hide: {A} hid the {thing} in a {place}.
hide: {A} put the {thing} in a {place}.
open: {A} looked in the {place} and found the {thing}.
open: {A} opened the {place} and took the {thing}.
give: {A} gave the {thing} to {b}. "Thank you!" said {b}.
give: {A} gave {b} the {thing}. {b} was happy.
ask: {A} asked {b} for the {thing}. {b} gave it to {her}.
ask: {A} wanted the {thing}. {b} said yes and gave it to {her}.
play: {A} and {b} played with the {thing}.
play: {A} and {b} had fun with the {thing}. They laughed.
had: At night, {place} had the {thing}.
had: When the moon came up, {place} had the {thing}.
lay: At night, the {thing} was still in the {place}.
lay: Nobody took the {thing} home. It was in the {place}."""
WORDINGS: dict[str, list[str]] = {}
for _event, _wording in (line.split(": ", 1) for line in TOLD.strip().splitlines()):
    WORDINGS.setdefault(_event, []).append(_wording)
NAMES = FIRST + SECOND
SLOTS = {  # what can stand in the place of a word in braces
    "who": [*WHO],
    "other": [*WHO],
    "a": FIRST,
    "b": NAMES,
    "A": [*NAMES, "She", "He"],
    "She": ["She", "He"],
    "her": ["her", "him"],
    "thing": [f"{look} {thing}" for look in LOOKS for thing in THINGS],
    "place": PLACES + BOXES + NAMES,
}
KINDS = {"colour": LOOKS, "thing": THINGS, "name": NAMES}  # of words
KINDS |= {"pronoun": ["She", "He", "her", "him"], "place": PLACES + BOXES}
ENDS = ("had", "lay")
EVENTS = 5  # of a story, after its start and before its end
STARTS = len(FIRST) * len(SECOND) * len(WHO) ** 2 * len(SLOTS["thing"])


class Story:
    """What is true at some point of a story.

    who: {the first child: "girl" or "boy", the second: …}. thing: e.g. "yellow kite".
    at: where children and boxes are. keeper: the child, place or box that has the
    thing. last: whom the last sentence was about. event, events: the last; how many.
    """

    def __init__(self, who: dict[str, str], thing: str):
        self.who, self.thing, (a, b) = who, thing, who
        self.at, self.keeper, self.last = {a: "home", b: "the other home"}, a, a
        self.event, self.events = "start", 0

    def places(self, doer: str, other: str) -> dict[str, list]:
        """Return {event: where a child can do it now}; None: the place is not said."""
        here, there, keeper = self.at[doer], self.at[other], self.keeper
        out, together, new = here in PLACES, here == there, doer != self.last
        leave = keeper == doer and out and self.event not in ("find", "open")
        boxed = keeper in BOXES and self.at[keeper] == here
        share, wish = keeper == doer and together, keeper == other and together
        can = {
            "go": PLACES if not out and there not in PLACES else [],
            "come": [there] if there in PLACES and not together else [],
            "lose": [here] if leave else [],
            "find": [here] if keeper == here and new else [],
            "hide": BOXES if leave else [],
            "open": [keeper] if boxed and new else [],
            "give": [None] if share and self.event != "ask" else [],
            "ask": [None] if wish and self.event != "give" else [],
            "play": [None] if share else [],
        }
        return {e: where for e, where in can.items() if where and e != self.event}

    def happen(self, event: str, doer: str, other: str, place: str | None) -> None:
        """Change what is true, as an event does."""
        takers = {"lose": place, "hide": place, "give": other}
        takers |= dict.fromkeys(("find", "open", "ask"), doer)
        self.keeper = takers.get(event, self.keeper)
        if event in ("go", "come"):
            self.at[doer] = place
        if event == "hide":
            self.at[place] = self.at[doer]
        self.last = {"give": other, "ask": other, "play": None}.get(event, doer)
        self.event, self.events = event, self.events + 1

    def tell(self, event: str, doer: str, other: str, place: str | None) -> list[str]:
        """Return the sentences that can tell an event."""
        she, her = WHO[self.who[doer]]
        words = {"A": she if doer == self.last else doer, "She": she, "her": her}
        words |= {"a": doer, "b": other, "thing": self.thing, "place": place}
        words |= {"who": self.who[doer], "other": self.who[other]}
        return [wording.format(**words) for wording in WORDINGS[event]]

    def next(self) -> list[tuple[float, str, tuple]]:
        """Return (probability, sentence, event) of all that can come next.

        An event is drawn among those that are possible, then who does it, then a place,
        then a wording, each with the same probability. The end is no event: ().
        """
        a, b = self.who
        can = {pair: self.places(*pair) for pair in ((a, b), (b, a))}
        events = [e for e in WORDINGS if any(e in where for where in can.values())]
        if self.events == EVENTS or not events:
            told = self.tell(ENDS[self.keeper not in self.who], a, b, self.keeper)
            return [(1 / len(told), sentence, ()) for sentence in told]
        found = []
        for event in events:
            doers = [pair for pair in can if event in can[pair]]
            for pair in doers:
                for place in can[pair][event]:
                    told = self.tell(event, *pair, place)
                    p = 1 / (len(events) * len(doers) * len(can[pair][event]))
                    what = (event, *pair, place)
                    found += [(p / len(told), sentence, what) for sentence in told]
        return found


def write_stories(count: int, seed: int) -> list[str]:
    """Return independent stories, each in one line.

    >>> write_stories(1, seed=0)[0][:28]
    'There was a girl named Robin'
    """
    rng = random.Random(seed)
    return [_write(rng) for _ in range(count)]


def surprise(text: str) -> float:
    """Return -log of the probability that the grammar writes this story; inf: never.

    There is at most one way to write it. The sum over many stories, divided by the
    number of their tokens, is the lowest loss that any model can reach, in the mean.
    """
    return _read(text)[0]


def is_right(text: str) -> bool:
    """Return whether the grammar can write this story: no error, from start to end."""
    return surprise(text) < math.inf


def first_error(text: str) -> str | None:
    """Return the kind of the first wrong word; None: the grammar can write this story.

    A word is wrong if no story begins with the text up to it. The kinds are those of
    KINDS, "start" (before the first event), "night" (who has it then), and "other".
    """
    return _read(text)[1]


def encode(texts: list[str]) -> Tensor:
    """Return ids (stories, length): each begins and ends with "\\n"; then 0, no token.

    So `encode([text])[:, :-1]` is the beginning of a story that can go on.

    >>> encode(["There was a girl."])
    tensor([[  1, 116, 103,  22,  56, 113,   1]])
    """
    rows = [SPLIT["words"](f"\n{text}\n") for text in texts]
    if unknown := {token for row in rows for token in row} - NUMBER.keys():
        has = "VOCAB is all they have"
        raise ValueError(f"the stories have no {sorted(unknown)}; {has}.")
    longest = max(map(len, rows), default=0)
    ids = [[NUMBER[x] for x in row] + [0] * (longest - len(row)) for row in rows]
    return torch.tensor(ids, dtype=torch.int64).view(len(rows), longest)


def decode(ids: Tensor) -> str:
    """Return the text of ids (length,), without white space around it."""
    return "".join(VOCAB[i] for i in ids.tolist()).strip()


def next_tokens(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return what a language model gets of rows (stories, length), and its targets.

    Both (stories, length - 1). Where there is no token, the target does not count.
    """
    return rows[:, :-1], rows[:, 1:].masked_fill(rows[:, 1:] == 0, IGNORED)


def _write(rng: random.Random) -> str:
    def pick(options: list):  # the same in every version of Python
        return options[int(rng.random() * len(options))]

    a, b = pick(FIRST), pick(SECOND)
    story = Story({a: pick([*WHO]), b: pick([*WHO])}, pick(SLOTS["thing"]))
    told, what = [pick(story.tell("start", a, b, None))], None
    while what != ():
        ways = story.next()
        _, sentence, what = rng.choices(ways, [p for p, *_ in ways])[0]
        told.append(sentence)
        if what:
            story.happen(*what)
    return " ".join(told)


def _read(text: str) -> tuple[float, str | None]:
    """Return what `surprise` and `first_error` return."""
    said = next(filter(None, (start.match(text) for start in STARTED)), None)
    if not said or said["b"] not in SECOND or said["She"] != WHO[said["who"]][0]:
        return math.inf, "start"
    story = Story({said["a"]: said["who"], said["b"]: said["other"]}, said["thing"])
    found, rest = math.log(STARTS * len(STARTED)), text[said.end() :]
    while True:
        ways = [(p, f" {sentence}", what) for p, sentence, what in story.next()]
        fits = [x for x in ways if rest.startswith(x[1]) and (x[2] or rest == x[1])]
        if not fits:
            return math.inf, _kind(rest, [sentence for _, sentence, _ in ways])
        ((p, sentence, what),) = fits  # no sentence begins with another one
        found, rest = found - math.log(p), rest[len(sentence) :]
        if not what:
            return found, None
        story.happen(*what)


def _kind(said: str, told: list[str]) -> str:
    """Return the kind of the first word in which `said` differs from all of `told`."""
    words, *others = map(SPLIT["words"], [said, *told])
    right = max((commonprefix([words, each]) for each in others), key=len)
    if right[-1:] == [","] and right[0] in (" At", " When"):  # At night, …
        return "night"
    wrong = "".join(words[len(right) :][:1]).strip()
    return next((kind for kind, words in KINDS.items() if wrong in words), "other")


def _pattern(wording: str) -> re.Pattern:
    """Return a regular expression for a wording, with any of its words in braces."""
    pattern = re.escape(wording)
    for name, options in SLOTS.items():  # a word that comes again is the same again
        brace, group = rf"\{{{name}\}}", f"(?P<{name}>{'|'.join(options)})"
        pattern = pattern.replace(brace, group, 1).replace(brace, f"(?P={name})")
    return re.compile(pattern + r"(?!\S)")


def _tokens() -> set[str]:
    """Return the tokens of all sentences, with any of the words in their braces."""
    found, first = set(), {name: options[0] for name, options in SLOTS.items()}
    for event, wordings in WORDINGS.items():
        before = "\n" if event == "start" else " "
        for wording, (name, options) in itertools.product(wordings, SLOTS.items()):
            for option in options:
                text = before + wording.format(**first | {name: option})
                found.update(SPLIT["words"](text))
    return found


STARTED = [_pattern(x) for x in WORDINGS["start"]]
VOCAB = ["", *sorted(_tokens())]  # id 0 is no token
NUMBER = {token: i for i, token in enumerate(VOCAB)}
