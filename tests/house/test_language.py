"""The language rules of docs/style.md: every sentence of code and documents obeys.

`python -m tests.house.language PATH` shows what a file breaks.
"""

from __future__ import annotations

import pytest

from tests.house.language import markdown_text, python_text
from tests.house.language.__main__ import table
from tests.house.language.passages import Kind
from tests.house.language.rules import Rule, verbs, violations
from tests.house.language.sentences import sentences, words
from tests.house.language.tree import Found, broken, files
from tests.support.folders import ROOT

SHOWN_MAX = 20


def broken_rules(text: str, kind: Kind = Kind.PROSE) -> set[Rule]:
    return {violation.rule for violation in violations(text, kind)}


def python_passages(source: str) -> list[tuple[Kind, int, str]]:
    passages = python_text.passages(source, messages=True)
    return [(passage.kind, passage.line, passage.text) for passage in passages]


def markdown_passages(source: str) -> list[tuple[Kind, int, str]]:
    return [
        (passage.kind, passage.line, passage.text) for passage in markdown_text.passages(source)
    ]


def test_every_sentence_obeys_the_rules() -> None:
    wrong = [str(found) for found in broken()]
    assert not wrong, f"{len(wrong)} sentences to mend:\n" + "\n".join(wrong[:SHOWN_MAX])


def test_code_documents_and_tests_are_all_read() -> None:
    names = {str(path.relative_to(ROOT)) for path in files()}
    assert {"README.md", "docs/protocol.md", "tests/house/test_language.py"} <= names
    assert len(names) > 400
    assert not [name for name in names if name.startswith(".")]


# A bad sentence, the rule that it breaks, and a good one in its place.
PAIRS = [
    (
        Rule.OPENER,
        "Whatever is not expected byte for byte takes the lines of the table.",
        "A frame that does not match the template falls back to the slow path.",
    ),
    (
        Rule.OPENER,
        "Who has more is cut there.",
        "Members with WAL beyond this point truncate to it.",
    ),
    (
        Rule.OPENER,
        "Nobody writes below it, so a reader may go on.",
        "The log is immutable below it.",
    ),
    (
        Rule.OPENER,
        "Nothing is written when the disk is full.",
        "The store writes nothing when the disk is full.",
    ),
    (
        Rule.OPENER,
        "Somebody asks where the log ends.",
        "A client asks where the log ends.",
    ),
    (
        Rule.OPENER,
        "Whether what one says of the log takes the place of what we know",
        "Return True if this greeting carries a newer configuration.",
    ),
    (
        Rule.OPENER,
        "Of the members; during a replacement of the new ones, too.",
        "A replacement also needs the quorums of the new members.",
    ),
    (
        Rule.OPENER,
        "None: the file was moved.",
        "None of the three libraries ships types.",
    ),
    (
        Rule.OPENER,
        "None as well for what has moved: it is read.",
        "Return None if the file was renamed; the caller then uses `read`.",
    ),
    (
        Rule.OPENER,
        "Refused: the URL or the cluster's name is none.",
        "Raise Refused if the URL or the cluster name is invalid.",
    ),
    (
        Rule.OPENER,
        "That which lacks a CRC is dropped.",
        "That frame lacks a CRC.",
    ),
    (
        Rule.OPENER,
        "The proposer stops. But who leads may be carrying more.",
        "The proposer stops. But the leader may have more.",
    ),
    (
        Rule.OPENER,
        "One link is open; whoever dials again closes it.",
        "One link is open; a second connection closes it.",
    ),
    (
        Rule.LENGTH,
        "A greeting " + "and an answer " * 8,
        "A greeting " + "and an answer " * 7,
    ),
    (
        Rule.SEPARATORS,
        "Two marks: the first one is durable; the second one is not.",
        "The first mark is durable; the second one is not.",
    ),
    (
        Rule.SEPARATORS,
        "Both stop \u2013 the log is full \u2013 until somebody makes room.",
        "Both stop until the disk has room \u2013 the log is full.",
    ),
    (
        Rule.WORD,
        "The peer is told the newest term.",
        "The acceptor sends the newest term to the peer.",
    ),
    (
        Rule.WORD,
        "A candidate hears no older term.",
        "A candidate ignores an older term.",
    ),
    (
        Rule.WORD,
        "The state is asked for twice.",
        "The client requests the state twice.",
    ),
    (
        Rule.WORD,
        "The next frame lies behind the header.",
        "The standby is one segment behind. The next frame follows the header.",
    ),
    (
        Rule.WORD,
        "The two histories part at this LSN.",
        "This LSN is the divergence point of the two histories.",
    ),
]


