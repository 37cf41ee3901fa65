"""The commands of docs/deploy.md do what the page says."""

import re
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.deploy import manifests
from tests.deploy.manifests import DEPLOY, KUBERNETES, OVERLAYS, ROOT, needs_kubectl
from tests.deploy.rehearsal import balancing, haproxy
from tests.documentation import blocks, section

PAGE = (ROOT / "docs" / "deploy.md").read_text()


def command(heading: str, language: str, begin: str) -> str:
    """The only command of a section that begins so, with the lines that continue it."""
    text = "\n".join(blocks(section(PAGE, heading), language)).replace("\\\n", " ")
    (found,) = [line for line in text.splitlines() if line.startswith(begin)]
    return found


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A folder with the manifests where the page expects them."""
    shutil.copytree(KUBERNETES, tmp_path / "deploy" / "kubernetes")
    return tmp_path


@needs_kubectl
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_copied_overlay_gets_the_image_that_was_pushed(overlay: str, repository: Path) -> None:
    built = command("Kubernetes", "sh", "docker build")
    for begin in ("cp -r ", "sed -i "):
        line = command("Kubernetes", "sh", begin).replace("overlays/cpu", f"overlays/{overlay}")
        subprocess.run(line, shell=True, cwd=repository, check=True)
    objects = manifests.render(repository / "deploy" / "kubernetes" / "overlays" / "mine")
    image = manifests.server(objects)["image"]
    assert f"docker push {image}" in built
    assert f"-t {image} " in built


@needs_kubectl
def test_a_copy_can_have_settings_and_a_number_of_pods_of_its_own(repository: Path) -> None:
    mine = repository / "deploy" / "kubernetes" / "overlays" / "mine"
    shutil.copytree(mine.with_name("cpu"), mine)
    (mine / "specgate.yaml").write_text("spec_method: ngram\n")
    kustomization = mine / "kustomization.yaml"
    text = kustomization.read_text().replace("  - ../../components/autoscaling\n", "")
    generator = (mine.with_name("gpu") / "kustomization.yaml").read_text()
    generator = generator[generator.index("configMapGenerator:") :].split("  # ")[0]
    (replicas,) = re.findall(r"`(replicas: [^`]*)`", PAGE)
    kustomization.write_text(f"{text}\n{replicas}\n{generator}")
    objects = manifests.render(mine)
    assert manifests.settings_text(objects) == "spec_method: ngram\n"
    assert f"count: {manifests.one(objects, 'Deployment')['spec']['replicas']}}}" in replicas


def test_versions_without_containers_are_those_of_the_image() -> None:
    awk = command("One GPU host", "bash", "awk -F == ").partition(" > ")[0]
    image = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ")
    assert " ".join(awk.split()) in " ".join(image.split())


class Ready(BaseHTTPRequestHandler):
    """A server that is ready at once."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def ready_server(port: int = 0) -> Iterator[int]:
    """Serves `Ready` while the block runs; gives its port."""
    with ThreadingHTTPServer(("127.0.0.1", port), Ready) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.skipif(haproxy() is None, reason="haproxy is missing: apt install haproxy")
def test_the_page_waits_until_haproxy_has_seen_the_new_process(tmp_path: Path) -> None:
    (pattern,) = re.findall(r"grep -q '([^']*)'", PAGE)

    def status() -> str:
        with suppress(OSError):  # haproxy has no socket yet
            return balancer.figures()["one"]["status"]
        return ""

    def passes() -> bool:
        return bool(re.search(pattern, balancer.command("show stat"), re.MULTILINE))

    def wait(expected: str) -> None:
        deadline = time.monotonic() + 60
        while status() != expected:
            assert time.monotonic() < deadline, f"{status()} is not {expected}"
            time.sleep(0.05)

    with ready_server() as two, ExitStack() as old:
        one = old.enter_context(ready_server())
        addresses = {"one": f"127.0.0.1:{one}", "two": f"127.0.0.1:{two}"}
        with balancing(addresses, tmp_path) as balancer:
            wait("UP")
            assert passes()
            balancer.command("set server specgate/one state drain")
            assert not passes()
            old.close()
            wait("DOWN")
            balancer.command("set server specgate/one state ready")
            assert not passes()
            with ready_server(one):
                wait("UP")
                assert passes()
