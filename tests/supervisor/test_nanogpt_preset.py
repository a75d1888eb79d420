"""The preset nanogpt: its words, its settings, and the file that is in place when a trainer starts."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lastgood.hashing import file_sha256
from lastgood.verdict import Kind
from supervisor import configuration, launch
from supervisor.adapters import shelf as shelf_adapter
from supervisor.adapters.verifier import Verifier
from supervisor.core import events as e
from supervisor.core.events import RungFact
from supervisor.core.state import Resume
from supervisor.directory_side import DirectorySide
from supervisor.errors import UsageError
from supervisor.mailbox import Mailbox
from supervisor.records import CATALOGUE
from supervisor.settings import Settings, inert
from supervisor.shelved import scan_shelf, shelved_name
from tests.adapters.test_shelf import NAME, save
from tests.bench import ROOT, until
from tests.conftest import flip_bit

RESUMED = RungFact(NAME, 10)


def chosen(*command: str, **more: Any) -> Settings:
    words = list(command) or ["python", "train.py"]
    return Settings.model_validate(
        {"trainer": {"command": words, "preset": "nanogpt"}, "checkpoints": {"dir": "/d/out", **more}}
    )


# Its words.


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["config/train_gpt2.py"],
        ["--init_from=scratch"],
        ["--init_from=gpt2-xl", "config/finetune_shakespeare.py", "--compile=False"],
        ["--init_from=resume"],
    ],
)
def test_a_start_with_something_to_resume_says_so_last(words: list[str]) -> None:
    """Whatever the words or a config file among them say, nanoGPT takes the last; a first start is as the person wrote it."""
    settings = chosen("torchrun", "--nproc_per_node=8", "train.py", *words)
    kept = [word for word in words if "init_from" not in word]
    head = ["torchrun", "--nproc_per_node=8", "train.py"]

    assert [*head, *words, "--out_dir=/d/out"] == launch.arguments(settings, "/d/out", None)
    assert [*head, *kept, "--out_dir=/d/out", "--init_from=resume"] == launch.arguments(settings, "/d/out", RESUMED)


def test_where_it_saves_is_where_the_supervisor_looks(tmp_path: Path) -> None:
    """Another out_dir than the checkpoint directory is refused; the same one in other words is not."""

    def checked(word: str, directory: str = "out", cwd: str = ".") -> None:
        tree = {
            "trainer": {"command": ["python", "train.py", word], "preset": "nanogpt", "cwd": cwd},
            "checkpoints": {"dir": directory},
        }
        launch.check_arguments(Settings.model_validate(tree), "x.yaml")

    for word in ("--out_dir=out", "--out_dir=./out/", f"--out_dir={os.path.abspath('out')}", "--eval_only=True"):
        checked(word)
    checked("--out_dir=out", str(tmp_path / "out"), cwd=str(tmp_path))
    with pytest.raises(
        UsageError, match=r"x.yaml: trainer.command: --out_dir=out-2 is not .*'out'; leave --out_dir out"
    ):
        checked("--out_dir=out-2")
    with pytest.raises(UsageError, match="has a `=`"):
        checked("--eval_only=True", "out/lr=0.1")


# Its settings.


def test_it_finds_its_file_itself_and_nothing_of_it_is_pruned() -> None:
    """Bad ones must be out of its sight; retention is about the shelf, and the way of its steps is known."""
    settings = chosen()
    policy = settings.policy()

    assert (Resume.SELF, None, 1) == (policy.resume, policy.keep, policy.low_steps_max)
    assert not settings.prunes
    assert [] == inert(chosen(shelf=5))
    assert (3, 0) == (settings.shelf_keep.last, settings.shelf_keep.every)
    assert 5 == chosen(shelf=5).shelf_keep.last
    keep = chosen(keep={"last": 4, "every": 100})
    assert ((4, 100), None) == ((keep.shelf_keep.last, keep.shelf_keep.every), keep.policy().keep)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("trainer.resume=env", "trainer.resume: with the preset nanogpt the newest good ckpt.pt is put in place"),
        (
            "checkpoints.pattern='ckpt_{step}.pt'",
            "checkpoints.pattern: with the preset nanogpt the snapshot is ckpt.pt",
        ),
        ("checkpoints.shelf=1", "checkpoints.shelf"),
    ],
)
def test_what_does_not_fit_is_refused(setting: str, said: str) -> None:
    """In one line, with the cure."""
    base = {"trainer": {"command": ["python", "train.py"], "preset": "nanogpt"}, "checkpoints": {"dir": "out"}}
    with pytest.raises(UsageError, match=said):
        configuration.load(None, [setting], base)


def test_the_example_is_accepted() -> None:
    """It loads, and nothing in it is inert."""
    found = configuration.load(str(ROOT / "config" / "examples" / "nanogpt.yaml"), [])
    assert ("nanogpt", []) == (found.preset_name, inert(found))


# What is in place when a trainer starts.


class Room:
    """A directory with a supervisor's side of it, without a loop."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.shelf = directory / ".lastgood" / "shelf"
        self.said: list[tuple[str, dict[str, Any]]] = []
        self.told: list[e.Event] = []
        self.mailbox = Mailbox()
        self.side = self._begin()

    def _begin(self) -> DirectorySide:
        verifier = Verifier(str(self.directory), r"ckpt\.pt", 0.0, {}, has_shelf=True)
        made = chosen()
        return DirectorySide(made, str(self.directory), verifier, self.mailbox, self.told.append, self._say)

    def _say(self, event: str, fields: dict[str, Any]) -> None:
        assert CATALOGUE[event].fields.keys() == fields.keys(), event
        self.said.append((event, fields))

    def select(self, above: int | None = None) -> e.LadderJudged | e.LadderUnreadable:
        """What is told when no trainer lives."""
        self.told.clear()
        self.side.judge_ladder(frozenset(), above)
        until(lambda: self.told)
        self.mailbox.run_all(lambda: True)
        (event,) = self.told
        assert isinstance(event, e.LadderJudged | e.LadderUnreadable)
        return event

    def names(self, above: int | None = None) -> list[tuple[str, int | None]]:
        """Names and steps of what is told."""
        told = self.select(above)
        assert isinstance(told, e.LadderJudged)
        return [(rung.name, rung.step) for rung in told.rungs]

    def events(self) -> list[str]:
        """The names of the records, each once told, when all that was ordered is done."""
        self.settle()
        said, self.said = [event for event, _ in self.said], []
        return said

    def settle(self) -> None:
        """Wait until all that was ordered is done."""
        done: list[bool] = []
        self.side.after(lambda: done.append(True))
        until(lambda: done)
        self.mailbox.run_all(lambda: True)

    def saves(self, *steps: int) -> None:
        """Saves that were each seen while nothing ran."""
        for step in steps:
            save(self.directory, step, float(step))
            self.select()
        self.said.clear()


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Room]:
    made = Room(tmp_path)
    yield made
    made.side.close()
    made.mailbox.close()


