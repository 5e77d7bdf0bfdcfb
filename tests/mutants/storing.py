"""Our own, in the safekeeper's driver and storage."""

from __future__ import annotations

from tests.mutants.mutant import COMMON, SAFEKEEPER, Edit, Mutant

DRIVER = SAFEKEEPER + "driver.py"
WAL_FORMAT = COMMON + "postgres/walformat.py"
LOG_FOLDER = SAFEKEEPER + "storage/log_folder.py"
WAL_RECOVERY = SAFEKEEPER + "storage/wal_recovery.py"
WAL_STORE = SAFEKEEPER + "storage/wal_store.py"

STORING = (
    Mutant(
        "append-is-not-synced",
        "wal_store",
        "an append is synced",
        (
            Edit(
                WAL_STORE,
                "        self.disk.sync_data(self._written_name)\n",
                "",
            ),
        ),
    ),
    Mutant(
        "segment-name-is-not-synced",
        "wal_store",
        "a new segment's name is durable before anything in it is",
        (
            Edit(
                WAL_STORE,
                "            self.disk.rename(name + HALF_MADE, name)\n"
                "            self.disk.sync_directory()\n",
                "            self.disk.rename(name + HALF_MADE, name)\n",
            ),
        ),
    ),
    Mutant(
        "prepared-behind-a-cut",
        "wal_store",
        "no segment is prepared behind one that a cut took",
        (
            Edit(WAL_STORE, "        if before in self._files:\n", "        if True:\n"),
            Edit(WAL_STORE, " or before not in (None, *self._files):", ":"),
        ),
    ),
    Mutant(
        "orphan-kept-too-late",
        "driver",
        "what a cut takes is in orphans/ before the cut is announced",
        (
            Edit(
                DRIVER,
                "        text = None\n        if state.truncating_to",
                "        text = None\n        self._save(state)\n        if state.truncating_to",
            ),
        ),
    ),
    Mutant(
        "names-do-not-follow",
        "wal_store",
        "the files are named after the timelines of the history that was adopted",
        (
            Edit(
                DRIVER,
                "            self.store.follow(Timelines(state.history))\n",
                "            assert Timelines\n",
            ),
        ),
    ),
    Mutant(
        "head-is-not-marked",
        "wal_store",
        "the first bytes of a log that starts inside a record are marked as durable",
        (
            Edit(
                WAL_STORE,
                "            self.disk.replace(HEAD_MARK, seal(HEAD_MAGIC, 1, body))\n",
                "            assert body and seal and HEAD_MAGIC\n",
            ),
        ),
    ),
    Mutant(
        "head-is-trusted",
        "wal_recovery",
        "the first bytes of a log that starts inside a record are not trusted without the mark",
        (
            Edit(
                WAL_RECOVERY,
                "        if head_end > commit_lsn and marked != (first_lsn, head_end):",
                "        if False:",
            ),
        ),
    ),
    Mutant(
        "padding-is-not-looked-at",
        "walformat",
        "what aligns a record is zeros, or recovery would keep what nobody wrote",
        (
            Edit(
                WAL_FORMAT,
                "            if end & 7 and any(view[end : (end + 7) & ~7]):\n"
                "                break\n",
            ),
            Edit(WAL_FORMAT, "        self._check_alignment(start, padding)\n"),
        ),
        turns_red="tests/common/test_wal_format.py"
        "::test_any_flipped_bit_below_the_end_is_corruption_or_seen_by_a_scan",
    ),
    Mutant(
        "foreign-pages-are-taken",
        "wal_store",
        "a page that recovery keeps is of this system and of the timeline that its place has",
        (Edit(WAL_STORE, "            foreign=self._foreign,\n"),),
        turns_red="tests/safekeeper/test_wal_store.py"
        "::test_a_page_that_is_not_this_logs_ends_a_scan",
    ),
    Mutant(
        "recovery-leaves-old-bytes",
        "wal_recovery",
        "recovery zeroes what lies behind the end",
        (Edit(WAL_RECOVERY, "    store.zero_from(end_lsn)\n"),),
    ),
    Mutant(
        "recovery-ends-with-the-bytes",
        "wal_recovery",
        "recovery falls back to a record's end",
        (
            Edit(
                WAL_RECOVERY,
                "    return RecordEnd(end.start_lsn, end.end_lsn, end.switched_to), end.reason",
                "    return RecordEnd(end.start_lsn, max(end.end_lsn, commit_lsn)), end.reason",
            ),
        ),
    ),
    Mutant(
        "marks-are-not-lowered",
        "log_folder",
        "after a fall back commit_lsn and reached_lsn are not above the end",
        (
            Edit(
                LOG_FOLDER,
                "            commit_lsn=min(durable.commit_lsn, found.flush_lsn),\n"
                "            reached_lsn=min(durable.reached_lsn, "
                "facts.clamped(found.flush_lsn)),\n",
                "",
            ),
        ),
    ),
    Mutant(
        "marks-are-not-taken-down",
        "log_folder",
        "the marks of an interrupted cut and of a failure are taken down at the start",
        (
            Edit(
                LOG_FOLDER,
                "            truncating_to=None,\n            suspect_from=None,\n",
                "",
            ),
        ),
    ),
    Mutant(
        "persist-is-not-waited-for",
        "driver",
        "nothing follows a Persist or a TruncateWal until it is done",
        (
            Edit(
                DRIVER,
                "        self._is_held = True\n        self._writer.submit(job, self._release)",
                "        self._writer.submit(job, self._release)",
            ),
        ),
    ),
    Mutant(
        "failed-persist-is-told",
        "driver",
        "what follows a Persist that failed is never told",
        (Edit(DRIVER, "            self._effects.clear()\n"),),
    ),
    Mutant(
        "group-too-long",
        "driver",
        "a group that was cut off is acknowledged only as far as it went",
        (
            Edit(
                DRIVER,
                "        while self._queued and size < GROUP_BYTES_MAX:\n"
                "            buffers.append(self._queued.popleft().payload)\n"
                "            size += len(buffers[-1])\n",
                "        size = sum(len(w.payload) for w in self._queued)\n"
                "        while self._queued and len(buffers) < 2:\n"
                "            buffers.append(self._queued.popleft().payload)\n",
            ),
        ),
    ),
)
