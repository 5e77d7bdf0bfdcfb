"""Mutants of the compiled redo of pages: its bounds."""

from __future__ import annotations

from tests.proof.mutants.mutant import APPLY, HEAP_PAGE, FastEdit, Mutant

HOSTILE = "tests/replay/test_compiled_redo.py::test_"
NO_PAGES = "the simulator has no pages of tables"

REDOING = (
    Mutant(
        "redo-reads-beyond-the-wal",
        "heap_page",
        "a record that leads outside its bytes breaks its page",
        (FastEdit("if p < 0 or size < 0 or p > b.size - size:", "if False:", HEAP_PAGE),),
        turns_red=HOSTILE + "record_longer_than_the_wal_breaks_its_page",
        why_named=NO_PAGES,
    ),
    Mutant(
        "image-of-less-than-a-page",
        "apply",
        "an image and its hole are a page together",
        (FastEdit("if length + gap != PAGE_BYTES:", "if False:", APPLY),),
        turns_red=HOSTILE + "image_that_is_no_page_breaks_its_page",
        why_named=NO_PAGES,
    ),
)
