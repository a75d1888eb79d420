"""What would hurt a run on this machine: each probe takes facts and says what they mean, with the cure. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Level(StrEnum):
    """How much a finding matters: it hurts a run, it is good to know, or it is as it should be."""

    HURTS = "hurts"
    NOTE = "note"
    FINE = "fine"


@dataclass(frozen=True)
class Finding:
    """What a probe found. `cure` is what to do, empty where nothing need be done."""

    probe: str
    level: Level
    found: str
    cure: str = ""


KERNEL_LEAST: Final = (5, 3)  # the first with pidfd_open
WATCHES_LEAST: Final = 64  # a supervisor takes one; editors and file synchronisers take thousands
INSTANCES_LEAST: Final = 16  # a supervisor takes one
OPEN_FILES_LEAST: Final = 1024  # data loader workers pass tensors as open files
SPACE_LEAST: Final = 1_000_000_000  # bytes, where no snapshot says how large they are
SPACE_LEAST_EVER: Final = 100_000_000  # bytes, for records and the trainer's output
SNAPSHOTS_OF_ROOM: Final = 2  # one that is being written, and one that retention has not removed yet
INODES_LEAST: Final = 1000
CLOCK_SECONDS_MAX: Final = 1.0  # a verdict is remembered of files older than two
FUTURE_SECONDS_MAX: Final = 60.0


def kernel(release: str, has_pidfd: bool) -> Finding:
    """Whether the end of a process can be waited for and a signal cannot miss it."""
    numbers = re.match(r"(\d+)\.(\d+)", release)
    old = numbers is not None and (int(numbers[1]), int(numbers[2])) < KERNEL_LEAST
    if old or not has_pidfd:
        why = f"Linux {release} has no pidfd_open" if old else f"Linux {release} refuses pidfd_open here"
        cure = "take a kernel of 5.3 or newer" if old else "allow the system call in the container's seccomp profile"
        return Finding("kernel", Level.HURTS, f"{why}, by which the end of a trainer is noticed", cure)
    return Finding("kernel", Level.FINE, f"Linux {release} has pidfd")


def inotify(state: str, watches: int | None, instances: int | None) -> Finding:
    """Whether new snapshots are noticed at once. `state` is what a watcher of the directory says of itself."""
    cure = "`sysctl fs.inotify.max_user_watches=524288 fs.inotify.max_user_instances=1024`, in /etc/sysctl.d to last"
    if state != "inotify":
        why = state.removeprefix("polling: ")
        cure = cure if "inotify" in why else "lower checkpoints.rescan_seconds, or use a local disk"
        return Finding("inotify", Level.HURTS, f"new files are found by a rescan only: {why}", cure)
    for name, value, least in (
        ("max_user_watches", watches, WATCHES_LEAST),
        ("max_user_instances", instances, INSTANCES_LEAST),
    ):
        if value is not None and value < least:
            return Finding("inotify", Level.HURTS, f"fs.inotify.{name} is {value}, which others soon use up", cure)
    return Finding("inotify", Level.FINE, "new files are noticed at once")


_DISKS: Final = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs", "jfs"})
_MEMORY: Final = frozenset({"tmpfs", "ramfs", "devtmpfs"})
_NETWORK: Final = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "lustre", "ceph", "afs", "beegfs", "gpfs", "virtiofs"}
)
_SIMPLE: Final = frozenset({"vfat", "msdos", "exfat", "ntfs", "ntfs3", "fuseblk", "hfs", "hfsplus"})
_UNSAFE_OPTIONS: Final = frozenset({"nobarrier", "barrier=0", "volatile", "sync=disabled"})
_LOCAL: Final = "put checkpoints.dir on a local disk with ext4, XFS or Btrfs"


def filesystem(where: str, kind: str, options: str) -> Finding:
    """What the filesystem of the checkpoint directory promises: fsync, rename, events, and that it is there tomorrow."""
    unsafe = sorted(_UNSAFE_OPTIONS & set(options.split(",")))
    if unsafe:
        found = f"{where} is mounted with {unsafe[0]}: what fsync promised may be gone after a power cut"
        return Finding("filesystem", Level.HURTS, found, f"mount it without {unsafe[0]}")
    if kind in _DISKS:
        return Finding("filesystem", Level.FINE, f"{where} is on {kind}")
    if kind in _MEMORY:
        found = f"{where} is on {kind}: it is memory, and every snapshot is gone after a reboot"
        return Finding("filesystem", Level.HURTS, found, _LOCAL)
    if kind == "overlay":
        found = f"{where} is on overlay, a container's own layer: every snapshot is gone with the container"
        return Finding("filesystem", Level.HURTS, found, "mount a volume there")
    if kind in _NETWORK:
        found = (
            f"{where} is on {kind}, over a network: no events for new files, a rename may be told as failed although it "
            "happened, and locks and fsync are as good as the server's"
        )
        return Finding("filesystem", Level.HURTS, found, f"{_LOCAL}, or keep checkpoints.rescan_seconds low")
    if kind in _SIMPLE:
        found = f"{where} is on {kind}: a rename cut short by a power cut may leave neither the old file nor the new"
        return Finding("filesystem", Level.HURTS, found, _LOCAL)
    if kind.partition(".")[0] == "fuse":
        found = f"{where} is on {kind}: whether fsync and rename hold is up to a program, and it may tell of no events"
        return Finding("filesystem", Level.HURTS, found, _LOCAL)
    what = f"on {kind}, of which nothing is known here" if kind else "on a filesystem that cannot be told"
    return Finding("filesystem", Level.NOTE, f"{where} is {what}")


_ACTS: Final[Mapping[str, tuple[str, str]]] = {
    "write": ("no file can be made", "give this user write permission there, or name another folder"),
    "fsync": ("fsync of a file fails, so no save can be known to last", _LOCAL),
    "rename": ("a file cannot be renamed over another, so no save can be published", _LOCAL),
    "fsync-folder": ("fsync of a folder fails, so a rename may be undone by a power cut", _LOCAL),
    "lock": ("locks do not hold, so two supervisors could have it at a time", f"{_LOCAL}, or run one supervisor only"),
}


def acts(where: str, problems: Mapping[str, str]) -> Finding:
    """Whether what a save does works there; `problems` says of each act that failed what the system said."""
    for act, (meaning, cure) in _ACTS.items():
        if act in problems:
            return Finding("saving", Level.HURTS, f"{where}: {meaning} ({problems[act]})", cure)
    return Finding("saving", Level.FINE, f"{where}: write, fsync, rename and lock work")


def reflink(where: str, works: bool | None) -> Finding:
    """Whether a copy of a snapshot costs nothing. Only good to know."""
    if works:
        return Finding("reflink", Level.FINE, f"{where}: copies share their bytes")
    return Finding("reflink", Level.NOTE, f"{where}: no reflink, a copy of a snapshot takes its time and its space")


def space(where: str, free_bytes: int, free_inodes: int | None, snapshot_bytes: int | None) -> Finding:
    """Whether the next saves fit. `free_inodes` is None where nothing limits them, `snapshot_bytes` without one."""
    cure = "make room, or lower checkpoints.keep.last"
    least = SPACE_LEAST if snapshot_bytes is None else max(SPACE_LEAST_EVER, SNAPSHOTS_OF_ROOM * snapshot_bytes)
    free = f"{where}: {free_bytes / 1e9:.1f} GB free"
    if free_bytes < least:
        size = "" if snapshot_bytes is None else f", and the newest snapshot has {snapshot_bytes / 1e9:.1f} GB"
        return Finding("space", Level.HURTS, f"{free}{size}", cure)
    if free_inodes is not None and free_inodes < INODES_LEAST:
        return Finding("space", Level.HURTS, f"{where}: room for {free_inodes} more files", "remove files nobody needs")
    return Finding("space", Level.FINE, free)


def cgroup(unit: str | None, delegated: bool) -> Finding:
    """Whether the trainer gets a control group of its own. Only what hides when its supervisor is killed is missed without."""
    if delegated:
        return Finding("cgroup", Level.FINE, "the trainer gets a control group of its own, and nothing leaves it")
    found = (
        "the trainer gets no control group of its own: if this supervisor is killed, a process of the trainer's that wiped its "
        "environment is not found by the next"
    )
    cure = f"`systemctl edit {unit}`: Delegate=yes" if unit else "run it as a systemd unit with Delegate=yes"
    return Finding("cgroup", Level.NOTE, found, cure)


def oom_kills(counted: bool) -> Finding:
    """Whether the kernel's OOM killer can be told from anybody else who kills. Only good to know."""
    if counted:
        return Finding("oom kills", Level.FINE, "a kill for want of memory is told from another")
    found = "nobody counts OOM kills: a kill for want of memory cannot be told from another"
    return Finding("oom kills", Level.NOTE, found, "run it as a systemd unit with MemoryAccounting=yes")


