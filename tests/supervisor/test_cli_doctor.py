"""`lastgood doctor`: each probe with made-up facts, the facts themselves, and the command."""

import json
import os
import re
import resource
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest

from lastgood.naming import partial_of
from supervisor import probes
from supervisor.adapters import space, surroundings
from supervisor.cli import doctoring
from supervisor.errors import UsageError
from supervisor.probes import Finding, Level
from tests.bench import ROOT, Bench
from tests.cgroups import entering, unified
from tests.conftest import MEMORY
from tests.crash import disks
from tests.crash.conftest import give_up
from tests.supervisor.test_cli_snapshots import bound_by_permissions

HURTS, NOTE, FINE = Level.HURTS, Level.NOTE, Level.FINE
GIGABYTE = 1_000_000_000


def holds(level: Level, words: str, found: Finding) -> None:
    """It is of that level and says those words; what hurts has a cure, and what is fine needs none."""
    assert (level, True) == (found.level, words in f"{found.found}; {found.cure}"), found
    assert (level is FINE) == (found.cure == "") or (level is NOTE)


@pytest.mark.parametrize(
    ("level", "words", "release", "has_pidfd"),
    [
        (FINE, "6.1.0-13-amd64", "6.1.0-13-amd64", True),
        (FINE, "5.3.0", "5.3.0", True),
        (HURTS, "take a kernel of 5.3 or newer", "4.18.0-553.el8", False),
        (HURTS, "take a kernel of 5.3 or newer", "5.2.21", False),
        (HURTS, "seccomp", "6.1.0", False),
        (FINE, "odd", "odd", True),
    ],
)
def test_an_old_kernel_hurts(level: Level, words: str, release: str, has_pidfd: bool) -> None:
    """Numbers are compared as numbers, and a call that is forbidden is told from one that is not there."""
    holds(level, words, probes.kernel(release, has_pidfd))


@pytest.mark.parametrize(
    ("level", "words", "state", "watches", "instances"),
    [
        (FINE, "at once", "inotify", 65536, 128),
        (FINE, "at once", "inotify", None, None),
        (HURTS, "max_user_watches is 10", "inotify", 10, 128),
        (HURTS, "max_user_instances is 2", "inotify", 65536, 2),
        (HURTS, "sysctl", "polling: the limit of inotify watches is reached (fs.inotify.max_user_watches)", 1, 1),
        (HURTS, "rescan_seconds", "polling: nfs delivers no events", 65536, 128),
    ],
)
def test_too_few_watches_hurt(level: Level, words: str, state: str, watches: int | None, instances: int | None) -> None:
    """What a watcher says counts most; limits that others soon use up are told before they are reached."""
    holds(level, words, probes.inotify(state, watches, instances))


@pytest.mark.parametrize(
    ("level", "words", "kind", "options"),
    [
        (FINE, "ext4", "ext4", "rw,relatime"),
        (FINE, "xfs", "xfs", "rw"),
        (HURTS, "mount it without nobarrier", "xfs", "rw,nobarrier"),
        (HURTS, "barrier=0", "ext4", "rw,barrier=0,relatime"),
        (HURTS, "volatile", "overlay", "rw,volatile"),
        (HURTS, "gone after a reboot", "tmpfs", "rw"),
        (HURTS, "gone with the container", "overlay", "rw"),
        (HURTS, "over a network", "nfs4", "rw"),
        (HURTS, "over a network", "virtiofs", "rw"),
        (HURTS, "neither the old file nor the new", "vfat", "rw"),
        (HURTS, "up to a program", "fuse.sshfs", "rw"),
        (NOTE, "of which nothing is known", "hellofs", "rw"),
        (NOTE, "cannot be told", "", ""),
    ],
)
def test_a_filesystem_that_promises_less_hurts(level: Level, words: str, kind: str, options: str) -> None:
    """What it means is said: gone after a reboot, gone with a container, no events, no sure rename."""
    holds(level, words, probes.filesystem("out", kind, options))


