"""Mutants of floods: what strangers may cost before they have proved anything."""

from __future__ import annotations

from tests.proof.mutants.mutant import Edit, Mutant

LINE = "tests/safekeeper/test_waiting_line.py::test_"
ARRIVALS = "tests/safekeeper/test_arrivals.py::test_"
LISTENER = "tests/safekeeper/test_listener.py::test_"
NO_FLOODS = "the simulated network has no strangers"

FLOODING = (
    Mutant(
        "visits-cost-no-token",
        "waiting_line",
        "a visit takes a token of its network",
        (Edit("WaitingLine._take", "bucket.take()", "pass"),),
        turns_red=LINE + "a_flood_enters_at_the_rate_of_its_network",
        why_named=NO_FLOODS,
    ),
    Mutant(
        "many-networks-have-no-bound",
        "waiting_line",
        "all networks together have a bucket, too",
        (Edit("WaitingLine._take", "self._everyone.take()", "pass"),),
        turns_red=LINE + "floods_from_many_networks_enter_at_the_rate_of_all",
        why_named=NO_FLOODS,
    ),
    Mutant(
        "a-flood-comes-before-others",
        "waiting_line",
        "the network with the most tokens comes first",
        (
            Edit(
                "WaitingLine.next",
                "max(self._waiting, "
                "key=lambda network: self._bucket(network, now_s).tokens(now_s))",
                "next(iter(self._waiting))",
            ),
        ),
        turns_red=LINE + "a_peer_from_elsewhere_overtakes_floods_that_took_all_tokens",
        why_named=NO_FLOODS,
    ),
    Mutant(
        "a-newcomer-passes-those-that-wait",
        "waiting_line",
        "a newcomer does not take the token of a connection that waits",
        (
            Edit(
                "WaitingLine.arrive",
                "not waiting and self._has_token(network, now_s)",
                "self._has_token(network, now_s)",
            ),
        ),
        turns_red=LINE + "a_newcomer_does_not_pass_those_that_wait",
        why_named=NO_FLOODS,
    ),
    Mutant(
        "a-host-fills-the-line",
        "waiting_line",
        "a network has a bounded number of connections in the line",
        (Edit("WaitingLine.arrive", "len(waiting) >= self._limits.network_max", "False"),),
        turns_red=LINE + "within_a_network_the_first_comes_first_and_in_bounded_time",
        why_named=NO_FLOODS,
    ),
    Mutant(
        "the-line-has-no-bound",
        "waiting_line",
        "the line is bounded, and its oldest connection ends for a newcomer",
        (Edit("WaitingLine.arrive", "len(self) >= self._limits.line_max", "False"),),
        turns_red=LINE + "a_full_line_ends_the_oldest_for_a_newcomer",
        why_named=NO_FLOODS,
    ),
    Mutant(
        "a-message-proves-nothing",
        "proposer_door",
        "a proposer's first message gives the token of its visit back",
        (Edit("ProposerDoor.heard", "host is not None", "False"),),
        turns_red=ARRIVALS + "peers_that_send_a_message_do_not_wait",
        why_named=NO_FLOODS,
    ),
    Mutant(
        "a-login-proves-nothing",
        "server",
        "a client's login gives the token of its visit back",
        (Edit("_Server._admit", "refusal is None", "False"),),
        turns_red=ARRIVALS + "clients_that_log_in_do_not_wait",
        why_named=NO_FLOODS,
    ),
    Mutant(
        "a-wrong-password-proves-enough",
        "server",
        "only a login gives the token of a visit back",
        (
            Edit(
                "_Server._left_client",
                "self._places.leave(pid)",
                "self._places.leave(pid)\nself._arrivals.proved('127.0.0.1')",
            ),
        ),
        turns_red=ARRIVALS + "clients_that_log_in_do_not_wait",
        why_named=NO_FLOODS,
    ),
    Mutant(
        "those-that-hung-up-take-turns",
        "arrivals",
        "a connection that hung up while it waited takes no turn",
        (Edit("Arrivals._take_turns", "_has_hung_up(visitor)", "False"),),
        turns_red=ARRIVALS + "connections_that_hung_up_take_no_turn[garbage-new_event_loop0]",
        why_named=NO_FLOODS,
    ),
    Mutant(
        "those-that-wait-have-transports",
        "arrivals",
        "a connection that waits has no transport, and is not read",
        (
            Edit(
                "Arrivals.arrive",
                "self._waiting[number] = visitor, network",
                "self._waiting[number] = visitor, network\nvisitor.enter()",
            ),
        ),
        turns_red=ARRIVALS + "only_a_connection_that_enters_has_a_transport[new_event_loop0]",
        why_named=NO_FLOODS,
    ),
    Mutant(
        "a-crowd-has-transports",
        "arrivals",
        "a connection that ends at once has no transport",
        (Edit("Arrivals._end", "visitor.close()", "visitor.enter()"),),
        turns_red=ARRIVALS + "only_a_connection_that_enters_has_a_transport[new_event_loop0]",
        why_named=NO_FLOODS,
    ),
    Mutant(
        "a-crowd-lingers",
        "listener",
        "a connection that ends at once leaves nothing to the kernel",
        (
            Edit(
                "Accepted.close",
                "self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)",
                "pass",
            ),
        ),
        turns_red=ARRIVALS + "connections_beyond_the_bound_of_a_host_end_at_once[new_event_loop0]",
        why_named=NO_FLOODS,
    ),
    Mutant(
        "a-turn-accepts-all",
        "listener",
        "a turn accepts a bounded number of connections",
        (Edit("Listener._take_turn", "range(ACCEPTS_MAX)", "iter(int, 1)"),),
        turns_red=LISTENER + "a_turn_accepts_a_bounded_number[new_event_loop0]",
        why_named=NO_FLOODS,
    ),
    Mutant(
        "a-full-file-table-is-tried-at-once",
        "listener",
        "the port rests after an accept that failed",
        (Edit("Listener._take_turn", "return RETRY_S", "break"),),
        turns_red=LISTENER + "a_full_file_table_rests_the_port[new_event_loop0]",
        why_named=NO_FLOODS,
    ),
    Mutant(
        "a-flood-wakes-the-loop",
        "listener",
        "the port rests after a turn in which a connection did not enter",
        (Edit("Listener._take_turn", "rest_s = FLOOD_S", "pass"),),
        turns_red=LISTENER + "a_flood_rests_the_port[Admission.WAITS-new_event_loop0]",
        why_named=NO_FLOODS,
    ),
    Mutant(
        "the-port-rests-for-ever",
        "listener",
        "the port goes on after its rest",
        (
            Edit(
                "Listener._on_rested",
                "self._loop.add_reader(listening, self._on_readable, listening)",
                "pass",
            ),
        ),
        turns_red=LISTENER + "the_port_is_read_at_once_when_the_flood_is_over[new_event_loop0]",
        why_named=NO_FLOODS,
    ),
    Mutant(
        "a-closed-port-goes-on",
        "listener",
        "a port that is closed while it rests accepts no more",
        (Edit("Listener.close", "timer.cancel()", "pass"),),
        turns_red=LISTENER + "a_port_that_rests_can_be_closed[new_event_loop0]",
        why_named=NO_FLOODS,
    ),
    Mutant(
        "a-stop-forgets-those-that-enter",
        "listener",
        "a stop closes a connection whose task has not begun",
        (Edit("Accepted.close_unless_connected", "self.close()", "pass"),),
        turns_red=LISTENER + "a_stop_resets_a_connection_whose_task_has_not_begun[new_event_loop0]",
        why_named=NO_FLOODS,
    ),
    Mutant(
        "a-stop-forgets-those-that-wait",
        "server",
        "a stop ends the connections that wait",
        (Edit("_Server.close_undecided", "self._arrivals.close()", "pass"),),
        turns_red=ARRIVALS + "a_stop_ends_those_that_wait",
        why_named=NO_FLOODS,
    ),
    Mutant(
        "a-flood-fills-the-log",
        "operator_log",
        "lines of one kind count as the same line",
        (Edit("Repetitions.passed", "line if kind is None else kind", "line"),),
        turns_red="tests/common/test_daemon_output.py::"
        "test_lines_of_one_kind_count_as_the_same_line",
        why_named=NO_FLOODS,
    ),
)