def test_an_earlier_save_is_kept_before_a_trainer_may_overwrite_it(room: Room) -> None:
    """A directory that nanoGPT has used alone is adopted, its file copied first; once is enough."""
    save(room.directory, 10)
    assert [(NAME, 10)] == room.names()
    assert ["snapshot.shelved"] == room.events()
    assert file_sha256(room.directory / NAME) == file_sha256(room.directory / shelved_name(10))

    assert [(NAME, 10)] == room.names()
    assert [] == room.events()


def test_a_torn_file_stays_for_the_core_to_set_aside_and_then_the_copy_is_put_in_place(room: Room) -> None:
    """First it is told as the newest, so that the fallback is recorded; only once it is out of the way a copy takes its place."""
    room.saves(10, 20)
    digest = file_sha256(room.directory / NAME)
    save(room.directory, 30)
    os.truncate(room.directory / NAME, 1000)
    torn = room.select()
    assert isinstance(torn, e.LadderJudged)
    assert [(NAME, Kind.TRUNCATED), (shelved_name(20), Kind.HEALTHY)] == [
        (rung.name, rung.verdict and rung.verdict.kind) for rung in torn.rungs[:2]
    ]
    assert [] == room.events()

    room.side.set_aside(torn.rungs[0], "truncated: for a test")
    assert ["snapshot.quarantined"] == room.events()
    assert [(NAME, 20), (shelved_name(10), 10)] == room.names()
    assert ["snapshot.unshelved"] == room.events()
    assert digest == file_sha256(room.directory / NAME)


