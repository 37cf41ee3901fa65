"""The manifests are valid, agree with each other, and with docs/operations.md."""

import copy
import os
import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import kubernetes_validate
import pytest
import yaml
from cloudcoil.models.prometheus_operator.v1 import ServiceMonitor
from prometheus_client import CollectorRegistry

from server.http.auth import OPEN_PATHS
from server.settings import Settings
from server.telemetry.admission_metrics import AdmissionMetrics
from server.telemetry.metric_maker import MetricMaker
from tests.deploy import manifests
from tests.deploy.manifests import KUBERNETES, OVERLAYS, ROOT, Object, needs_kubectl

KUBERNETES_VERSIONS = ("1.30", "1.37")
"""The oldest and the newest that the manifests are checked against."""

KUSTOMIZE = ("Kustomization", "Component")
OPERATOR = ("ServiceMonitor",)
ENGINE_STOP_S = 20
"""Seconds for the engine's processes to end after the last request."""

both_overlays = pytest.mark.parametrize("overlay", OVERLAYS)


def problems(item: Object) -> list[str]:
    """What the schemas of Kubernetes, or of the Prometheus operator, find.

    KEDA publishes no model of its ScaledObject; `test_keda_scales_as_the_autoscaler_does` reads it.
    """
    if item["kind"] == "ScaledObject":
        return []
    if item["kind"] in OPERATOR:
        # The model ignores unknown keys, so what it has read must be all that was given.
        known = ServiceMonitor.model_validate(item).model_dump(by_alias=True, exclude_unset=True)
        return [] if known == item else [f"{item} has keys that {known} has not"]
    found = []
    for version in KUBERNETES_VERSIONS:
        try:
            kubernetes_validate.validate(item, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            found.append(f"{version}: {item['kind']}: {error.message}")
    return found


@needs_kubectl
@both_overlays
def test_every_object_is_valid(overlay: str) -> None:
    objects = manifests.rendered(overlay)
    kinds = {item["kind"] for item in objects}
    assert kinds == {
        *("ConfigMap", "Deployment", "HorizontalPodAutoscaler", "NetworkPolicy"),
        *("PodDisruptionBudget", "Service", "ServiceAccount", "ServiceMonitor"),
    }
    assert [line for item in objects for line in problems(item)] == []
    assert {item["metadata"]["namespace"] for item in objects} == {"specgate"}


def test_every_whole_object_is_valid_without_kubectl() -> None:
    whole = [item for item in manifests.sources().values() if item["kind"] not in KUSTOMIZE]
    assert len(whole) == 11
    assert [line for item in whole for line in problems(item)] == []


MISTAKES: list[tuple[str, Callable[[Object], object]]] = [
    ("Deployment", lambda o: o["spec"]["template"]["spec"].update(terminationGracePeriod=60)),
    ("Deployment", lambda o: o["spec"].update(replicas="two")),
    ("HorizontalPodAutoscaler", lambda o: o["spec"].pop("maxReplicas")),
    ("ServiceMonitor", lambda o: o["spec"]["endpoints"][0].update(scrapetimeout="10s")),
    ("NetworkPolicy", lambda o: o["spec"].update(ingress={"from": []})),
]


@needs_kubectl
@pytest.mark.parametrize(("kind", "mistake"), MISTAKES)
def test_a_mistake_is_found(kind: str, mistake: Callable[[Object], object]) -> None:
    item = copy.deepcopy(manifests.named(manifests.rendered("cpu"), kind, "specgate"))
    mistake(item)
    assert problems(item)


@needs_kubectl
@both_overlays
def test_the_probes_are_those_of_the_operations_page(overlay: str) -> None:
    container = manifests.server(manifests.rendered(overlay))
    paths = {
        probe: container[f"{probe}Probe"]["httpGet"]["path"]
        for probe in ("startup", "readiness", "liveness")
    }
    assert paths == {"startup": "/ready", "readiness": "/ready", "liveness": "/health"}
    assert set(paths.values()) <= OPEN_PATHS

    def budget_s(probe: str) -> int:
        return int(container[probe]["periodSeconds"] * container[probe]["failureThreshold"])

    # "set failureThreshold times periodSeconds above the duration of a start"
    assert budget_s("livenessProbe") >= budget_s("startupProbe") >= 300
    progress = manifests.one(manifests.rendered(overlay), "Deployment")["spec"]
    assert progress["progressDeadlineSeconds"] > budget_s("startupProbe")


@needs_kubectl
@both_overlays
def test_a_stop_fits_the_grace_period(overlay: str) -> None:
    objects = manifests.rendered(overlay)
    settings = yaml.safe_load(manifests.settings_text(objects))
    default = Settings.model_fields["shutdown_timeout_s"].default
    shutdown_s = settings.get("shutdown_timeout_s", default)
    grace_s = manifests.pod(objects)["terminationGracePeriodSeconds"]
    assert grace_s >= shutdown_s + ENGINE_STOP_S
    # Nothing else delays SIGTERM, and readiness is seen before the port closes.
    container = manifests.server(objects)
    assert "lifecycle" not in container
    probe = container["readinessProbe"]
    assert settings["shutdown_delay_s"] > probe["periodSeconds"] * probe["failureThreshold"]


@needs_kubectl
@both_overlays
def test_a_pod_can_do_little(overlay: str) -> None:
    pod = manifests.pod(manifests.rendered(overlay))
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["automountServiceAccountToken"] is False
    assert pod["enableServiceLinks"] is False
    dockerfile = (ROOT / "deploy/Dockerfile").read_text()
    assert f"USER {pod['securityContext']['runAsUser']}:" in dockerfile
    for container in pod["containers"] + pod.get("initContainers", []):
        context = container["securityContext"]
        assert context["readOnlyRootFilesystem"] is True
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"] == {"drop": ["ALL"]}
        mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
        assert {"/tmp", "/var/cache/specgate"} <= mounts, "what is written needs a volume"


@needs_kubectl
@both_overlays
def test_the_objects_refer_to_each_other(overlay: str) -> None:
    objects = manifests.rendered(overlay)
    labels = manifests.one(objects, "Deployment")["spec"]["template"]["metadata"]["labels"]
    name = {"app.kubernetes.io/name": "specgate"}
    assert name.items() <= labels.items()
    service = manifests.named(objects, "Service", "specgate")
    assert service["spec"]["selector"].items() <= labels.items()
    for kind, key in (("PodDisruptionBudget", "selector"), ("NetworkPolicy", "podSelector")):
        selector = manifests.named(objects, kind, "specgate")["spec"][key]["matchLabels"]
        assert selector.items() <= labels.items()
    monitor = manifests.one(objects, "ServiceMonitor")["spec"]
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert monitor["endpoints"][0]["port"] == service["spec"]["ports"][0]["name"]
    policy = manifests.named(objects, "NetworkPolicy", "specgate")
    (ingress,) = policy["spec"]["ingress"]
    ports = {port["name"] for port in manifests.server(objects)["ports"]}
    assert {port["port"] for port in ingress["ports"]} <= ports
    target = manifests.one(objects, "HorizontalPodAutoscaler")["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == ("Deployment", "specgate")
    assert "replicas" not in manifests.one(objects, "Deployment")["spec"]
    mounted = {volume["name"] for volume in manifests.pod(objects)["volumes"]}
    for container in manifests.pod(objects)["containers"]:
        assert {mount["name"] for mount in container["volumeMounts"]} <= mounted


@needs_kubectl
@both_overlays
def test_the_pods_find_each_other(overlay: str) -> None:
    objects = manifests.rendered(overlay)
    variables = {item["name"]: item for item in manifests.server(objects)["env"]}
    peers = urlsplit(variables["SPECGATE_FLEET_PEERS"]["value"])
    service = manifests.named(objects, "Service", peers.hostname or "")
    assert service["spec"]["clusterIP"] == "None", "a name for every pod, not for one of them"
    assert "publishNotReadyAddresses" not in service["spec"], "a pod that starts asks others"
    labels = manifests.one(objects, "Deployment")["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    (port,) = service["spec"]["ports"]
    container = {one["name"]: one["containerPort"] for one in manifests.server(objects)["ports"]}
    # A headless service translates no port.
    assert port["port"] == peers.port == container[port["targetPort"]]
    monitor = manifests.one(objects, "ServiceMonitor")["spec"]["selector"]["matchLabels"]
    assert not monitor.items() <= service["metadata"].get("labels", {}).items(), "scraped twice"

    policy = manifests.named(objects, "NetworkPolicy", "specgate-fleet")["spec"]
    for rules, side in ((policy["ingress"], "from"), (policy["egress"], "to")):
        (ours,) = [rule for rule in rules if side in rule]
        (allowed,) = ours[side]
        assert allowed["podSelector"]["matchLabels"].items() <= labels.items()
        assert {one["port"] for one in ours["ports"]} == {port["targetPort"]}
    assert 53 in {one["port"] for rule in policy["egress"] for one in rule["ports"]}

    admin = variables["SPECGATE_ADMIN_KEY"]["valueFrom"]
    assert variables["SPECGATE_FLEET_KEY"]["valueFrom"] == admin
    volumes = {volume["name"]: volume for volume in manifests.pod(objects)["volumes"]}
    assert volumes["fleet"]["configMap"]["optional"] is True
    mounts = {m["name"]: m["mountPath"] for m in manifests.server(objects)["volumeMounts"]}
    assert variables["SPECGATE_FLEET_STATE"]["value"].startswith(f"{mounts['fleet']}/")


@needs_kubectl
@both_overlays
def test_keys_come_from_the_secret_only(overlay: str) -> None:
    objects = manifests.rendered(overlay)
    variables = {item["name"]: item for item in manifests.server(objects)["env"]}
    used = {
        item["valueFrom"]["secretKeyRef"]["key"]
        for item in variables.values()
        if "valueFrom" in item
    }
    assert used == {"api-key", "admin-key", "metrics-key"}
    reference = variables["SPECGATE_METRICS_KEY"]["valueFrom"]["secretKeyRef"]
    assert reference == {"name": "specgate-keys", "key": "metrics-key"}
    credentials = manifests.one(objects, "ServiceMonitor")["spec"]["endpoints"][0]["authorization"]
    assert credentials == {"credentials": {"name": "specgate-keys", "key": "metrics-key"}}
    assert not re.search(r"^\s*\w*_key\s*:", manifests.settings_text(objects), re.MULTILINE)
    for name in variables:
        setting = name.removeprefix("SPECGATE_").lower()
        assert setting in Settings.model_fields


def test_the_autoscaler_reads_a_metric_that_the_server_has() -> None:
    folder = KUBERNETES / "components" / "autoscaling"
    (rule,) = manifests.read(folder / "prometheus-adapter.yaml")["rules"]["custom"]
    autoscaler = manifests.read(folder / "horizontalpodautoscaler.yaml")
    (metric,) = autoscaler["spec"]["metrics"]
    assert metric["pods"]["metric"]["name"] == rule["name"]["as"]
    registry = CollectorRegistry()
    AdmissionMetrics(MetricMaker(registry))
    series = rule["seriesQuery"].partition("{")[0]
    assert series in {family.name for family in registry.collect()}


def test_keda_scales_as_the_autoscaler_does() -> None:
    components = KUBERNETES / "components"
    scaled = manifests.read(components / "keda/scaledobject.yaml")["spec"]
    autoscaler = manifests.read(components / "autoscaling/horizontalpodautoscaler.yaml")["spec"]
    assert scaled["scaleTargetRef"] == autoscaler["scaleTargetRef"]
    assert scaled["minReplicaCount"] == autoscaler["minReplicas"]
    assert scaled["maxReplicaCount"] == autoscaler["maxReplicas"]
    behavior = scaled["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    assert behavior == autoscaler["behavior"]
    (trigger,) = scaled["triggers"]
    (metric,) = autoscaler["metrics"]
    assert trigger["metricType"] == metric["pods"]["target"]["type"]
    assert trigger["metadata"]["threshold"] == metric["pods"]["target"]["averageValue"]
    (rule,) = manifests.read(components / "autoscaling/prometheus-adapter.yaml")["rules"]["custom"]
    assert rule["seriesQuery"].partition("{")[0] in trigger["metadata"]["query"]


def rendered_with(component: str, folder: Path) -> tuple[Object, ...]:
    """The base with one component."""
    up = os.path.relpath(KUBERNETES, folder)
    (folder / "kustomization.yaml").write_text(
        f"resources: [{up}/base]\ncomponents: [{up}/components/{component}]\n"
    )
    objects = manifests.render(folder)
    assert [line for item in objects for line in problems(item)] == []
    return objects


@needs_kubectl
def test_keda_owns_the_number_of_pods(tmp_path: Path) -> None:
    objects = rendered_with("keda", tmp_path)
    assert "replicas" not in manifests.one(objects, "Deployment")["spec"]


@needs_kubectl
def test_egress_adds_to_what_is_allowed(tmp_path: Path) -> None:
    objects = rendered_with("egress", tmp_path)
    labels = manifests.one(objects, "Deployment")["spec"]["template"]["metadata"]["labels"]
    policy = manifests.named(objects, "NetworkPolicy", "specgate-egress")["spec"]
    assert policy["policyTypes"] == ["Egress"], "it must not change who may connect"
    assert policy["podSelector"]["matchLabels"].items() <= labels.items()
    ports = {port["port"] for rule in policy["egress"] for port in rule["ports"]}
    assert ports == {53, 443, 4318}


@needs_kubectl
def test_a_roll_out_on_gpus_waits_for_no_further_gpu() -> None:
    deployment = manifests.one(manifests.rendered("gpu"), "Deployment")["spec"]
    assert deployment["strategy"] == {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1},
    }
    assert deployment["template"]["spec"]["runtimeClassName"] == "nvidia"


@needs_kubectl
@pytest.mark.parametrize("component", ["model-pull", "gpu"])
def test_the_disk_that_a_pod_may_fill_is_its_limit(component: str, tmp_path: Path) -> None:
    pod = manifests.pod(rendered_with(component, tmp_path))
    on_disk = [
        volume["emptyDir"]["sizeLimit"]
        for volume in pod["volumes"]
        if "emptyDir" in volume and volume["emptyDir"].get("medium") != "Memory"
    ]
    total = sum(int(size.removesuffix("Gi")) for size in on_disk)
    for container in [*pod["containers"], *pod.get("initContainers", [])]:
        limit = container["resources"]["limits"]["ephemeral-storage"]
        assert int(limit.removesuffix("Gi")) > total
        assert "ephemeral-storage" in container["resources"]["requests"]


@needs_kubectl
def test_models_can_be_on_a_volume(tmp_path: Path) -> None:
    objects = rendered_with("model-volume", tmp_path)
    mounts = {m["mountPath"]: m for m in manifests.server(objects)["volumeMounts"]}
    assert mounts["/models"]["readOnly"] is True
