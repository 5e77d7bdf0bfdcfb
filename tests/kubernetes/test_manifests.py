"""docs/kubernetes agrees with the commands, the image, the certificates and with itself.

`make kubernetes` compares the manifests with the schemas of the API.
"""

from __future__ import annotations

import os
import re
import stat
import subprocess
from pathlib import Path
from typing import Any

import click
import pytest

from tests.kubernetes.manifests import container, documents, of_kind, workloads
from tests.support.folders import ROOT
from walkeeper_cli.program import cli
from walkeeper_common.access.certificate_identity import identity_of_certificate
from walkeeper_common.access.identity import Role
from walkeeper_common.shell.http import http_locks
from walkeeper_common.shell.http.http_endpoints import OPEN_PATHS
from walkeeper_common.shell.http.http_locks import http_tokens, use_http_token
from walkeeper_common.shell.tls import own_credentials

SAFEKEEPER = {
    "app.kubernetes.io/name": "walkeeper",
    "app.kubernetes.io/component": "safekeeper",
}
WORKLOADS = list(workloads())


def labels(workload: dict[str, Any]) -> dict[str, str]:
    found = workload["spec"]["template"]["metadata"]["labels"]
    assert isinstance(found, dict)
    return found


def environment(workload: dict[str, Any]) -> dict[str, str]:
    """Return the variables of a container, with the number of its pod for a reference to that."""
    found = dict[str, str]()
    for source in container(workload).get("envFrom", ()):
        found |= of_kind("ConfigMap")[source["configMapRef"]["name"]]["data"]
    for variable in container(workload)["env"]:
        found[variable["name"]] = "1" if "fieldRef" in str(variable) else "secret"
    return found