def test_a_file_that_is_gone_comes_back_from_the_shelf(room: Room) -> None:
    """As after a supervisor that was killed between setting aside and putting back."""
    room.saves(10, 20)
    (room.directory / NAME).unlink()
    assert [(NAME, 20), (shelved_name(10), 10)] == room.names()


def test_an_older_file_in_place_makes_way_for_a_newer_copy(room: Room) -> None:
    """It is set aside with the reason, since it is nobody's only copy that may be overwritten."""
    room.saves(10, 20)
    save(room.directory, 5)
    assert [(NAME, 20), (shelved_name(10), 10)] == room.names()
    assert ["snapshot.quarantined", "snapshot.unshelved"] == room.events()
    (aside,) = (room.directory / ".lastgood" / "quarantine").glob("*/ckpt.pt")
    assert "at step 5, and the shelf has step 20" in (aside.parent / "reason.json").read_text()


def test_without_room_the_disk_is_waited_for(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy that cannot be put in place is no reason to start over: it is told as a directory that cannot be used now."""
    room.saves(10)
    (room.directory / NAME).unlink()
    with monkeypatch.context() as patch:
        patch.setattr(shelf_adapter, "_free_bytes", lambda _: 1000)
        told = room.select()
        assert isinstance(told, e.LadderUnreadable)
        assert "ckpt_00000010.pt cannot be put in place: No space left on device" in told.reason
    assert [(NAME, 10)] == room.names()


def test_a_copy_that_cannot_be_kept_is_said(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run goes on all the same, with what is in place."""
    save(room.directory, 10)
    monkeypatch.setattr(shelf_adapter, "_free_bytes", lambda _: 1000)
    assert [(NAME, 10)] == room.names()
    ((event, fields),) = room.said
    assert ("snapshot.shelve_failed", NAME, 10) == (event, fields["name"], fields["step"])
    assert "bytes are needed and 1,000 are free" in fields["reason"]


def test_a_snapshot_that_is_blamed_leaves_with_its_copy_and_comes_back_to_the_shelf(room: Room) -> None:
    """Else the same bytes would be put in place again; acquitted, they are the newest there are."""
    room.saves(10, 20)
    blamed = room.select()
    assert isinstance(blamed, e.LadderJudged)
    room.side.set_aside(blamed.rungs[0], "suspected: for a test")
    assert ["snapshot.quarantined"] * 2 == room.events()
    assert [(NAME, 10)] == room.names()

    room.events()
    room.side.put_back(NAME, 20)
    room.settle()
    assert [("snapshot.put_back", {"name": shelved_name(20), "step": 20})] == room.said
    assert [(NAME, 20), (shelved_name(10), 10)] == room.names()


def test_after_a_divergence_no_later_step_is_put_in_place(room: Room) -> None:
    """Copies of steps whose loss was not finite are judged and told, and an older one is put in place."""
    room.saves(10, 20, 30)
    (room.directory / NAME).unlink()
    assert [(shelved_name(30), 30), (shelved_name(20), 20), (NAME, 10)] == room.names(above=15)


def test_a_rotten_copy_leaves_the_shelf_like_any_bad_snapshot(room: Room) -> None:
    """With its seal, and the reason beside it."""
    room.saves(10, 20)
    (room.directory / NAME).unlink()
    flip_bit(room.directory / shelved_name(20), 2000)
    told = room.select()
    assert isinstance(told, e.LadderJudged)
    assert [(shelved_name(20), 20), (NAME, 10)] == [(rung.name, rung.step) for rung in told.rungs]

    room.events()
    room.side.set_aside(told.rungs[0], "corrupt: for a test")
    room.settle()
    assert [10] == [rung.step for rung in scan_shelf(str(room.directory))]
    (aside,) = (room.directory / ".lastgood" / "quarantine").glob("*/ckpt_00000020.pt")
    assert {"ckpt_00000020.pt", "ckpt_00000020.pt.sha256", "reason.json"} == set(os.listdir(aside.parent))
