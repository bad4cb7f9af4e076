"""One log read once: which rules its lines match, its figures, and how far its process got.

Rules of this file: bounded memory and no verdict. A line that logs.py leaves is looked up by its
text less digits and hexadecimal ids, so that a line repeated a million times is judged once and
then counted. Evidence is capped, counts are not.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import BinaryIO, Literal

import msgspec

from twolane.diagnosis import figures
from twolane.diagnosis.catalogue import RULES
from twolane.diagnosis.findings import SYMPTOM
from twolane.diagnosis.logs import Chunk, Line, chunks
from twolane.diagnosis.rule import Match, Rule
from twolane.diagnosis.service import Service

MOST_MATCHES = 1000  # kept with their text; request ids of wrong answers are read from them
MOST_KNOWN = 100_000  # line templates remembered; then they are forgotten and learnt anew
DENSE = 4096  # telling lines in a chunk from which they are compared before they are looked at
SAME_NEWS = 4  # of equal lines in one chunk that tell how far an engine got
SAME_FIGURES = 512  # of one kind in a chunk: with a line every 10 s, more than an hour
BEFORE = 24  # lines of the same process kept in front of a match
VARYING = b"0123456789abcdef"  # digits and hexadecimal ids: what differs in a repeated line

RAISED = re.compile(r"^(?:[\w.]+\.)?[A-Z]\w*(?:Error|Exception|Interrupt|Exit)\b(?::|$)")
ROLE = re.compile(r"kv_role['\"]?[=:] ?['\"]kv_(producer|consumer)")
READY = ("Application startup complete", "init engine (profile")
HANGS_AFTER = "Initializing NIXL Scheduler"
STOPPED = "[shutdown] API server: shutdown triggered"
FIGURES = ("Avg prompt throughput", "KV Transfer metrics", "SpecDecoding metrics",
           "Chunked prefill is enabled", " KV cache size")  # fmt: skip

News = Literal["", "figure", "ready", "hangs", "raised", "role", "stopped"]


class Pattern(msgspec.Struct, frozen=True):
    """One expression of one rule. `needs` is in every line that it matches: a cheap test."""

    rule: Rule
    regex: re.Pattern[str]
    needs: str

    def near(self, text: str) -> bool:
        """Whether a look at the line before could still make it match."""
        return bool(self.rule.over_lines) and self.rule.over_lines in text


class Template(msgspec.Struct, frozen=True):
    """What lines of one kind mean: nothing, news for the reader, matches for rules."""

    news: News
    patterns: tuple[Pattern, ...]


NOTHING = Template("", ())


def needed(pattern: str) -> str:
    """The longest plain text that every match of `pattern` contains; empty where unsure."""
    plain = re.sub(r"\((?:[^()\\]|\\.|\([^()]*\))*\)[?*+]?", "\0", pattern)
    if "|" in plain:
        return ""
    plain = re.sub(r"\\[dwsSWDb]|\[[^\]]*\]", "\0", plain)
    plain = re.sub(r"\\(.)", r"\1", re.sub(r"(?<!\\).[*?]|(?<!\\)[.+^$]", "\0", plain))
    return max(plain.split("\0"), key=len)


def compiled() -> tuple[Pattern, ...]:
    rows = [(rule, text) for rule in RULES.values() for text in rule.log]
    return tuple(
        Pattern(rule, re.compile(text), "" if rule.over_lines else needed(text))
        for rule, text in rows
    )


PATTERNS = compiled()


class Reading:
    """One log: `matches` and `counts` by rule, `first` the stamp and line of a rule's first."""

    def __init__(self, name: str, consumer: bool | None = None) -> None:
        self.name = name
        self.service = Service(where=name, consumer=consumer)
        self.matches: dict[str, list[Match]] = {}
        self.counts: dict[str, int] = {}
        self.first: dict[str, tuple[str, int]] = {}
        self.ready = False
        self.stopped = False
        self.hangs: Match | None = None
        self.raised: Match | None = None
        self._known: dict[bytes, Template] = {}
        self._boring: dict[re.Pattern[bytes], set[bytes]] = {}
        self._stamp = ""

    def read(self, stream: BinaryIO) -> None:
        for chunk in chunks(stream):
            starts = chunk.starts(DENSE)
            for start in starts if len(starts) < DENSE else self.unlike(chunk):
                self.look(chunk, start)

    def unlike(self, chunk: Chunk) -> list[int]:
        """Of a chunk full of telling lines, those that are new; lines like others are counted."""
        keys = chunk.body().translate(None, VARYING).split(b"\n")
        boring = self._boring.setdefault(chunk.pattern, set())
        if len(boring) > MOST_KNOWN:
            boring.clear()
        kinds = ((key, times) for key, times in Counter(keys).items() if key not in boring)
        quota = {key: room for key, times in kinds if (room := self.room(key, times))}
        out: list[int] = []
        places = chunk.line_starts() if quota else ()
        for index, key in enumerate(keys if quota else ()):
            if quota.get(key):
                quota[key] -= 1
                start = int(places[index])
                if chunk.telling(start):
                    out.append(start)
                else:
                    boring.add(key)
                    quota[key] = 0
        return out

    def room(self, key: bytes, times: int) -> int:
        """How many of `times` lines like `key` are still worth a look; the others count now."""
        template = self._known.get(key)
        if template is None:
            return min(times, MOST_MATCHES)
        if template.news == "raised" and self.raised is not None:
            return 0
        if template.news:
            return min(times, SAME_FIGURES if template.news == "figure" else SAME_NEWS)
        rules = {pattern.rule.id for pattern in template.patterns}
        least = min((self.counts.get(rule, 0) for rule in rules), default=MOST_MATCHES)
        look = min(times, max(0, MOST_MATCHES - least))
        for rule in rules:
            self.counts[rule] = self.counts.get(rule, 0) + times - look
        return look

    def look(self, chunk: Chunk, start: int) -> None:
        raw = chunk.raw(start)
        key = raw.translate(None, VARYING)
        template = self._known.get(key)
        if template is None:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
                self._boring.clear()
            template = self._known[key] = learn(chunk.line(start).text)
        if template is not NOTHING:
            self.take(chunk, start, template)

    def take(self, chunk: Chunk, start: int, template: Template) -> None:
        open_rules = [p for p in template.patterns if self.means(p.rule) and self.wants(p.rule.id)]
        if not open_rules and not template.news:
            return
        line = chunk.line(start)
        self._stamp = line.stamp or self._stamp
        if template.news:
            self.hear(chunk, line, template.news)
        for pattern in open_rules:
            self.match(chunk, line, pattern)

    def means(self, rule: Rule) -> bool:
        """Whether a match counts: an engine that is told to stop loses its parts as a dying one."""
        return not self.stopped or rule.rank < SYMPTOM

    def wants(self, rule: str) -> bool:
        """Whether another match is worth keeping; a rule that has enough is only counted."""
        self.counts[rule] = self.counts.get(rule, 0) + 1
        return self.counts[rule] <= MOST_MATCHES

    def match(self, chunk: Chunk, line: Line, pattern: Pattern) -> None:
        rule = pattern.rule
        found = pattern.regex.search(line.text)
        if found is None and pattern.near(line.text):
            found = pattern.regex.search("\n".join([*chunk.before(line, 1), line.text]))
        if found is None:
            self.counts[rule.id] -= 1
            return
        kept = self.matches.setdefault(rule.id, [])
        if any(m.number == line.number for m in kept[-1:]):  # two patterns of one rule
            self.counts[rule.id] -= 1
            return
        self.first.setdefault(rule.id, (self._stamp, line.number))
        groups = tuple(g or "" for g in found.groups())
        kept.append(self.cite(chunk, line, groups, first=not kept))

    def cite(self, chunk: Chunk, line: Line, groups: tuple[str, ...], first: bool) -> Match:
        before = tuple(chunk.before(line, BEFORE)) if first else ()
        return Match(groups, line.text, before, self.name, line.number, line.process)

    def hear(self, chunk: Chunk, line: Line, news: News) -> None:
        if news == "figure":
            figures.read_line(self.service, line.text)
        elif news == "ready":
            self.become_ready()
        elif news == "hangs":
            self.hangs = self.cite(chunk, line, (), first=False)
        elif news == "stopped":
            self.stopped = True
        elif news == "raised" and self.raised is None and not self.stopped:
            self.raised = self.cite(chunk, line, (), first=True)
        elif news == "role":
            role = ROLE.search(line.text)  # only consumers speak of the params they were handed
            self.service.consumer = role is None or role[1] == "consumer"

    def become_ready(self) -> None:
        """What was only slow while the engine started means nothing once it has."""
        self.ready = True
        for rule in [r for r in self.matches if RULES[r].starting]:
            del self.matches[rule], self.counts[rule], self.first[rule]


def learn(text: str) -> Template:
    """What every line like `text` means."""
    patterns = tuple(
        p for p in PATTERNS if p.near(text) or (p.needs in text and p.regex.search(text))
    )
    news = news_in(text, bool(patterns))
    return Template(news, patterns) if news or patterns else NOTHING


def news_in(text: str, matched: bool) -> News:
    if any(word in text for word in FIGURES):
        return "figure"
    if any(word in text for word in READY):
        return "ready"
    if STOPPED in text:
        return "stopped"
    if HANGS_AFTER in text:
        return "hangs"
    if "KVTransferParams" in text or ROLE.search(text):
        return "role"
    return "raised" if not matched and RAISED.match(text) else ""
