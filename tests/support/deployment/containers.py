"""The project's images, built and run by Podman with runc on a base of Debian's packages.

The base has Debian's Python and a pip that can be uninstalled, as the one that images/Dockerfile
names. Everything lies in one folder; images, containers and networks of the machine are not seen.
"""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from support.commands import ROOT, ran

BASE = "localhost/python"
VERSION = "0.1.0"
PACKAGES = {"mmdebstrap": "mmdebstrap", "podman": "podman netavark aardvark-dns", "runc": "runc"}
"""Tools, each with Debian's packages that bring it."""
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
_UNUSED = ("doc", "man", "locale")
_LIMITS = '["nofile=1024:1024", "nproc=4096:4096"]'
"""Limits that a machine which is itself a guest may set; those of Podman are a million."""
_PIP = """
rm -f "$1"/usr/lib/python3*/EXTERNALLY-MANAGED
chroot "$1" sh -ec 'cd /usr/share/python-wheels
    PYTHONPATH=$(echo pip-*.whl) python3 -m pip --isolated install --no-index pip-*.whl'
"""


def lack() -> str | None:
    """Return why images can't be built and run here; None where they can."""
    missing = [packages for tool, packages in PACKAGES.items() if shutil.which(tool) is None]
    if missing:
        return f"apt-get install --no-install-recommends {' '.join(missing)}"
    return "containers of these tests are made by root" if os.geteuid() else None


class Podman:
    """An engine with a folder of its own. Use it as a context: what it made is gone then."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "bin").mkdir()
        (folder / "bin" / "docker").symlink_to(str(shutil.which("podman")))
        (folder / "containers.conf").write_text(
            f"[containers]\ndefault_ulimits = {_LIMITS}\nlog_driver = 'k8s-file'\n"
            "[engine]\nruntime = 'runc'\ncgroup_manager = 'cgroupfs'\nevents_logger = 'file'\n"
            f"[network]\nnetwork_backend = 'netavark'\nnetwork_config_dir = '{folder}/networks'\n"
        )
        (folder / "storage.conf").write_text(
            f"[storage]\ndriver = 'overlay'\ngraphroot = '{folder}/root'\n"
            f"runroot = '{folder}/runroot'\n"
        )

    @property
    def variables(self) -> dict[str, str]:
        """Return the variables by which `docker` and `podman` are this engine."""
        return {
            **os.environ,
            "PATH": f"{self.folder}/bin:{os.environ['PATH']}",
            "CONTAINERS_CONF": str(self.folder / "containers.conf"),
            "CONTAINERS_STORAGE_CONF": str(self.folder / "storage.conf"),
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for words in (("rm", "--all", "--time", 0), ("network", "prune")):
            self(*words, "--force")
        ran("umount", "--recursive", self.folder / "root" / "overlay")  # podman leaves it mounted
        shutil.rmtree(self.folder)

    def __call__(self, *words: object, is_refused: bool = False) -> str:
        """Run a command that succeeds, or is refused; return what it wrote."""
        done = ran("podman", *words, env=self.variables)
        assert bool(done.returncode) == is_refused, f"{words}\n{done.stdout}{done.stderr}"
        return done.stdout + (done.stderr if is_refused else "")

    def build(self, targets: Sequence[str]) -> None:
        """Build images for CPUs on a base that is made first; wheels come from pip's index."""
        base, pip = self.folder / "base.tar", self.folder / "pip.conf"
        excluded = [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in _UNUSED]
        done = ran(
            *("mmdebstrap", "--variant=minbase", *excluded),
            "--dpkgopt=path-include=/usr/share/doc/*/copyright",
            "--include=usr-is-merged,python3,python3-venv,ca-certificates",
            "--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr",
            *(f"--customize-hook={_PIP}", "bookworm", base),
        )
        assert done.returncode == 0, done.stderr
        self("import", base, BASE)
        pip.write_text(f"[global]\ncert = {CERTIFICATES}\n")
        for target in targets:
            self(
                *("build", "--isolation", "chroot", "--network", "host"),
                *("--file", ROOT / "images" / "Dockerfile", "--target", target),
                *("--tag", self.image(target), "--secret", f"id=pip,src={pip}"),
                *("--volume", f"{CERTIFICATES}:{CERTIFICATES}:ro"),
                *("--build-arg", f"PYTHON_IMAGE={BASE}", "--build-arg", "DEVICE=cpu", ROOT),
            )

    def image(self, target: str) -> str:
        """Return the name of the image of a target."""
        return f"slipstream/{target}:{VERSION}"

    def address(self, container: str) -> str:
        """Return the address of a container in the network of the page."""
        return self(
            "inspect", "--format", "{{.NetworkSettings.Networks.slipstream.IPAddress}}", container
        ).strip()
