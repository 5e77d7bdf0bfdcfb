"""The language rules that a program can check: a passage goes in, violations come out.

    violations(text, kind) -> violations          pure

Each rule has good and bad pairs in tests/house/test_language.py. A rule that needs a reader's
judgement (is the sentence true, is the word the field's) is not here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import Path

from tests.house.language.passages import Kind
from tests.house.language.sentences import Sentence, sentences, separators, words

WORDS_MAX = 25
SEPARATORS_MAX = 1


class Rule(Enum):
    OPENER = "opener"
    IMPERATIVE = "imperative"
    LENGTH = "length"
    SEPARATORS = "separators"
    WORD = "word"


MEND = {
    Rule.OPENER: "name the subject: the proposer, a lagging safekeeper, the caller",
    Rule.IMPERATIVE: "begin with a verb in the imperative: Return ..., or None if ... "
    "(a verb that is missing belongs in tests/house/language/verbs.txt)",
    Rule.LENGTH: f"one idea a sentence, at most {WORDS_MAX} words",
    Rule.SEPARATORS: f"at most {SEPARATORS_MAX} of ; : - in a sentence: make two of it",
    Rule.WORD: "use the field's word",
}


@dataclass(frozen=True, slots=True)
class Violation:
    rule: Rule
    sentence: str
    offset: int  # in the passage
    mend: str


# Words before the subject that do not change what the subject is.
_LEAD = r"(?:(?:and|but|so|or|yet|then)\s+)?"
QUESTION_WORD = re.compile(_LEAD + r"(?:who|whom|whose|what|which|whether)\b(?!-)", re.IGNORECASE)
OPENER = re.compile(
    _LEAD
    + r"""(?:
      (?:whoever|whomever|whatever|whichever)\b
    | (?:nobody|nothing|somebody|someone|anybody|anyone)\b
    | of\b
    | (?:none|refused)(?:[:;,]|\s+(?:if|for|where|when|as|unless|without|before|until)\b)
    | that\s+which\b
    | (?:one|those|all|he|they|it)\s+(?:who|whom|whose|that|which)\b
    | (?:one|those|all)\s+of\s+(?:which|whom|whose)\b
    )""",
    re.IGNORECASE | re.VERBOSE,
)
_BEFORE_SUBJECT = re.compile(r"""^\s*["'(\[*_]*""")
PART = re.compile(r"[;:]\s+")
CLAUSE = re.compile(r";\s+")

# A word of ours, and the field's word for it. Only what is wrong wherever it stands.
WORDS = tuple(
    (re.compile(rf"\b(?:{pattern})\b", re.IGNORECASE), instead)
    for pattern, instead in (
        (r"(?:is|are|was|were|be|been|being) (?:said|asked)", "active voice: X says, X asks"),
        (r"told", "active voice: X sends, X reports, X tells Y"),
        (r"hears?|heard|hearing", "receive, learn"),
        (r"whoever|whomever", "name the subject"),
        (r"gives? way|gave way", "yield, fall back"),
        (r"parts? at", "diverge at"),
        (r"reckon(?:s|ed|ing)?", "count, compute"),
        (r"(?:lies?|lay|stands?|stood|right|just|directly|comes?|came|next) behind", "after"),
        (r"behind the (?:end|last|header|record|segment|election|newest)", "after"),
    )
)


@cache
def verbs() -> frozenset[str]:
    """Return the verbs that may begin a function's docstring."""
    return frozenset((Path(__file__).parent / "verbs.txt").read_text().split())


def violations(text: str, kind: Kind = Kind.PROSE) -> list[Violation]:
    """Return what the passage breaks, in the order of its sentences."""
    found = []
    for place, sentence in enumerate(sentences(text)):
        for rule, broken in CHECKS.items():
            if rule is Rule.IMPERATIVE and place > 0:
                continue
            found += [
                Violation(rule, sentence.text, sentence.offset, mend)
                for mend in broken(sentence, kind)
            ]
    return found


def _opener(sentence: Sentence, kind: Kind) -> Iterator[str]:
    mask = sentence.masked
    bold = mask.startswith("**") and mask.endswith("**")  # a heading that runs into its paragraph
    asks = kind is Kind.HEADING or bold or mask.rstrip("\"')*_").endswith("?")
    # A semicolon begins a sentence of its own, except in a message's form.
    clauses = mask if kind is Kind.MESSAGE else CLAUSE.sub(";\n", mask)
    for clause in clauses.split(";\n"):
        subject = _BEFORE_SUBJECT.sub("", clause, count=1)
        if OPENER.match(subject) or (QUESTION_WORD.match(subject) and not asks):
            yield MEND[Rule.OPENER]
            return


def _imperative(sentence: Sentence, kind: Kind) -> Iterator[str]:
    if kind is not Kind.DOCSTRING:
        return
    first, *rest = (word.strip(".,:;") for word in sentence.text.split())
    noun = rest[:1] == ["of"]  # "Record of ...", "Start of ...": the same letters as a verb
    if not first[:1].isupper() or first.lower() not in verbs() or noun:
        yield MEND[Rule.IMPERATIVE]


def _length(sentence: Sentence, kind: Kind) -> Iterator[str]:
    # Each part of a message, as in `what failed: why; what to do`, stands for a sentence.
    parts = PART.split(sentence.masked) if kind is Kind.MESSAGE else [sentence.masked]
    longest = max(words(part) for part in parts)
    if longest > WORDS_MAX:
        yield f"{MEND[Rule.LENGTH]}; this one has {longest}"


def _separators(sentence: Sentence, kind: Kind) -> Iterator[str]:
    # The form of a message is `what failed: why; what to do`.
    if kind is not Kind.MESSAGE and separators(sentence.masked) > SEPARATORS_MAX:
        yield MEND[Rule.SEPARATORS]


def _word(sentence: Sentence, kind: Kind) -> Iterator[str]:
    for pattern, instead in WORDS:
        found = pattern.search(sentence.masked)
        if found:
            yield f"{MEND[Rule.WORD]} for `{found[0]}`: {instead}"


CHECKS: dict[Rule, Callable[[Sentence, Kind], Iterator[str]]] = {
    Rule.OPENER: _opener,
    Rule.IMPERATIVE: _imperative,
    Rule.LENGTH: _length,
    Rule.SEPARATORS: _separators,
    Rule.WORD: _word,
}
