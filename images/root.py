"""Copies what an interpreter needs of a Debian image into a root of its own.

`python3 root.py ROOT` runs in that image. The root has the interpreter, Python's modules with their
bytecode, the shared libraries of both and of wheels, certificates, time zones, and BusyBox for a
shell. Entries and licenses of Debian's packages that these are from lie where scanners look.
"""

import compileall
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path
from py_compile import PycInvalidationMode

UNUSED = """
*-packages __pycache__ _ctypes_test* _dbm* _sqlite3* _test* _tkinter* _xxtestfuzz* config-*
distutils ensurepip idlelib lib2to3 nis* ossaudiodev* pydoc_data right sqlite3 test tests tkinter
turtle* venv xxlimited*
"""
"""Names of what no image needs: parts of Python, pip, time zones with leap seconds."""
WHEELS = ("libstdc++.so.6", "libgcc_s.so.1", "libdl.so.2", "libpthread.so.0", "librt.so.1")
"""Shared libraries that wheels expect of every Linux, beside those of the interpreter."""
FILES = """
/bin /lib /lib64 /sbin /bin/busybox
/etc/debian_version /etc/group /etc/host.conf /etc/ld.so.conf /etc/ld.so.conf.d /etc/localtime
/etc/nsswitch.conf /etc/os-release /etc/passwd /etc/ssl/certs/ca-certificates.crt
/etc/ssl/openssl.cnf /usr/lib/os-release /usr/lib/ssl /usr/share/zoneinfo
"""
"""Links of the root, a shell, names of users and hosts, certificates, time zones."""


def output(*command: object) -> str:
    """Return what a command writes, whether it succeeds or not."""
    words = [str(word) for word in command]
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout


def chain(path: Path) -> Iterator[Path]:
    """A path, and each that it is a link to."""
    yield path
    while path.is_symlink():
        path = path.parent / path.readlink()
        yield path


def libraries(binaries: Iterable[Path]) -> set[Path]:
    """Return the shared libraries that binaries load, what loads them, and those of wheels."""
    known = re.findall(r"=> (\S+)", output("ldconfig", "--print-cache"))
    expected = [name for name in known if Path(name).name in WHEELS]
    said = output("ldd", *binaries, *expected)
    return {*map(Path, expected), *map(Path, re.findall(r"(/\S+) \(0x", said))}


def copy(path: Path, root: Path) -> None:
    """Copy a file, a link as a link, or a folder without what is unused."""
    goal = root / path.parent.resolve().relative_to("/") / path.name
    goal.parent.mkdir(parents=True, exist_ok=True)
    if path.is_symlink() or path.is_file():
        shutil.copy2(path, goal, follow_symlinks=False)
    elif path.exists():
        ignored = shutil.ignore_patterns(*UNUSED.split())
        shutil.copytree(path, goal, symlinks=True, ignore=ignored)


def record(root: Path) -> None:
    """Write entries and licenses of the packages that the files of a root are from."""
    found = [f"/{path.relative_to(root)}" for path in root.rglob("*") if not path.is_dir()]
    names = [*found, *(name.removeprefix("/usr") for name in found)]
    said = output("dpkg-query", "--search", *names)
    entries = root / "var" / "lib" / "dpkg" / "status.d"
    entries.mkdir(parents=True)
    for owner in {*re.findall(r"^([^\s:]+)(?::\w+)?: /", said, re.MULTILINE)}:
        (entries / owner).write_text(output("dpkg-query", "--status", owner))
        copy(Path("/usr/share/doc", owner, "copyright"), root)


def main() -> None:
    root, modules = Path(sys.argv[1]), Path(sysconfig.get_path("stdlib"))
    command, copied = [*chain(Path(sys.executable))], root / modules.relative_to("/")
    for path in (*map(Path, FILES.split()), *command, modules):
        copy(path, root)
    needed = libraries([command[-1], *copied.rglob("*.so")])
    for path in {link for library in needed for link in chain(library)}:
        copy(path, root)
    record(root)
    for applet in {*output("busybox", "--list").split()} - {"busybox"}:
        (root / "usr" / "bin" / applet).symlink_to("busybox")
    by_hash = PycInvalidationMode.UNCHECKED_HASH
    compileall.compile_dir(
        copied, quiet=1, stripdir=root, prependdir="/", invalidation_mode=by_hash
    )
    subprocess.run(["ldconfig", "-r", root], check=True)
    for name in ("proc", "root", "run", "tmp"):
        (root / name).mkdir(mode=0o755)
    (root / "tmp").chmod(0o1777)


if __name__ == "__main__":
    main()