@pytest.mark.parametrize(("rule", "bad", "good"), PAIRS, ids=lambda value: str(value)[:30])
def test_a_bad_sentence_is_found_and_a_good_one_is_not(rule: Rule, bad: str, good: str) -> None:
    assert rule in broken_rules(bad)
    assert not broken_rules(good)


DOCSTRINGS = [
    (
        "What a Done is told, for whoever awaits it; they may have gone.",
        "Resolve the future with the job's result or error; ignore it if it is already done.",
    ),
    (
        "Behind at most `most` segments from the one with `begin` on.",
        "Return the end offset at most `most` segments after the segment containing `begin`.",
    ),
    (
        "Which worker of a process may block its loop: the only one with brief jobs lately.",
        "Let at most one worker per process run short jobs on the event loop.",
    ),
    (
        "(its place, the place behind it), places from `start` on are aligned; -1: none is there.",
        "Return (start, end) byte offsets of the value, or -1 if the value is absent.",
    ),
    (
        "Not one that was abandoned; looks ahead where it is longer than a frame.",
        "Skip abandoned transactions (look ahead for transactions longer than one frame).",
    ),
    (
        "What the newcomer holds. Refused if that is not for us to use.",
        "Return the new member's log state; raise Refused if it belongs to another log.",
    ),
    ("Returns the oldest LSN.", "Return the oldest LSN that a slot still needs, or None."),
    ("Record of the newest checkpoint.", "Record the newest checkpoint."),
    ("The end of the log.", "Find the end of the log."),
    ("`end` of the log.", "Write `end`."),
]


@pytest.mark.parametrize(("bad", "good"), DOCSTRINGS, ids=lambda text: text[:30])
def test_a_function_begins_with_a_verb(bad: str, good: str) -> None:
    assert Rule.IMPERATIVE in broken_rules(bad, Kind.DOCSTRING)
    assert not broken_rules(good, Kind.DOCSTRING)
    assert Rule.IMPERATIVE not in broken_rules(bad, Kind.COMMENT)


def test_only_the_summary_of_a_docstring_needs_a_verb() -> None:
    assert not broken_rules("Return the oldest LSN. The caller holds the lock.", Kind.DOCSTRING)
    source = 'def f():\n    """Return one.\n\n    The caller holds the lock.\n    """\n'
    kinds = [kind for kind, _, _ in python_passages(source)]
    assert kinds == [Kind.DOCSTRING, Kind.PROSE]


def test_the_verbs_are_words_of_one_form() -> None:
    assert len(verbs()) > 300
    assert not [verb for verb in verbs() if not verb.isalpha() or not verb.islower()]


def test_a_value_or_a_claim_needs_no_verb() -> None:
    source = (
        "class A:\n"
        '    @property\n    def end(self): "The end."\n'
        '    @functools.cached_property\n    def begin(self): "The begin."\n'
        '@pytest.fixture(scope="module")\ndef server(): "A server."\n'
        'def test_one(): "A test."\n'
        'def other(): "A server."\n'
    )
    kinds = [(kind, line) for kind, line, _ in python_passages(source)]
    assert kinds[:4] == [(Kind.PROSE, line) for line in (3, 5, 7, 8)]
    assert kinds[4:] == [(Kind.DOCSTRING, 9)]


def test_a_heading_may_ask_and_a_message_has_its_own_form() -> None:
    assert not broken_rules("What is new", Kind.HEADING)
    assert broken_rules("What is new") == {Rule.OPENER}
    assert not broken_rules("What is fenced? The deposed proposer.")
    assert not broken_rules("**What is new.** The image.")
    assert broken_rules("Nobody leads", Kind.HEADING) == {Rule.OPENER}
    message = "cannot open the log: the disk is full; make room; start again"
    assert not broken_rules(message, Kind.MESSAGE)
    assert broken_rules(message) == {Rule.SEPARATORS}
    long = "the log " + "and the disk " * 7
    assert not broken_rules(f"{long}: {long}; {long}", Kind.MESSAGE)
    assert broken_rules(long + "and the slot and", Kind.MESSAGE) == {Rule.LENGTH}
    assert broken_rules("what failed: why", Kind.MESSAGE) == {Rule.OPENER}


def test_a_code_span_a_placeholder_and_an_address_are_a_word_each() -> None:
    for text in ("`a; b: c. d`", "%(x)s {name!r} %s", "https://example.org/a?b=c"):
        for sentence in sentences(f"Read {text} now."):
            assert sentence.text == f"Read {text} now."
    assert [words(s.masked) for s in sentences("Run ``a `b` c`` and `d e f` \u2013 {x} %s.")] == [6]
    assert not broken_rules("At 12:30, host:5454 serves 1\u20133 logs: those of the archive.")
    assert not broken_rules("There are two; they are named as follows:")
    assert not broken_rules("Azure: the account's name;")
    assert broken_rules("Azure: the account's name; the key") == {Rule.SEPARATORS}


