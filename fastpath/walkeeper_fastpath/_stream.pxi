"""The fast path of a proposer: WAL to all members, their acks to a commit.

The contract is in _fastpath.pyi.
"""

cdef class PrimaryPath  # _primary.pxi


cdef class StreamPath:
    cdef unsigned char head[APPEND_BYTES]
    cdef unsigned char acks[MEMBERS_MAX][ACK_BYTES]
    cdef uint64_t flush_lsns[MEMBERS_MAX]
    cdef uint64_t durable_commit_lsns[MEMBERS_MAX]
    cdef bint has_acked[MEMBERS_MAX]
    cdef int links[MEMBERS_MAX]
    cdef int sets[2][2 * MEMBERS_MAX]
    cdef int set_sizes[2]
    cdef int ack_quorums[2]
    cdef int zones[2][2 * MEMBERS_MAX]
    cdef int ack_zones[2]
    cdef int set_count, member_count
    cdef uint64_t start_lsn, restart_lsn_max, restart_lsn, sent_commit_lsn
    cdef uint64_t wal_bytes_max, in_flight_bytes_max, unsettled_bytes_max, unsettled_bytes
    cdef bint has_news, is_notified
    cdef int put_offs  # since `settled`
    cdef int bunched  # the index of the member that is sent WAL in bunches, or -1
    cdef list bunch  # WAL that it is to be sent, from bunch_lsn on
    cdef uint64_t bunch_lsn, asked_lsn, late_lsn
    cdef Py_ssize_t bunch_bytes, bunched_bytes_max
    cdef int bunch_appends  # since the leader was asked for `release`, or 0
    cdef bint was_needed
    cdef int behind[MEMBERS_MAX]
    cdef int commits
    cdef list channels, sent
    cdef object leader, waiting  # the driver, until the template is void, and its events
    cdef PrimaryPath primary
    cdef readonly uint64_t end_lsn
    cdef readonly uint64_t commit_lsn
    cdef readonly uint64_t owed_lsn
    cdef readonly object feedback

    def __init__(self, expected, connections):
        cdef bytes frame = expected.append
        cdef int i, k
        if not len(expected.links) == len(expected.acks) == len(connections) <= MEMBERS_MAX:
            raise ValueError(f"{expected.links=} {connections=}")
        if not 1 <= len(expected.sets) <= 2 or len(frame) != APPEND_BYTES:
            raise ValueError(f"{expected.sets=} {len(frame)=}")
        memcpy(self.head, <const unsigned char *>frame, APPEND_BYTES)
        self.end_lsn, self.commit_lsn = be64(self.head + BEGIN_AT), be64(self.head + COMMIT_AT)
        self.sent_commit_lsn, self.restart_lsn = self.commit_lsn, be64(self.head + RESTART_AT)
        self.member_count = len(expected.links)
        for i in range(self.member_count):
            frame = expected.acks[i]
            if len(frame) != ACK_BYTES:
                raise ValueError(f"{len(frame)=}")
            memcpy(self.acks[i], <const unsigned char *>frame, ACK_BYTES)
            self.links[i], self.has_acked[i] = expected.links[i], False
            self.flush_lsns[i] = be64(self.acks[i] + ACK_FLUSH_AT)
            self.durable_commit_lsns[i] = be64(self.acks[i] + ACK_COMMIT_AT)
        self.set_count = len(expected.sets)
        for k in range(self.set_count):
            ack_quorum, counted = expected.sets[k]
            if not 1 <= ack_quorum <= len(counted) <= 2 * MEMBERS_MAX:
                raise ValueError(f"{expected.sets=}")
            self.ack_quorums[k], self.set_sizes[k] = ack_quorum, len(counted)
            for i in range(self.set_sizes[k]):
                if not -1 <= counted[i] < self.member_count:
                    raise ValueError(f"{expected.sets=}")
                self.sets[k][i] = counted[i]
            self.ack_zones[k] = 0
        if expected.zones:
            self.take_zones(expected.zones)
        self.start_lsn, self.restart_lsn_max = expected.start_lsn, expected.restart_lsn_max
        self.wal_bytes_max = expected.wal_bytes_max
        self.in_flight_bytes_max = expected.in_flight_bytes_max
        self.unsettled_bytes_max, self.unsettled_bytes = expected.unsettled_bytes_max, 0
        self.feedback = expected.feedback
        self.channels, self.sent = [Channel(one) for one in connections], []
        self.bunched, self.bunch, self.bunched_bytes_max = -1, [], expected.bunched_bytes_max

    def lead(self, leader):
        self.leader, self.waiting = leader, leader.waiting

    def owe(self):
        self.owed_lsn = self.commit_lsn

    def puts_off(self):
        if self.owed_lsn == 0 or self.put_offs == PUT_OFFS_MAX or not self.sent:
            return False
        if not self.owed_lsn <= self.sent_commit_lsn < self.commit_lsn:
            return False
        if self.unsettled_bytes * 4 > self.unsettled_bytes_max:
            return False
        self.owed_lsn = self.commit_lsn
        self.put_offs += 1
        return True

    def end(self):
        self.leader = None

    def stream(self, begin_lsn, memoryview wal not None):
        return self.send_led(begin_lsn, wal)

    cdef bint send_led(self, uint64_t begin_lsn, memoryview wal) except -1:
        """Send, and notify the leader of news; do nothing if the template is void."""
        leader = self.leader
        if leader is None or leader.is_running:
            return False
        leader.is_running = True
        try:
            asks = not self.bunch_appends
            is_sent = self.send(begin_lsn, wal)
            if asks and self.bunch_appends:
                leader.on_bunch()
            if is_sent:
                self.notify(leader)
        finally:
            leader.is_running = False
        if self.waiting:
            leader.run_waiting()
        return is_sent

    def acknowledge(self, int link, bytearray memory not None, Py_ssize_t size):
        cdef uint64_t report_lsn = 0
        leader = self.leader
        if leader is None or leader.is_running:
            return 0
        if not self.take_acks(link, memory, size, &report_lsn):
            return 0
        leader.is_running = True
        try:
            if report_lsn:  # commits wait for this
                if self.primary is None or not self.primary.report(report_lsn, self.feedback):
                    leader.report(report_lsn, self.feedback)
            if report_lsn and self.commit_lsn == self.end_lsn and leader.has_standbys:
                leader.on_idle()  # no append is on its way that tells them of this commit
            self.notify(leader)
        finally:
            leader.is_running = False
        if self.waiting:
            leader.run_waiting()
        return size

    cdef int notify(self, leader) except -1:
        """Notify the leader once that `settled` has news."""
        if self.has_news and not self.is_notified:
            self.is_notified = True
            leader.on_news()
        return 0

    cdef take_zones(self, given):
        """Take the ack rule of each set that counts zones: number, then each member's zone."""
        cdef int i, k
        if len(given) != self.set_count:
            raise ValueError(f"{given=}")
        for k in range(self.set_count):
            ack_zones, zones = given[k]
            known = set(zones)
            if not ack_zones:
                continue
            if len(zones) != self.set_sizes[k] or not 1 <= ack_zones <= len(known):
                raise ValueError(f"{given=}")
            if known != set(range(len(known))):
                raise ValueError(f"{given=}")
            self.ack_zones[k] = ack_zones
            for i in range(self.set_sizes[k]):
                self.zones[k][i] = zones[i]

    def send(self, uint64_t begin_lsn, memoryview wal not None):
        cdef Py_buffer data
        PyObject_GetBuffer(wal, &data, PyBUF_SIMPLE)
        try:
            return self.send_bytes(begin_lsn, <const unsigned char *>data.buf, data.len, wal)
        finally:
            PyBuffer_Release(&data)

    cdef object send_bytes(
        self, uint64_t begin_lsn, const unsigned char *wal, Py_ssize_t size, memoryview held
    ):
        cdef int i
        cdef uint64_t crc
        if size == 0 or begin_lsn != self.end_lsn:
            return False
        if <uint64_t>size > self.wal_bytes_max:
            return False
        if self.unsettled_bytes + <uint64_t>size > self.unsettled_bytes_max:
            return False
        for i in range(self.member_count):
            if begin_lsn - self.flush_lsns[i] >= self.in_flight_bytes_max:
                return False
        crc = self.fill(self.head, begin_lsn, wal, size)
        self.end_lsn = begin_lsn + <uint64_t>size
        self.sent_commit_lsn, self.has_news = self.commit_lsn, True
        self.unsettled_bytes += <uint64_t>size
        self.sent.append((held, crc))
        for i in range(self.member_count):
            if i != self.bunched:
                (<Channel>self.channels[i]).write(self.head, APPEND_BYTES, wal, size, held)
        if self.bunched >= 0:
            self.add_to_bunch(begin_lsn, wal, size, held)
        return True

    cdef uint64_t fill(
        self, unsigned char *head, uint64_t begin_lsn, const unsigned char *wal, Py_ssize_t size
    ) except? 0:
        """Make `head` that of an append of this WAL; return the CRC."""
        cdef uint64_t crc = crc_of(wal, size)
        put_be32(head, <uint32_t>(APPEND_BYTES - LENGTH_BYTES + size))
        put_be64(head + BEGIN_AT, begin_lsn)
        put_be64(head + END_AT, begin_lsn + <uint64_t>size)
        put_be64(head + COMMIT_AT, self.commit_lsn)
        put_be64(head + RESTART_AT, self.restart_lsn)
        put_be32(head + CRC_AT, <uint32_t>crc)
        return crc

    cdef int add_to_bunch(
        self, uint64_t begin_lsn, const unsigned char *wal, Py_ssize_t size, memoryview held
    ) except -1:
        """Keep WAL for the bunched member; send it what is too much to keep."""
        cdef bint is_long = size > self.bunched_bytes_max
        if is_long or <uint64_t>(self.bunch_bytes + size) > self.wal_bytes_max:
            self.send_bunch()
        if is_long:
            (<Channel>self.channels[self.bunched]).write(self.head, APPEND_BYTES, wal, size, held)
            return 0
        if not self.bunch:
            self.bunch_lsn = begin_lsn
        if not self.bunch_appends:
            self.asked_lsn = self.end_lsn
        self.bunch.append(held)
        self.bunch_bytes += size
        self.bunch_appends += 1
        return 0

    cdef int send_bunch(self) except -1:
        """Send the bunched member all that it was not sent yet, as one append."""
        cdef unsigned char head[APPEND_BYTES]
        cdef Py_buffer data
        cdef list bunch = self.bunch
        if not bunch:
            return 0
        self.bunch, self.bunch_bytes = [], 0
        wal = bunch[0] if len(bunch) == 1 else memoryview(b"".join(bunch))
        memcpy(head, self.head, APPEND_BYTES)
        PyObject_GetBuffer(wal, &data, PyBUF_SIMPLE)
        try:
            self.fill(head, self.bunch_lsn, <const unsigned char *>data.buf, data.len)
            (<Channel>self.channels[self.bunched]).write(
                head, APPEND_BYTES, <const unsigned char *>data.buf, data.len, wal
            )
        finally:
            PyBuffer_Release(&data)
        return 0

    def bunch_for(self, link):
        cdef int i
        self.send_bunch()
        self.bunched = -1
        for i in range(self.member_count):
            if self.links[i] == link:
                self.bunched = i

    def release(self):
        cdef int appends = self.bunch_appends
        self.late_lsn = self.asked_lsn if appends and self.commit_lsn < self.asked_lsn else 0
        was_needed = self.was_needed or (appends == 1 and self.late_lsn != 0)
        self.was_needed, self.bunch_appends = False, 0
        self.send_bunch()
        return appends, was_needed

    def behind_commits(self):
        cdef int i
        commits, self.commits = self.commits, 0
        behind = [(self.links[i], self.behind[i]) for i in range(self.member_count)]
        for i in range(self.member_count):
            self.behind[i] = 0
        return commits, behind

    def take(self, int link, bytearray memory not None, Py_ssize_t size):
        cdef uint64_t report_lsn = 0
        return report_lsn if self.take_acks(link, memory, size, &report_lsn) else None

    cdef bint take_acks(
        self, int link, bytearray memory, Py_ssize_t size, uint64_t *report_lsn
    ) except -1:
        """Take whole acks. `report_lsn` becomes the LSN to report if commit_lsn moves."""
        cdef int i
        cdef Py_ssize_t at
        cdef uint64_t flush_lsn, before_lsn, durable_commit_lsn = 0
        cdef const unsigned char *frame = <const unsigned char *>PyByteArray_AS_STRING(memory)
        if not 0 <= size <= PyByteArray_GET_SIZE(memory):
            raise ValueError(f"{size=} {len(memory)=}")
        if size == 0 or size % ACK_BYTES:
            return False
        for i in range(self.member_count):
            if self.links[i] == link:
                break
        else:
            return False
        flush_lsn = self.flush_lsns[i]
        for at in range(0, size, ACK_BYTES):
            if memcmp(frame + at, self.acks[i], ACK_TERM_BYTES) != 0:
                return False
            if memcmp(
                frame + at + ACK_FEEDBACK_AT, self.acks[i] + ACK_FEEDBACK_AT,
                ACK_BYTES - ACK_FEEDBACK_AT
            ) != 0:
                return False
            if be64(frame + at + ACK_FLUSH_AT) < flush_lsn:
                return False
            flush_lsn = be64(frame + at + ACK_FLUSH_AT)
            durable_commit_lsn = be64(frame + at + ACK_COMMIT_AT)
        if flush_lsn > self.end_lsn:
            return False
        self.flush_lsns[i], self.durable_commit_lsns[i] = flush_lsn, durable_commit_lsn
        self.has_acked[i] = self.has_news = True
        before_lsn = self.commit_lsn
        if self.commit_moves():
            self.count_commit(i, before_lsn)
            flush_lsn = min(self.commit_lsn, self.end_lsn)
            if flush_lsn >= self.start_lsn:
                report_lsn[0] = flush_lsn
        return True

    cdef int count_commit(self, int by, uint64_t before_lsn) except -1:
        """Count who was behind; end the bunches if WAL of before `release` waited for theirs."""
        cdef int i
        self.commits += 1
        for i in range(self.member_count):
            self.behind[i] += self.flush_lsns[i] < self.commit_lsn
        if by == self.bunched and before_lsn < self.late_lsn:
            self.send_bunch()
            self.bunched, self.was_needed = -1, True
        return 0

    cdef bint commit_moves(self) noexcept:
        """Move commit_lsn to what a quorum of each set has in this term (R10)."""
        cdef uint64_t ascending[2 * MEMBERS_MAX]
        cdef uint64_t lsn, restart_lsn = self.restart_lsn_max, commit_lsn = <uint64_t>-1
        cdef int i, j, k
        for k in range(self.set_count):
            for i in range(self.set_sizes[k]):
                lsn = self.counted(k, i)
                j = i
                while j > 0 and ascending[j - 1] > lsn:
                    ascending[j] = ascending[j - 1]
                    j -= 1
                ascending[j] = lsn
            restart_lsn = min(restart_lsn, ascending[0])
            commit_lsn = min(commit_lsn, ascending[self.set_sizes[k] - self.ack_quorums[k]])
            if self.ack_zones[k]:
                commit_lsn = min(commit_lsn, self.acknowledged_by_zones(k))
        if restart_lsn > self.restart_lsn:
            self.restart_lsn = restart_lsn
        if commit_lsn <= self.commit_lsn:
            return False
        self.commit_lsn = commit_lsn
        return True

    cdef inline uint64_t counted(self, int k, int i) noexcept:
        """Return what member i of set k has in this term; 0 if it has not attached."""
        cdef uint64_t lsn = self.flush_lsns[self.sets[k][i]] if self.sets[k][i] >= 0 else 0
        if lsn < self.start_lsn:
            lsn = 0
        return lsn

    cdef uint64_t acknowledged_by_zones(self, int k) noexcept:
        """Return the greatest LSN that enough zones of set k have (MemberSet.acknowledged)."""
        cdef uint64_t farthest[2 * MEMBERS_MAX]
        cdef uint64_t lsn
        cdef int i, j, zone, count = 0
        for i in range(self.set_sizes[k]):
            zone = self.zones[k][i]
            lsn = self.counted(k, i)
            while count <= zone:
                farthest[count] = 0
                count += 1
            farthest[zone] = max(farthest[zone], lsn)
        for i in range(1, count):
            lsn, j = farthest[i], i
            while j > 0 and farthest[j - 1] > lsn:
                farthest[j] = farthest[j - 1]
                j -= 1
            farthest[j] = lsn
        return farthest[count - self.ack_zones[k]]

    def settled(self):
        cdef int i
        self.send_bunch()
        if not self.has_news:
            return None
        acks = [
            (self.links[i], self.flush_lsns[i], self.durable_commit_lsns[i])
            for i in range(self.member_count) if self.has_acked[i]
        ]
        for i in range(self.member_count):
            self.has_acked[i] = False
        sent, self.sent = self.sent, []
        self.has_news = self.is_notified = False
        self.unsettled_bytes = self.put_offs = 0
        return self.commit_lsn, self.sent_commit_lsn, sent, acks
