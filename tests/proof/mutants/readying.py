"""The segments that the script `walkeeper` takes without Python."""

from __future__ import annotations

from tests.proof.mutants.failing import NO_RESTORE
from tests.proof.mutants.mutant import Edit, FastEdit, Mutant

SCRIPT = "cli/scripts/walkeeper"
TEST = "tests/cli/test_ready_segments.py::test_"
PREFETCHING = "tests/cli/test_prefetching.py::test_"


def ready(
    name: str, removed: str, edit: Edit | FastEdit, turns_red: str, rule: str = "ready_words"
) -> Mutant:
    return Mutant(name, rule, removed, (edit,), turns_red=TEST + turns_red, why_named=NO_RESTORE)


def script(old: str, new: str) -> FastEdit:
    return FastEdit(old, new, SCRIPT)


READYING = (
    ready(
        "script-compares-no-words",
        "the script takes segments for the same words alone",
        script('[ "x$expected" = "x$1" ];', "true;"),
        "another_command_line_is_pythons[options0]",
    ),
    ready(
        "script-takes-fewer-words",
        "the script takes segments for all words of the command line",
        script("if read -r expected; then return 1; fi", ""),
        "another_command_line_is_pythons[options1]",
    ),
    ready(
        "script-strips-words",
        "the script compares words with their blanks",
        script("IFS= read -r", "read -r"),
        "words_are_compared_as_they_are",
    ),
    ready(
        "script-overlooks-variables",
        "the script takes segments for the same options of the environment alone",
        script("WALKEEPER_*) eval", "WALKEEPER_NONE) eval"),
        "an_option_in_the_environment_makes_another_command_line",
    ),
    ready(
        "words-without-variables",
        "words have the options of the environment",
        Edit("write_words", "variables()", "()"),
        "options_in_the_environment_are_compared_as_they_are",
    ),
    ready(
        "words-across-lines",
        "a command line with a newline leaves no words",
        Edit("write_words", "line.isprintable()", "True"),
        "unusual_words_are_pythons[a\\nb]",
    ),
    ready(
        "words-beyond-ascii",
        "a command line beyond ASCII leaves no words",
        Edit("write_words", "line.isascii()", "True"),
        "unusual_words_are_pythons[\\xe4]",
    ),
    ready(
        "words-across-file-systems",
        "a spool on another file system has no words",
        Edit("write_words", "os.stat(folder).st_dev != os.stat(target).st_dev", "False"),
        "a_spool_on_another_file_system_is_pythons",
    ),
    ready(
        "words-without-a-proof",
        "a start that owes its proof has no words",
        Edit("open_proven", "start is not None and _is_recorded(start, key)", "True"),
        "a_start_that_owes_its_proof_is_pythons",
        "R23",
    ),
    ready(
        "script-knows-no-start",
        "the script takes no segment of an earlier start",
        script('[ postmaster.pid -ef "/proc/${folder##*.}/fd/0" ] && ', ""),
        "each_start_proves_its_branch_anew",
        "R23",
    ),
    ready(
        "script-takes-any-file",
        "the script takes segments alone",
        script("case $1 in *[!0123456789ABCDEF]*) return 1 ;; esac", ""),
        "other_names_are_pythons[words]",
    ),
    ready(
        "script-does-not-wait",
        "the script waits for a segment that is being fetched",
        script("&& sleep 0.01 || return", "&& false || return"),
        "a_segment_that_is_being_fetched_needs_no_python",
    ),
    ready(
        "script-waits-for-ever",
        "the script waits for a segment no longer than a while",
        script("[ $((tries += 1)) -le 20 ] && ", ""),
        "a_segment_that_is_still_fetched_after_a_while_is_pythons",
    ),
    ready(
        "script-overwrites",
        "the script leaves to Python what is at %p",
        script(' && [ ! -e "$2" ]', ""),
        "nothing_is_overwritten",
    ),
    ready(
        "failed-mv-is-a-verdict",
        "a failure of mv is no verdict",
        script("mv -f --", "exec mv -f --"),
        "a_mv_that_fails_is_no_verdict[exit 1]",
    ),
    ready(
        "prefetcher-names-any-file",
        "a prefetcher names segments of the server's cluster alone",
        Edit(
            "_sync_and_name",
            "not is_segment(path + PART, os.path.basename(path), system_id)",
            "False",
        ),
        "a_segment_of_another_cluster_gets_no_name",
    ),
    Mutant(
        "a-slow-fetch-has-stalled",
        "spool",
        "a segment is awaited as long as something is written",
        (
            Edit(
                "spool._wait_for",
                "os.stat(source + PART).st_mtime_ns",
                "os.stat(source + PART).st_size",
            ),
        ),
        turns_red=PREFETCHING + "a_segment_is_awaited_as_long_as_something_is_written[5]",
        why_named=NO_RESTORE,
    ),
    Mutant(
        "messages-share-their-memory",
        "framing",
        "a reader lends its memory only to a caller that asks for it",
        (Edit("FrameReader.received", "body if self._lends else memoryview(bytes(body))", "body"),),
        turns_red="tests/common/test_pure_framing.py::test_kept_messages_share_no_memory",
        why_named=NO_RESTORE,
    ),
    ready(
        "prefetcher-leaves-its-last-segments",
        "a prefetcher runs until its segments are taken",
        Edit("prefetching.start", "_wait_for_room(owned, 1)", "pass"),
        "a_ready_segment_needs_no_python[sh]",
    ),
)
