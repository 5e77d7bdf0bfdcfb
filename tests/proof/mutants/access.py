"""Mutants of access: whom the port admits, and whom a client believes."""

from __future__ import annotations

from tests.proof.mutants.mutant import Edit, Mutant

OPENING = "tests/safekeeper/test_opening.py::test_"
TLS = "tests/common/test_tls_layer.py::test_"
TRANSPORT = "tests/common/test_tls_transport.py::test_"
SCRAM = "tests/common/test_scram.py::test_"
PASSWORD = "tests/safekeeper/test_password_login.py::test_"
HTTP = "tests/common/test_http_access.py::test_"
SEALING = "tests/common/test_sealing.py::test_"
HANDSHAKES = "tests/safekeeper/test_handshakes.py::test_"
KEYS = "tests/safekeeper/test_key_updates.py::test_"
NO_TLS = "the simulated network has no TLS"
NO_KEYS = "the simulated archive is not encrypted"

ACCESS = (
    Mutant(
        "plain-peers-from-anywhere",
        "opening",
        "a peer without a certificate is admitted only where that is allowed",
        (Edit("PlainPeers.admits", "self.on_loopback and is_loopback(host)", "True"),),
        turns_red=OPENING + "a_plain_proposer_is_refused_unless_loopback_is_trusted[True]",
        why_named=NO_TLS,
    ),
    Mutant(
        "own-protocol-without-a-certificate",
        "opening",
        "over TLS our own protocol needs a certificate",
        (
            Edit(
                "Opening.decide_encrypted",
                "is_postgres and (takes_passwords or self._port.admits_plain(transport))",
                "takes_passwords or self._port.admits_plain(transport)",
            ),
        ),
        turns_red=OPENING + "our_own_protocol_needs_a_certificate_even_on_loopback",
        why_named=NO_TLS,
    ),
    Mutant(
        "any-protocol-over-tls",
        "opening",
        "a peer that starts TLS at once names one of our two protocols",
        (Edit("Opening.decide_encrypted", "is_ours or is_postgres", "True"),),
        turns_red=OPENING + "tls_at_once_has_to_name_a_protocol[alpn0]",
        why_named=NO_TLS,
    ),
    Mutant(
        "own-protocol-over-any-tls",
        "opening",
        "our own protocol needs TLS 1.3",
        (
            Edit(
                "Opening.decide_encrypted",
                "alpn == ALPN and is_direct and version == OUR_TLS",
                "alpn == ALPN and is_direct",
            ),
        ),
        turns_red=HANDSHAKES + "our_own_protocol_needs_tls_1_3[TLSv1_2]",
        why_named=NO_TLS,
    ),
    Mutant(
        "bytes-before-tls-are-kept",
        "opening",
        "bytes after an SSLRequest end the connection",
        (
            Edit(
                "Opening._is_answered",
                'self._refuse(transport, "08P01", "received unencrypted data after SSL request")',
                "self._admit(transport, rest, is_admitted=True)",
            ),
        ),
        turns_red=OPENING + "bytes_behind_an_ssl_request_end_the_connection",
        why_named=NO_TLS,
    ),
    Mutant(
        "a-refused-certificate-counts-as-none",
        "opening",
        "a peer whose certificate states no identity is refused, also on loopback",
        (Edit("Opening.decide_encrypted", "not is_admitted and not refusal", "not is_admitted"),),
        turns_red=OPENING + "a_certificate_without_an_identity_is_refused_with_the_reason",
        why_named=NO_TLS,
    ),
    Mutant(
        "any-safekeepers-file",
        "daemon",
        "a safekeeper starts only with a certificate of its own id",
        (Edit("_refuse_wrong_file", "stated_id != settings.acceptor_id", "False"),),
        turns_red=OPENING + "a_daemon_starts_with_its_own_file_alone",
        why_named=NO_TLS,
    ),
    Mutant(
        "any-owner-serves",
        "certificate_identity",
        "a client believes a server only if its certificate is a safekeeper's",
        (Edit("safekeeper_of_certificate", "identity.safekeeper_id is None", "False"),),
        turns_red=OPENING
        + "a_client_refuses_another_host_and_what_is_no_safekeeper[proposer-hosts1-no safekeeper]",
        why_named=NO_TLS,
    ),
    Mutant(
        "any-id-is-believed",
        "certificate_identity",
        "a safekeeper states the id of its certificate",
        (Edit("check_stated_id", "identity.safekeeper_id not in (None, stated_id)", "False"),),
        turns_red=OPENING + "a_host_with_the_file_of_one_safekeeper_cannot_be_another_one[2]",
        why_named=NO_TLS,
    ),
    Mutant(
        "a-client-believes-any-id",
        "certificate_identity",
        "a client of safekeepers checks the id, too",
        (
            Edit(
                "Conversation.received", "isinstance(answer, AcceptorGreeting | LogState)", "False"
            ),
        ),
        turns_red="tests/common/test_conversation.py::"
        "test_a_safekeeper_that_states_the_id_of_another_is_refused",
        why_named=NO_TLS,
    ),
    Mutant(
        "broken-tls-raises-into-the-writer",
        "tls_transport",
        "a write on a broken connection is dropped, as on a lost socket",
        (Edit("TlsTransport.writelines", "self._fail(tls_reason(error))", "raise"),),
        turns_red=TRANSPORT + "a_write_that_tls_refuses_ends_the_connection",
        why_named=NO_TLS,
    ),
    Mutant(
        "broken-tls-waits-for-its-peer",
        "tls_transport",
        "a broken connection with unsent bytes is aborted",
        (Edit("TlsTransport._fail", "self._raw.get_write_buffer_size()", "False"),),
        turns_red=TRANSPORT + "a_write_on_a_broken_connection_neither_raises_nor_waits[full-run0]",
        why_named=NO_TLS,
    ),
    Mutant(
        "new-keys-without-end",
        "tls_transport",
        "a peer that sends no data has few records",
        (
            Edit(
                "TlsTransport._bound_overhead", "self._overhead_bytes > OVERHEAD_BYTES_MAX", "False"
            ),
        ),
        turns_red=KEYS + "a_peer_that_only_changes_keys_is_closed",
        why_named=NO_TLS,
    ),
    Mutant(
        "one-byte-buys-all-keys",
        "tls_transport",
        "a peer that sends little data has few records",
        (
            Edit(
                "TlsTransport._hand_over",
                "size * OVERHEAD_PER_BYTE",
                "size * OVERHEAD_BYTES_MAX",
            ),
        ),
        turns_red=KEYS + "a_byte_of_data_buys_few_new_keys",
        why_named=NO_TLS,
    ),
    Mutant(
        "a-pipe-is-read-again",
        "reloaded_file",
        "what is no file is not opened, since a pipe would stop the daemon",
        (Edit("ReloadedFile._stamp_now", "not stat.S_ISREG(found.st_mode)", "False"),),
        turns_red="tests/common/test_users_file.py::"
        "test_what_is_no_file_is_refused_and_the_former_users_stay[pipe]",
        why_named=NO_TLS,
    ),
    Mutant(
        "a-frame-is-two-records",
        "tls_layer",
        "a frame's head and its WAL are one record of TLS",
        (
            Edit(
                "TlsLayer.write_all",
                "len(buffers) > 1 and sum(map(len, buffers)) <= RECORD_BYTES_MAX",
                "False",
            ),
        ),
        turns_red=TLS + "a_frame_and_its_wal_are_one_record_if_they_fit[1-1]",
        why_named=NO_TLS,
    ),
    Mutant(
        "a-frame-wakes-its-peer-twice",
        "framed_connection",
        "a frame's head and its WAL leave over TLS with one system call",
        (
            Edit(
                "FramedConnection.write",
                "transport.writelines(rest)",
                "[transport.write(each) for each in rest]",
            ),
        ),
        turns_red=TRANSPORT + "a_frame_is_one_system_call[300]",
        why_named=NO_TLS,
    ),
    Mutant(
        "reads-that-only-ask-for-more",
        "tls_layer",
        "no read asks for bytes that cannot be there, as OpenSSL answers by an exception",
        (
            Edit(
                "TlsLayer.read_into",
                "not (self._is_cut or incoming.pending or incoming.eof)",
                "False",
            ),
        ),
        turns_red=TLS + "no_read_only_asks_for_more",
        why_named=NO_TLS,
    ),
    Mutant(
        "the-rest-of-a-record-waits",
        "tls_layer",
        "the rest of a record that a small buffer left is read before the next record is there",
        (Edit("TlsLayer.read_into", "size == room", "False"),),
        turns_red=TLS + "no_read_only_asks_for_more",
        why_named=NO_TLS,
    ),
    Mutant(
        "the-end-without-an-alert-is-not-seen",
        "tls_layer",
        "the end of the socket's stream is read, although no bytes are left",
        (
            Edit(
                "TlsLayer.read_into",
                "self._is_cut or incoming.pending or incoming.eof",
                "self._is_cut or incoming.pending",
            ),
        ),
        turns_red=TLS + "the_end_is_seen_after_the_last_byte[False]",
        why_named=NO_TLS,
    ),
    Mutant(
        "any-password-comes-in",
        "scram",
        "a client proves the password of its user",
        (Edit("ScramServer.finish", "is_right and self._is_known", "self._is_known"),),
        turns_red=SCRAM + "a_wrong_password_and_an_unknown_user_get_the_same_answer",
        why_named=NO_TLS,
    ),
    Mutant(
        "a-name-that-is-not-there-comes-in",
        "scram",
        "no proof fits a name that is not among the users",
        (Edit("ScramServer.finish", "is_right and self._is_known", "is_right"),),
        turns_red=SCRAM + "no_password_fits_a_name_that_is_not_there",
        why_named=NO_TLS,
    ),
    Mutant(
        "binding-is-not-compared",
        "scram",
        "a client binds its login to the certificate of this server",
        (Edit("ScramServer.finish", "binding != _encoded(self._binding)", "False"),),
        turns_red=SCRAM + "the_certificate_of_another_server_is_refused",
        why_named=NO_TLS,
    ),
    Mutant(
        "binding-may-be-taken-out",
        "scram",
        "a client that misses our offer of channel binding is refused",
        (
            Edit(
                "ScramServer._check_header",
                'flag == "y" and not self._is_plus and self._end_point is not None',
                "False",
            ),
        ),
        turns_red=SCRAM + "a_client_that_was_kept_from_channel_binding_is_refused",
        why_named=NO_TLS,
    ),
    Mutant(
        "loopback-needs-no-password",
        "server",
        "with a users file each client without a certificate proves a password",
        (Edit("_Server._password_of", 'self._users is None or identity.how != "none"', "True"),),
        turns_red=PASSWORD + "loopback_needs_a_password_too_and_our_own_protocol_none",
        why_named=NO_TLS,
    ),
    Mutant(
        "a-removed-user-stays",
        "server",
        "a change of a user ends the connections of that user",
        (Edit("_Server._end_changed", "not login.holds(users)", "False"),),
        turns_red=PASSWORD + "a_user_that_is_removed_or_changed_loses_its_connections[removed]",
        why_named=NO_TLS,
    ),
    Mutant(
        "a-stand-in-for-strangers-alone",
        "password_login",
        "a login costs the same for a name that is not there",
        (
            Edit(
                "PasswordLogin.identify",
                "users.stand_in.verifier(name)",
                "users.stand_in.verifier(name) if user is None else user.verifier",
            ),
        ),
        turns_red="tests/proof/test_login_times.py::test_a_whole_login_takes_the_same_steps_for_"
        "a_name_that_is_not_there",
        why_named=NO_TLS,
    ),
    Mutant(
        "a-login-outlasts-its-user",
        "password_login",
        "a user that changes during the login does not come in",
        (Edit("PasswordLogin.identify", "not _is_same(user, self._users.current())", "False"),),
        turns_red=PASSWORD + "a_user_that_is_removed_during_the_login_does_not_come_in",
        why_named=NO_TLS,
    ),
    Mutant(
        "a-user-has-all-places",
        "client_places",
        "a user has at most its connections",
        (
            Edit(
                "ClientPlaces.admit",
                "bound is not None and self._of_user(identity.name) >= bound",
                "False",
            ),
        ),
        turns_red=PASSWORD + "a_user_has_at_most_its_connections",
        why_named=NO_TLS,
    ),
    Mutant(
        "no-place-is-the-operators",
        "client_places",
        "the last places are the operators'",
        (Edit("ClientPlaces._bound_of", "Role.ADMIN in identity.roles", "True"),),
        turns_red=PASSWORD + "the_last_places_are_the_operators",
        why_named=NO_TLS,
    ),
    Mutant(
        "strangers-keep-their-places",
        "client_places",
        "a newcomer takes the place of a client that has not logged in",
        (Edit("ClientPlaces.enter", "not self._guests", "True"),),
        turns_red=PASSWORD + "a_crowd_without_a_password_shuts_no_user_out",
        why_named=NO_TLS,
    ),
    Mutant(
        "http-without-a-token",
        "http_access",
        "with tokens a client of --http proves one",
        (Edit("HttpAccess.refusal", "given and right", "True"),),
        turns_red=HTTP + "without_the_token_a_client_sees_no_name",
        why_named=NO_TLS,
    ),
    Mutant(
        "ready-names-logs",
        "http_endpoints",
        "/ready gives a reason to a known client alone",
        (Edit("_add_routes", "_refusal_of(request, _rules(own_host)) is not None", "False"),),
        turns_red=HTTP + "without_the_token_a_client_sees_no_name",
        why_named=NO_TLS,
    ),
    Mutant(
        "any-host-header",
        "http_access",
        "without tokens the Host header is one of this machine",
        (Edit("HttpAccess.refusal", "self._is_own(host)", "True"),),
        turns_red=HTTP + "a_page_of_another_site_reads_nothing_by_a_name_of_its_own",
        why_named=NO_TLS,
    ),
    Mutant(
        "any-certificate-reads-http",
        "http_access",
        "over TLS the certificate is a monitor's or an administrator's",
        (Edit("HttpAccess.refusal", "identity.roles & self.readers", "identity.roles"),),
        turns_red=HTTP + "over_tls_a_monitors_certificate_does_as_well[replica-False]",
        why_named=NO_TLS,
    ),
    Mutant(
        "a-monitor-reads-tables",
        "http_endpoints",
        "pages of tables are not for monitors",
        (Edit("_access", "request.path in contents", "False"),),
        turns_red=HTTP + "over_tls_a_monitor_reads_no_page_of_a_table[monitor-False]",
        why_named=NO_TLS,
    ),
    Mutant(
        "a-silent-handshake-stays",
        "https_arrivals",
        "a handshake that is not complete in time is ended",
        (Edit("_Arrival.end", "self._raw.abort()", "pass"),),
        turns_red=HTTP + "silent_handshakes_end_and_shut_nobody_out",
        why_named=NO_TLS,
    ),
    Mutant(
        "sealed-objects-pass-by-any-name",
        "sealing",
        "an encrypted object opens under the name of its own file alone",
        (
            Edit("sealing.seal", "head + name.encode()", "head"),
            Edit("sealing.unseal", "head + name.encode()", "head"),
        ),
        turns_red=SEALING + "an_object_opens_under_its_own_name_alone",
        why_named=NO_KEYS,
    ),
    Mutant(
        "one-nonce-for-all",
        "sealing",
        "each object is encrypted with a nonce of its own",
        (Edit("sealing.seal", "os.urandom(NONCE_BYTES)", "bytes(NONCE_BYTES)"),),
        turns_red=SEALING + "no_nonce_is_used_twice",
        why_named=NO_KEYS,
    ),
    Mutant(
        "each-scrape-is-a-login",
        "http_audit",
        "a peer of --http has one line an hour, and not one for each request",
        (Edit("HttpAudit.login", "now_s - self._logins.get(peer, -LOGIN_S) < LOGIN_S", "False"),),
        turns_red=HTTP + "a_peer_with_a_proof_has_one_line_an_hour",
        why_named=NO_TLS,
    ),
    Mutant(
        "http-without-an-audit",
        "http_audit",
        "each daemon's --http audits its refusals",
        (Edit("http_endpoints._access.on_request", "audit.refusal(refusal, address)", "pass"),),
        turns_red=HTTP + "a_peer_with_a_proof_has_one_line_an_hour",
        why_named=NO_TLS,
    ),
)