def parsed(workload: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the options that the command of a container takes from its words and variables."""
    for name, value in environment(workload).items():
        monkeypatch.setenv(name, value)
    # No file is here.
    monkeypatch.setattr(own_credentials, "use_credentials", lambda path: None)
    monkeypatch.setattr(http_locks, "use_http_token", lambda path: None)
    name, *words = container(workload)["args"]
    command = cli.get_command(click.Context(cli), name)
    assert command is not None, name
    return command.make_context(name, words).params


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda w: str(w["metadata"]["name"]))
def test_a_container_runs_a_command_with_options_that_it_has(
    workload: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = parsed(workload, monkeypatch)
    ports = {port["name"]: port["containerPort"] for port in container(workload).get("ports", ())}
    for option, port in (("listen", "walkeeper"), ("http", "http")):
        if address := options.get(option):
            assert address == ("0.0.0.0", ports[port])
    assert container(workload)["image"] == "walkeeper"


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda w: str(w["metadata"]["name"]))
def test_a_container_has_no_right_that_it_needs_not(workload: dict[str, Any]) -> None:
    pod = workload["spec"]["template"]["spec"]
    user = int(re.findall(r"--uid (\d+)", (ROOT / "docker" / "Dockerfile").read_text())[0])
    assert pod["securityContext"]["runAsUser"] == user and pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not pod["automountServiceAccountToken"] and not pod["enableServiceLinks"]
    assert container(workload)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_a_daemon_that_cannot_do_its_work_is_not_restarted_for_that() -> None:
    for workload in (of_kind("StatefulSet")["safekeeper"], of_kind("Deployment")["proposer"]):
        probes = {
            name: asked(probe)
            for name, probe in container(workload).items()
            if name.endswith("Probe")
        }
        assert probes.pop("readinessProbe") == "/ready" and len(probes) >= 1
        assert set(probes.values()) == {"/health"}


def asked(probe: dict[str, Any]) -> str:
    """Return the path that a probe asks for; it has no token."""
    found = probe["httpGet"]
    assert found["port"] == "http" and found["path"] in OPEN_PATHS
    return str(found["path"])


def test_metrics_need_the_token_of_the_secret_and_prometheus_has_it() -> None:
    (endpoint,) = of_kind("PodMonitor")["walkeeper"]["spec"]["podMetricsEndpoints"]
    secret = endpoint["authorization"]["credentials"]
    assert endpoint["path"] not in OPEN_PATHS
    for workload in (of_kind("StatefulSet")["safekeeper"], of_kind("Deployment")["proposer"]):
        words = container(workload)["args"]
        assert words[words.index("--http-token") + 1] == "/run/walkeeper/http-token"
        assert "--allow-unauthenticated" not in words
        pod = workload["spec"]["template"]["spec"]
        (maker,) = pod["initContainers"]
        of = {volume["name"]: volume for volume in pod["volumes"]}
        assert of["http-token"]["secret"]["secretName"] == secret["name"]
        assert "http-token" in [mount["name"] for mount in maker["volumeMounts"]]
        assert f"/etc/walkeeper/http/{secret['key']}\n" in maker["command"][2]
        ports = [port["name"] for port in container(workload)["ports"]]
        assert endpoint["port"] in ports
        name = labels(workload)["app.kubernetes.io/component"]
        rules = of_kind("NetworkPolicy")[name]["spec"]["ingress"]
        assert [rule for rule in rules if rule["ports"] == [{"port": 7676}]], name


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda w: str(w["metadata"]["name"]))
def test_a_container_has_the_tls_file_of_its_own_secret(workload: dict[str, Any]) -> None:
    pod, main = workload["spec"]["template"]["spec"], container(workload)
    file = (
        environment(workload).get("WALKEEPER_TLS") or main["args"][main["args"].index("--tls") + 1]
    )
    assert file == "/run/walkeeper/tls.pem"
    (maker,) = pod["initContainers"]
    assert maker["securityContext"] == main["securityContext"]
    of = {volume["name"]: volume for volume in pod["volumes"]}
    assert "emptyDir" in of["tls"], "the file is never on a disk"
    mounted = [m["name"] for m in main["volumeMounts"]]
    secrets = [of[m["name"]]["secret"]["secretName"] for m in maker["volumeMounts"][1:]]
    assert "tls" in mounted and not {m["name"] for m in maker["volumeMounts"][1:]} & set(mounted)
    made = {each["spec"]["secretName"] for each in of_kind("Certificate").values()}
    made.add("walkeeper-http")  # docs/kubernetes.md makes it
    assert secrets and set(secrets) <= made


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda w: str(w["metadata"]["name"]))
def test_the_script_of_a_pod_makes_files_for_the_daemon_alone(
    workload: dict[str, Any], tmp_path: Path
) -> None:
    """The loop's pause is taken out, so that it ends after the first turn."""
    (maker,) = workload["spec"]["template"]["spec"]["initContainers"]
    shell, flags, script = maker["command"]
    for number in ("", "1"):
        (tmp_path / "secret" / number).mkdir(exist_ok=True, parents=True)
        for name in ("tls.key", "tls.crt", "ca.crt"):
            (tmp_path / "secret" / number / name).write_text(f"{name}\n")
    (tmp_path / "run").mkdir()
    (tmp_path / "http").mkdir()
    (tmp_path / "http" / "token").write_text("0123456789abcdef")
    script = script.replace("/etc/walkeeper/tls", f"{tmp_path}/secret")
    script = script.replace("/etc/walkeeper/http", f"{tmp_path}/http")
    script = script.replace("/run/walkeeper", f"{tmp_path}/run").replace("sleep 60", "false")
    words = [shell, flags, script]
    subprocess.run(words, check=True, env={"PATH": os.environ["PATH"], "WALKEEPER_ID": "1"})
    made = {file.name: file for file in (tmp_path / "run").iterdir() if file.name != "new"}
    assert made["tls.pem"].read_text() == "tls.key\ntls.crt\nca.crt\n"
    if "http-token" in made:
        token = made.pop("http-token")
        use_http_token(str(token))  # it refuses a file that others may read
        assert http_tokens() == ("0123456789abcdef",)
        use_http_token(None)
    assert set(made) == {"tls.pem"}
    assert stat.S_IMODE(made["tls.pem"].stat().st_mode) == 0o600


def test_the_safekeepers_keep_a_quorum_and_their_disks() -> None:
    keepers = of_kind("StatefulSet")["safekeeper"]["spec"]
    assert of_kind("PodDisruptionBudget")["safekeeper"]["spec"]["maxUnavailable"] == 1
    assert keepers["persistentVolumeClaimRetentionPolicy"] == {
        "whenDeleted": "Retain",
        "whenScaled": "Retain",
    }
    (apart,) = keepers["template"]["spec"]["affinity"]["podAntiAffinity"].values()
    assert apart[0]["topologyKey"] == "kubernetes.io/hostname"
    words = container(of_kind("StatefulSet")["safekeeper"])["args"]
    mount = container(of_kind("StatefulSet")["safekeeper"])["volumeMounts"][0]["mountPath"]
    assert words[words.index("--data-dir") + 1].startswith(f"{mount}/"), "fsGroup opens the mount"


def test_the_proposer_names_each_pod_of_the_safekeepers() -> None:
    keepers = of_kind("StatefulSet")["safekeeper"]
    name, spec = keepers["metadata"]["name"], keepers["spec"]
    first = spec["ordinals"]["start"]
    assert first == 1, "no safekeeper has the id 0"
    numbers = range(first, first + spec["replicas"])
    hosts = [f"{name}-{number}.{spec['serviceName']}" for number in numbers]
    given = of_kind("ConfigMap")["walkeeper"]["data"]["WALKEEPER_SAFEKEEPERS"]
    assert given.split(",") == [f"{host}:5454" for host in hosts]
    certified = of_kind("Certificate")
    assert [certified[host.partition(".")[0]]["spec"]["dnsNames"] for host in hosts] == [
        [host] for host in hosts
    ]


def test_every_selector_selects_what_is_there() -> None:
    there = [labels(workload) for workload in WORKLOADS]
    spec = {
        (found["kind"], found["metadata"]["name"]): found["spec"]
        for found in documents()
        if "spec" in found
    }
    selectors = [spec["Service", "safekeeper"]["selector"]]
    selectors += [spec["PodDisruptionBudget", "safekeeper"]["selector"]["matchLabels"]]
    selectors += [s["podSelector"]["matchLabels"] for (kind, _), s in spec.items() if "Net" in kind]
    assert len(selectors) == 4
    assert not [
        wanted for wanted in selectors if not any(wanted.items() <= t.items() for t in there)
    ]
    assert of_kind("Service")["safekeeper"]["spec"]["publishNotReadyAddresses"]


def test_a_stranger_reaches_no_safekeeper() -> None:
    rules = of_kind("NetworkPolicy")["safekeeper"]["spec"]["ingress"]
    wal = [rule for rule in rules if rule["ports"] == [{"port": 5454}]]
    assert len(wal) == 1 and all(peer["podSelector"]["matchLabels"] for peer in wal[0]["from"])
    assert all(rule["from"] for rule in rules), "a rule without peers admits everybody"
    cluster = of_kind("Cluster")["shop"]["metadata"]["name"]
    assert {"podSelector": {"matchLabels": {"cnpg.io/cluster": cluster}}} in wal[0]["from"]


def test_a_certificate_states_an_identity() -> None:
    found = {
        name: identity_of_certificate({"subjectAltName": [("URI", uri)]})
        for name, certificate in of_kind("Certificate").items()
        for uri in certificate["spec"].get("uris", ())
    }
    numbers = {f"safekeeper-{n}": n for n in (1, 2, 3)}
    assert set(found) == {*numbers, "proposer", "admin"}
    assert found["admin"].roles == {Role.ADMIN}
    for name, number in numbers.items():
        assert found[name].safekeeper_id == number
    assert found["proposer"].roles == {Role.PROPOSER}


def standby_names(others: list[str]) -> str:
    """Return synchronous_standby_names as CloudNativePG makes it of the manifest."""
    given = of_kind("Cluster")["shop"]["spec"]["postgresql"]["synchronous"]
    names = [*given["standbyNamesPre"], *others[: given["maxStandbyNamesFromCluster"]]]
    quoted = ",".join(f'"{name}"' for name in names)
    return f"{given['method'].upper()} {given['number']} ({quoted})"


def test_no_commit_does_without_walkeeper_under_cloudnative_pg() -> None:
    """FIRST 2 of three names would take both standbys while walkeeper is away."""
    assert standby_names(["shop-2", "shop-3"]) == 'FIRST 2 ("walkeeper","shop-2")'
    cluster = of_kind("Cluster")["shop"]["spec"]
    assert cluster["postgresql"]["synchronous"]["dataDurability"] == "required"
    (role,) = cluster["managed"]["roles"]
    dsn = of_kind("ConfigMap")["walkeeper"]["data"]["WALKEEPER_DSN"]
    assert f"user={role['name']} " in dsn and role["replication"] and role["login"]
    assert "host=shop-rw " in dsn
