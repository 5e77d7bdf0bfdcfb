"""Mutants of revocation: whom a list keeps out, and whom it must not stop."""

from __future__ import annotations

from tests.proof.mutants.access import NO_TLS
from tests.proof.mutants.mutant import Edit, Mutant

LISTS = "tests/common/test_revocation_lists.py::test_"
PEERS = "tests/safekeeper/test_revoked_peers.py::test_"
REVOKE = "tests/cli/test_certs_revoke.py::test_"

REVOKING = (
    Mutant(
        "revoked-of-any-issuer",
        "revocation_lists",
        "a serial number is that of its issuer",
        (
            Edit(
                "RevocationLists.check",
                'self.revoked.get((certificate["issuer"], serial))',
                "dict((key[1], since) for key, since in self.revoked.items()).get(serial)",
            ),
        ),
        turns_red=LISTS + "a_serial_number_is_that_of_its_issuer",
        why_named=NO_TLS,
    ),
    Mutant(
        "the-first-list-counts",
        "revocation_lists",
        "the newest list of an authority counts",
        (
            Edit(
                "RevocationLists.of",
                "known is None or known.last_update_utc <= found.last_update_utc",
                "known is None",
            ),
        ),
        turns_red=LISTS + "the_newest_list_of_an_authority_counts[True]",
        why_named=NO_TLS,
    ),
    Mutant(
        "a-list-of-anybody",
        "revocation_lists",
        "an authority has signed its list",
        (
            Edit(
                "revocation_lists._signer",
                "authority.subject == found.issuer and has_signed_list(authority, found)",
                "authority.subject == found.issuer",
            ),
        ),
        turns_red=LISTS + "a_list_that_is_not_usable_is_refused_at_the_start_and_leaves_the_"
        "former_file_in_force[of a stranger]",
        why_named=NO_TLS,
    ),
    Mutant(
        "a-delta-for-a-whole-list",
        "revocation_lists",
        "a list with an extension that changes its meaning is refused",
        (Edit("revocation_lists._flaw", "extension.critical", "False"),),
        turns_red=LISTS + "a_list_that_is_not_usable_is_refused_at_the_start_and_leaves_the_"
        "former_file_in_force[delta]",
        why_named=NO_TLS,
    ),
    Mutant(
        "revoked-peers-of-the-port",
        "revocation_lists",
        "a safekeeper admits no revoked certificate",
        (Edit("_Encrypted.connection_made", "self._opening.check_revoked(transport)", "pass"),),
        turns_red=PEERS + "a_revoked_proposer_is_refused_with_the_reason",
        why_named=NO_TLS,
    ),
    Mutant(
        "revoked-peers-stay",
        "revocation_lists",
        "the connections of a revoked certificate end when the list is loaded",
        (Edit("Credentials._end_if_revoked", "transport.dismiss(str(error))", "pass"),),
        turns_red=PEERS + "open_connections_of_a_revoked_certificate_end_and_no_others",
        why_named=NO_TLS,
    ),
    Mutant(
        "a-broken-connection-ends-the-daemon",
        "revocation_lists",
        "a new file ends no daemon, though the TLS of a connection has broken before",
        (
            Edit(
                "Credentials._end_if_revoked",
                "transport.layer.peer_certificate or {}",
                "transport.layer.object.getpeercert() or {}",
            ),
        ),
        turns_red=PEERS + "a_connection_that_broke_does_not_end_the_daemon_with_the_next_file",
        why_named=NO_TLS,
    ),
    Mutant(
        "revoked-safekeepers",
        "revocation_lists",
        "a proposer believes no safekeeper with a revoked certificate",
        (
            Edit(
                "_Unchecked.connection_made",
                "self._credentials.admit(transport, self._checked.get_loop())",
                "pass",
            ),
        ),
        turns_red=PEERS + "a_proposer_leaves_a_safekeeper_whose_certificate_is_revoked",
        why_named=NO_TLS,
    ),
    Mutant(
        "revoked-safekeepers-of-commands",
        "revocation_lists",
        "a command believes no safekeeper with a revoked certificate",
        (Edit("_secured", "credentials.check(certificate)", "pass"),),
        turns_red=PEERS + "a_proposer_leaves_a_safekeeper_whose_certificate_is_revoked",
        why_named=NO_TLS,
    ),
    Mutant(
        "revoked-monitors",
        "revocation_lists",
        "--http lets no revoked certificate in",
        (Edit("certified_identity", "credentials.check(certificate or {})", "pass"),),
        turns_red=PEERS + "a_revoked_monitor_reads_nothing_more_on_a_connection_that_is_open",
        why_named=NO_TLS,
    ),
    Mutant(
        "revoked-daemons-of-http",
        "revocation_lists",
        "a client of --http believes no revoked daemon",
        (Edit("_CheckedSocket.do_handshake", "self.getpeercert() or {}", "{}"),),
        turns_red=PEERS + "a_client_of_http_believes_no_revoked_daemon",
        why_named=NO_TLS,
    ),
    Mutant(
        "a-list-has-to-be-new",
        "revocation_lists",
        "a list that has ended stops no peer that it does not name",
        (
            Edit(
                "credentials._load",
                'context.verify_flags &= ~getattr(ssl, "VERIFY_X509_PARTIAL_CHAIN", 0)',
                "context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF",
            ),
        ),
        turns_red=LISTS + "a_list_that_has_ended_stays_in_force_and_stops_nobody_else",
        why_named=NO_TLS,
    ),
    Mutant(
        "libpq-takes-a-list-that-has-ended",
        "revocation_lists",
        "libpq gets a list only while it would not refuse all peers",
        (Edit("Credentials.has_list_of_each_authority", "not has_ended", "True"),),
        turns_red=LISTS + "libpq_gets_the_list_only_where_it_would_not_refuse_all",
        why_named=NO_TLS,
    ),
    Mutant(
        "a-lost-list-frees-the-thief",
        "revocation_lists",
        "a file keeps its list if the authority has an older one, or none",
        (
            Edit(
                "Authority._newest_list",
                "(each for one in parse_lists(pem) if self._has_signed(one) for each in one)",
                "iter(())",
            ),
        ),
        turns_red=REVOKE + "a_list_that_the_authority_has_lost_stays_in_the_files",
        why_named=NO_TLS,
    ),
    Mutant(
        "a-later-list-frees-the-thief",
        "revocation_lists",
        "an authority that lost its list takes over what its files have of it",
        (Edit("Authority._newest_list", "[*listed, *lost.values()]", "listed"),),
        turns_red=REVOKE + "a_revocation_after_a_loss_of_the_list_frees_nobody",
        why_named=NO_TLS,
    ),
    Mutant(
        "renewal-trusts-one-authority",
        "authority",
        "a renewed file trusts the other authorities of the old one",
        (Edit("Authority.renew", "[] if only_own else self._others_of(pem)", "[]"),),
        turns_red="tests/common/test_tls_layer.py"
        "::test_no_peer_is_refused_while_the_authority_changes",
        why_named=NO_TLS,
    ),
    Mutant(
        "written-file-is-lost-with-the-power",
        "private_file",
        "a list that was written is there after a power cut",
        (Edit("write_private", "sync_path(os.path.dirname(os.path.abspath(path)))", "None"),),
        turns_red="tests/common/test_private_file.py::test_the_name_of_a_private_file_is_durable",
        why_named="the simulated programs write no such file",
    ),
)
