"""Laws of `slipstream certs dev`: whom its certificates name, and who may read them."""

import ssl
import stat
import sys

import pytest
from cryptography import x509
from cryptography.x509 import verification

from slipstream.cli.certs import (
    AUTHORITY,
    ROLES,
    CertificateOptions,
    cert_path,
    key_path,
    make_certificates,
)
from slipstream.cli.main import exit_code
from slipstream.core.errors import InvalidRequest

HOST, ADDRESS = "target-0.example", "10.0.0.7"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certs") / "a folder"
    make_certificates(folder, CertificateOptions((HOST, ADDRESS), days=3))
    return folder


def load(folder, name):
    return x509.load_pem_x509_certificate(cert_path(folder, name).read_bytes())


@pytest.mark.parametrize("role", ROLES)
def test_a_role_is_good_on_both_sides_of_a_connection(folder, role):
    store = verification.Store([load(folder, AUTHORITY)])
    policy = verification.PolicyBuilder().store(store)
    cert = load(folder, role)
    for host in (role, "localhost", HOST):
        policy.build_server_verifier(x509.DNSName(host)).verify(cert, [])
    shown = policy.build_client_verifier().verify(cert, [])
    assert x509.DNSName(role) in shown.subjects
    names = cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert set(map(str, names.get_values_for_type(x509.IPAddress))) == {"127.0.0.1", "::1", ADDRESS}
    assert set(names.get_values_for_type(x509.DNSName)) == {role, "localhost", HOST}
    assert 3 <= (cert.not_valid_after_utc - cert.not_valid_before_utc).total_seconds() / 86400 < 3.1


@pytest.mark.parametrize("name", [AUTHORITY, *ROLES])
def test_keys_are_their_owner_s_alone_and_fit_their_certificates(folder, name):
    assert stat.S_IMODE(key_path(folder, name).stat().st_mode) == 0o600
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert_path(folder, name), key_path(folder, name))


def test_what_is_there_is_overwritten_only_when_that_is_said(tmp_path, capsys):
    command = ["certs", "dev", str(tmp_path)]
    assert exit_code(command) == 0
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert exit_code(command) == 2
    assert "has ca.pem already; --force" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert exit_code([*command, "--force"]) == 0
    assert all(path.read_bytes() != before[path.name] for path in tmp_path.iterdir())


@pytest.mark.parametrize(
    ("wanted", "sentence"),
    [
        ({"days": 0}, "days is 0"),
        ({"days": 4000}, "days is 4000"),
        ({"hosts": ("two words",)}, "neither a host's name nor an IP address"),
        ({"hosts": ("",)}, "neither a host's name nor an IP address"),
        ({"hosts": ("router",)}, "'router' names a role"),
    ],
)
def test_what_no_certificate_can_say_is_refused(wanted, sentence):
    with pytest.raises(InvalidRequest, match=sentence):
        CertificateOptions(**wanted)


def test_without_its_library_it_says_what_to_install(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "cryptography", None)
    monkeypatch.delitem(sys.modules, "slipstream.cli.certs")
    assert exit_code(["certs", "dev", str(tmp_path)]) == 2
    assert "pip install 'slipstream[serve]'" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
