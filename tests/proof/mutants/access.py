"""Mutants of access: whom the port admits, and whom a client believes."""

from __future__ import annotations

from tests.proof.mutants.mutant import Edit, Mutant

OPENING = "tests/safekeeper/test_opening.py::test_"
TLS = "tests/common/test_tls_layer.py::test_"
SEALING = "tests/common/test_sealing.py::test_"
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
                "is_postgres and self._port.admits_plain(transport)",
                "self._port.admits_plain(transport)",
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
        "bytes-before-tls-are-kept",
        "opening",
        "bytes behind an SSLRequest end the connection",
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
        "broken-tls-raises-into-the-writer",
        "tls_transport",
        "a write on a broken connection is dropped, as on a lost socket",
        (Edit("TlsTransport.writelines", "self._fail(error)", "raise"),),
        turns_red=TLS + "a_write_that_tls_refuses_ends_the_connection",
        why_named=NO_TLS,
    ),
    Mutant(
        "broken-tls-waits-for-its-peer",
        "tls_transport",
        "a broken connection with unsent bytes is aborted",
        (Edit("TlsTransport._fail", "self._raw.get_write_buffer_size()", "False"),),
        turns_red=TLS + "a_write_on_a_broken_connection_neither_raises_nor_waits[full-run0]",
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
)