def name_clash(version: str | None) -> Finding:
    """Whether PyPI's Supervisor, whose package has the name of one of ours, is in this environment."""
    if version is None:
        return Finding("supervisor", Level.FINE, "no other package of that name in this environment")
    found = f"PyPI's supervisor {version} is in this environment, and its files are among ours"
    return Finding("supervisor", Level.HURTS, found, "give each its own environment, and install lastgood anew")


def torch(version: str | None, needed: bool) -> Finding:
    """Whether the bundled trainer can be started by this Python; `needed` says that the run is one of it."""
    if version is not None:
        return Finding("torch", Level.FINE, f"torch {version}")
    found = "torch is not installed for this Python, and the bundled trainer needs it"
    return Finding("torch", Level.HURTS if needed else Level.NOTE, found, "`pip install 'lastgood[trainer]'`")


def clock(offset_seconds: float | None, newest_seconds: float | None) -> Finding:
    """Whether file times agree with the clock: that of a file just written, and by how much the newest snapshot is ahead."""
    if offset_seconds is not None and abs(offset_seconds) > CLOCK_SECONDS_MAX:
        found = f"a file written now is dated {offset_seconds:+.1f} s from this machine's clock"
        return Finding("clock", Level.HURTS, found, "let NTP set the clocks of this machine and the file server")
    if newest_seconds is not None and newest_seconds > FUTURE_SECONDS_MAX:
        found = f"the newest snapshot is dated {newest_seconds:.0f} s in the future"
        return Finding("clock", Level.HURTS, found, "let NTP set the clock, then `touch` the file")
    return Finding("clock", Level.FINE, "file times agree with the clock")


def open_files(soft: int | None) -> Finding:
    """Whether the trainer may open enough files; None is no limit."""
    if soft is not None and soft < OPEN_FILES_LEAST:
        found = f"a process may have {soft} files open; data loader workers need more"
        return Finding("open files", Level.HURTS, found, "`ulimit -n 65536`, or LimitNOFILE=65536 in the unit")
    return Finding("open files", Level.FINE, "no limit" if soft is None else f"a process may have {soft} open")