def test_sentences_end_where_a_reader_sees_it() -> None:
    text = "Wait, e.g. for v1.5. flush_lsn moves\n(always). Done! Is it? `x.` is."
    assert [sentence.text for sentence in sentences(text)] == [
        "Wait, e.g. for v1.5.",
        "flush_lsn moves\n(always).",
        "Done!",
        "Is it?",
        "`x.` is.",
    ]
    assert [sentence.offset for sentence in sentences(text)] == [
        text.index(start) for start in ("Wait", "flush", "Done", "Is", "`x")
    ]


def test_docstrings_comments_and_messages_are_found_with_their_lines() -> None:
    source = '''"""A module.

    step(event) -> effects          no I/O, no clock

1. The first step.
2. The second step
   goes on.
"""
#!/bin/sh
# noqa: E501
x = "# no comment"  # A trailing comment.
# A comment
# of two lines.
"""An attribute."""


def f(y):
    """
    Return one.

    \\b
    Example: a; b; c; d
    """
    logger.warning("cannot read %s: it is gone", y)
    self._log.info("the log is open")
    other.info("not a message")
    raise Refused(f"cannot open {y}: "
        "the disk is full" + y.why)
option("--x", help="What it does.")
say("one %s" % y, word)
'''
    assert python_passages(source) == [
        (Kind.PROSE, 1, "A module."),
        (Kind.PROSE, 5, "The first step."),
        (Kind.PROSE, 6, "The second step\ngoes on."),
        (Kind.COMMENT, 11, "A trailing comment."),
        (Kind.COMMENT, 12, "A comment\nof two lines."),
        (Kind.PROSE, 14, "An attribute."),
        (Kind.DOCSTRING, 19, "Return one."),
        (Kind.MESSAGE, 24, "cannot read %s: it is gone"),
        (Kind.MESSAGE, 25, "the log is open"),
        (Kind.MESSAGE, 27, "cannot open {}: the disk is full{}"),
        (Kind.PROSE, 29, "What it does."),
        (Kind.MESSAGE, 30, "one %s"),
    ]
    quiet = python_text.passages(source, messages=False)
    assert Kind.MESSAGE not in {passage.kind for passage in quiet}


def test_rows_of_two_columns_are_a_passage_each() -> None:
    source = '"""Fields.\n\nterm    the newest term\n        of the log\nlsn     its end\n"""\n'
    assert [text for _, _, text in python_passages(source)] == [
        "Fields.",
        "the newest term\nof the log",
        "its end",
    ]


def test_prose_of_a_document_is_found_and_nothing_else() -> None:
    source = """---
title: Who: what; whatever
---
# What is new

Read [the guide; twice](guide.md) ![picture](a.png)
and `walkeeper up`.
<!-- Of a
comment. -->
* An item
  goes on:

  ```sh
  walkeeper up; whatever
  ```
* Another item.
> A quotation of `<OPTION>`.

| A | table; of: cells |
|---|---|

The following is code.

    indented code; of: some

!!! note
    An admonition.

[link]: https://example.org
The end.
"""
    assert markdown_passages(source) == [
        (Kind.HEADING, 4, "What is new"),
        (Kind.PROSE, 6, "Read the guide; twice \nand `walkeeper up`."),
        (Kind.PROSE, 10, "An item\ngoes on:"),
        (Kind.PROSE, 16, "Another item.\nA quotation of `<OPTION>`."),
        (Kind.PROSE, 22, "The following is code."),
        (Kind.PROSE, 27, "An admonition."),
        (Kind.PROSE, 30, "The end."),
    ]


def _found(text: str, path: str = "docs/archive.md") -> Found:
    (violation,) = violations(text)
    return Found(path, 1, violation)


def test_a_violation_is_shown_in_one_line_with_its_place() -> None:
    found = _found("The peer is told\nthe *newest* term.")
    assert "docs/archive.md:1: word: The peer is told the *newest* term." in str(found)


def test_the_table_counts_by_folder_and_rule() -> None:
    lines = table((_found("The peer is told it."), _found("It was told.", "README.md"))).split("\n")
    assert [line.split()[0] for line in lines[1:]] == [".", "docs", "all"]
    assert lines[-1].split()[1:] == ["0", "0", "0", "0", "2", "2"]