@pytest.mark.parametrize(
    ("level", "words", "problems"),
    [
        (FINE, "write, fsync, rename and lock work", {}),
        (HURTS, "write permission", {"write": "Permission denied"}),
        (HURTS, "Invalid argument", {"fsync": "Invalid argument"}),
        (HURTS, "published", {"rename": "Operation not permitted"}),
        (HURTS, "undone by a power cut", {"fsync-folder": "Invalid argument"}),
        (HURTS, "two supervisors", {"lock": "two got it at a time"}),
        (HURTS, "no file can be made", {"lock": "x", "write": "No space left on device"}),
    ],
)
def test_a_folder_where_a_save_cannot_work_hurts(level: Level, words: str, problems: dict[str, str]) -> None:
    """The first act that fails is told, with what the system said."""
    holds(level, words, probes.acts("out", problems))


@pytest.mark.parametrize(
    ("level", "words", "free", "inodes", "snapshot"),
    [
        (FINE, "5.0 GB", 5 * GIGABYTE, 10_000, None),
        (FINE, "0.5 GB", GIGABYTE // 2, None, 1_000_000),
        (HURTS, "0.5 GB free", GIGABYTE // 2, None, None),
        (HURTS, "the newest snapshot has 3.0 GB", 5 * GIGABYTE, None, 3 * GIGABYTE),
        (FINE, "6.0 GB", 6 * GIGABYTE, None, 3 * GIGABYTE),
        (HURTS, "0.1 GB", 99_000_000, None, 10),
        (HURTS, "room for 999 more files", 5 * GIGABYTE, 999, None),
    ],
)
def test_too_little_room_for_two_snapshots_hurts(
    level: Level, words: str, free: int, inodes: int | None, snapshot: int | None
) -> None:
    """Measured by the newest snapshot; without one a gigabyte is little. Files count too, where they are limited."""
    holds(level, words, probes.space("out", free, inodes, snapshot))


@pytest.mark.parametrize(
    ("level", "words", "found"),
    [
        (FINE, "of its own", probes.cgroup("x.service", True)),
        (NOTE, "systemctl edit x.service", probes.cgroup("x.service", False)),
        (NOTE, "Delegate=yes", probes.cgroup(None, False)),
        (FINE, "told from another", probes.oom_kills(True)),
        (NOTE, "MemoryAccounting=yes", probes.oom_kills(False)),
        (FINE, "no other", probes.name_clash(None)),
        (HURTS, "supervisor 4.2.5", probes.name_clash("4.2.5")),
        (FINE, "torch 2.6", probes.torch("2.6", True)),
        (NOTE, "lastgood[trainer]", probes.torch(None, False)),
        (HURTS, "lastgood[trainer]", probes.torch(None, True)),
        (FINE, "agree", probes.clock(0.004, -5.0)),
        (FINE, "agree", probes.clock(None, None)),
        (HURTS, "+3600.0 s", probes.clock(3600.0, None)),
        (HURTS, "-1.5 s", probes.clock(-1.5, None)),
        (HURTS, "90 s in the future", probes.clock(0.0, 90.0)),
        (FINE, "1024", probes.open_files(1024)),
        (FINE, "no limit", probes.open_files(None)),
        (HURTS, "ulimit -n", probes.open_files(1023)),
        (FINE, "share", probes.reflink("out", True)),
        (NOTE, "no reflink", probes.reflink("out", False)),
        (NOTE, "no reflink", probes.reflink("out", None)),
    ],
)
def test_each_other_probe_says_what_its_facts_mean(level: Level, words: str, found: Finding) -> None:
    """Groups, the name clash, torch, the clock, open files and reflinks."""
    holds(level, words, found)


def test_trying_a_folder_leaves_nothing_there(tmp_path: Path) -> None:
    """On an ordinary disk all works, its times agree with the clock, and both files are gone."""
    tried = surroundings.try_folder(str(tmp_path))

    assert ({}, []) == (tried.problems, os.listdir(tmp_path))
    assert tried.offset_seconds is not None
    assert abs(tried.offset_seconds) < 1


def test_what_fails_when_a_folder_is_tried_is_told_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each act by itself: the others are done all the same. No folder at all is told as no writing."""

    def refuse(*_: Any) -> None:
        raise OSError(22, "Invalid argument")

    for act, place in (("fsync", "os.fsync"), ("rename", "os.rename"), ("lock", "fcntl.flock")):
        with monkeypatch.context() as patch:
            patch.setattr(f"supervisor.adapters.surroundings.{place}", refuse)
            tried = surroundings.try_folder(str(tmp_path))
            assert "Invalid argument" == tried.problems[act]
    with monkeypatch.context() as patch:
        patch.setattr("supervisor.adapters.surroundings.fcntl.flock", lambda *_: None)
        assert {"lock": "two got it at a time"} == surroundings.try_folder(str(tmp_path)).problems

    assert [] == os.listdir(tmp_path)
    assert {"write": "No such file or directory"} == surroundings.try_folder(str(tmp_path / "nowhere")).problems


def test_files_of_a_probe_that_was_killed_are_known_as_partials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed in the middle, it leaves what every sweep takes away and no reader takes for a snapshot."""
    monkeypatch.setattr("supervisor.adapters.surroundings.os.unlink", lambda _: None)
    surroundings.try_folder(str(tmp_path))

    assert ["doctor-2"] == [partial_of(name) for name in os.listdir(tmp_path)]


def test_facts_of_this_machine_are_as_other_tools_tell_them(tmp_path: Path) -> None:
    """Mounts, room, limits and versions."""
    assert "proc" == surroundings.mount_of("/proc/self")[0]
    assert surroundings.mount_of(str(tmp_path))[0] != ""
    assert shutil.disk_usage(tmp_path).free == pytest.approx(space.room(str(tmp_path))[0], rel=0.1)
    assert surroundings.has_pidfd()
    assert surroundings.version_of("lastgood") is not None
    assert surroundings.version_of("no-such-distribution") is None
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert (None if soft == resource.RLIM_INFINITY else soft) == surroundings.open_files_limit()
    (tmp_path / "max_user_watches").write_text("8192\n")
    (tmp_path / "max_user_instances").write_text("many\n")
    limits = [surroundings.inotify_limit(f"max_user_{one}", str(tmp_path)) for one in ("watches", "instances", "x")]
    assert [8192, None, None] == limits


def test_doctor_prints_one_line_a_probe_and_says_by_its_status_whether_something_hurts(bench: Bench) -> None:
    """A machine's memory as a checkpoint directory hurts: status 1, the cure in the line. The JSON says the same."""
    if not os.access(MEMORY, os.W_OK):
        pytest.fail(f"{MEMORY} is needed")
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        text, plain = bench.lastgood("doctor", folder), bench.lastgood("doctor", folder, "--json")
        assert [] == os.listdir(folder)
    found = json.loads(plain.stdout)

    assert (1, 1, "") == (text.returncode, plain.returncode, text.stderr)
    assert [(one["level"], one["probe"].split()[0]) for one in found] == [
        tuple(line.split()[:2]) for line in text.stdout.splitlines()
    ]
    memory = next(one for one in found if one["probe"] == "filesystem")
    assert ("hurts", True, True) == (memory["level"], "reboot" in memory["found"], "local disk" in memory["cure"])


def test_the_status_is_0_when_nothing_hurts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Notes do no harm."""
    for found, status in (([NOTE, FINE], 0), ([NOTE, HURTS], 1), ([], 0)):
        findings = [Finding("kernel", level, "x") for level in found]
        monkeypatch.setattr(doctoring, "findings_about", lambda _, findings=findings: iter(findings))
        with pytest.raises(SystemExit) as ended:
            doctoring.doctor(None, as_json=True)
        assert status == ended.value.code


def test_a_low_limit_of_open_files_is_found(bench: Bench) -> None:
    """What `ulimit -n 256` leaves to a trainer is told."""
    done = bench.lastgood("doctor", "--json", preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256)))

    assert 1 == done.returncode
    assert [("hurts", "a process may have 256 files open; data loader workers need more")] == [
        (one["level"], one["found"]) for one in json.loads(done.stdout) if one["probe"] == "open files"
    ]


def test_a_folder_that_may_not_be_written_hurts(bench: Bench) -> None:
    """Said before the first save finds out."""
    folder = bench.folder / "closed"
    folder.mkdir(0o555)
    done = bench.lastgood("doctor", "closed", "--json", preexec_fn=bound_by_permissions)

    assert 1 == done.returncode
    assert [("hurts", "closed: no file can be made (Permission denied)")] == [
        (one["level"], one["found"]) for one in json.loads(done.stdout) if one["probe"] == "saving"
    ]


def test_a_config_of_the_bundled_trainer_needs_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With CONFIG it hurts that torch is not there, without it is a note; its directory need not exist yet."""
    monkeypatch.setattr("supervisor.adapters.surroundings.version_of", lambda name: None)
    config = tmp_path / "run.yaml"
    levels = {}
    for name, command in (("bundled", "[python, -m, trainer, x.yaml]"), ("other", "[python, x.py]")):
        config.write_text(f"trainer: {{command: {command}, resume: env}}\ncheckpoints: {{dir: {tmp_path}/new/deep}}\n")
        levels[name] = {one.probe: one.level for one in doctoring.findings_about(str(config))}["torch"]

    assert {"bundled": HURTS, "other": NOTE} == levels
    assert not (tmp_path / "new").exists()


def probed(bench: Bench, probe: str, place: Path | None = None, **more: Any) -> list[tuple[str, str]]:
    """Level and finding of one probe, as the command tells them of the bench's folder or of another place."""
    done = bench.lastgood("doctor", str(place or bench.folder), "--json", **more)
    return [(one["level"], one["found"]) for one in json.loads(done.stdout) if one["probe"] == probe]


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("kind", "level", "told"),
    [
        ("xfs", FINE, "copies share their bytes"),
        ("ext4", NOTE, "no reflink, a copy of a snapshot takes its time and its space"),
    ],
)
def test_whether_copies_share_their_bytes_is_found_by_doing_it(
    kind: str, level: Level, told: str, bench: Bench
) -> None:
    """XFS clones a file, ext4 refuses to."""
    if reason := disks.why_not(kind):
        give_up(reason)
    image = disks.make_image(bench.folder / "image", kind)
    with disks.loop_device(image) as device, disks.mounted(device, kind, bench.folder / kind) as at:
        assert [(level, f"{at}: {told}")] == probed(bench, "reflink", place=at)


@pytest.mark.parametrize(
    ("delegated", "level", "told"),
    [(True, FINE, "gets a control group of its own"), (False, NOTE, "gets no control group of its own")],
)
def test_whether_a_trainer_gets_a_group_is_found_where_the_command_runs(
    delegated: bool, level: Level, told: str, bench: Bench
) -> None:
    """In a real group: with systemd's mark of delegation, and without."""
    with unified("doctor", delegated) as group:
        ((found_level, found),) = probed(bench, "cgroup", preexec_fn=entering(group))

    assert (level, True) == (found_level, told in found), found


def test_pypis_supervisor_in_the_environment_is_found(bench: Bench) -> None:
    """By what its installation leaves; it would have written over files of ours."""
    metadata = bench.folder / "site" / "supervisor-4.2.5.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text("Metadata-Version: 2.1\nName: supervisor\nVersion: 4.2.5\n")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join((str(bench.folder / "site"), str(ROOT)))}

    assert [("hurts", "PyPI's supervisor 4.2.5 is in this environment, and its files are among ours")] == probed(
        bench, "supervisor", env=env
    )


def test_nothing_there_is_a_usage_error(tmp_path: Path) -> None:
    """One line that names it."""
    with pytest.raises(UsageError, match=re.escape("doctor: nowhere: there is no such file or folder")):
        list(doctoring.findings_about("nowhere"))
