"""A config file that was changed while its run goes on: which keys hold at once, which later, and which not before a restart."""

import threading
from typing import Any

import pytest

from supervisor.mailbox import Mailbox
from supervisor.reloading import AT_NEXT_START, AT_ONCE, ReloadSide, compare
from supervisor.settings import Settings
from tests.bench import until


def made(**sections: Any) -> Settings:
    """Settings of a trainer of one's own; a section given is laid over what it has here."""
    tree: dict[str, Any] = {
        "trainer": {"command": ["python", "train.py"], "resume": "--from={snapshot}"},
        "checkpoints": {"dir": "out"},
    }
    for name, section in sections.items():
        tree[name] = {**tree.get(name, {}), **section} if isinstance(section, dict) else section
    return Settings.model_validate(tree)


OLD = made()


@pytest.mark.parametrize(
    ("sections", "key"),
    [
        ({"restarts": {"without_progress": 9}}, "restarts.without_progress"),
        ({"stall": {"running_seconds": 9.0}}, "stall.running_seconds"),
        ({"divergence": {"rollbacks": 9}}, "divergence.rollbacks"),
        ({"trainer": {"grace_seconds": 9.0}}, "trainer.grace_seconds"),
        ({"run": {"final_step": 9}}, "run.final_step"),
        ({"notify": ["true"]}, "notify"),
        ({"log": {"level": "error"}}, "log.level"),
    ],
)
def test_what_is_looked_up_at_each_decision_holds_at_once(sections: dict[str, Any], key: str) -> None:
    """The new value is in the settings that hold from now on, and so in the policy."""
    new = made(**sections)
    found = compare(OLD, new)

    assert ((key,), (), ()) == (found.changed, found.at_next_start, found.needs_restart)
    assert (new, new.policy()) == (found.settings, found.settings.policy())


@pytest.mark.parametrize(
    ("trainer", "key"),
    [
        ({"command": ["python", "other.py"]}, "trainer.command"),
        ({"resume": "--resume={snapshot}"}, "trainer.resume"),
        ({"cwd": "/"}, "trainer.cwd"),
        ({"env": {"A": "1"}}, "trainer.env"),
    ],
)
def test_what_is_looked_up_at_a_start_holds_from_the_next_one(trainer: dict[str, Any], key: str) -> None:
    """The trainer that runs is left alone."""
    found = compare(OLD, made(trainer=trainer))

    assert ((), (key,), ()) == (found.changed, found.at_next_start, found.needs_restart)
    assert made(trainer=trainer) == found.settings


@pytest.mark.parametrize(
    ("sections", "keys"),
    [
        ({"checkpoints": {"dir": "elsewhere"}}, ("checkpoints.dir",)),
        ({"checkpoints": {"pattern": "step_{step}.pt"}}, ("checkpoints.pattern",)),
        ({"run": {"name": "other"}}, ("run.name",)),
        ({"log": {"format": "json"}}, ("log.format",)),
        ({"checkpoints": {"keep": {"last": 2}}}, ("checkpoints.keep",)),
        ({"trainer": {"env": {"CUDA_VISIBLE_DEVICES": "1"}}}, ("trainer.env",)),
        ({"trainer": {"resume": "self"}}, ("trainer.resume",)),
        (
            {"trainer": {"command": ["python", "-m", "trainer"], "resume": "env", "env": {"A": "1"}}},
            ("trainer.command", "trainer.resume", "trainer.env"),
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_what_the_supervisor_was_built_on_needs_a_restart(sections: dict[str, Any], keys: tuple[str, ...]) -> None:
    """The directory, who prunes it, the kind of trainer: nothing of such a change is taken over, and each key is named."""
    found = compare(OLD, made(**sections))

    assert ((), (), keys) == (found.changed, found.at_next_start, found.needs_restart)
    assert OLD == found.settings


def test_retention_holds_at_once_where_this_supervisor_prunes() -> None:
    """Another number of snapshots kept, for a trainer that does not rotate its own before or after."""
    keeping, fewer = made(checkpoints={"keep": {"last": 5}}), made(checkpoints={"keep": {"last": 2}})

    assert (("checkpoints.keep",), fewer) == (compare(keeping, fewer).changed, compare(keeping, fewer).settings)


def test_what_can_be_taken_over_is_beside_what_cannot() -> None:
    """One key that needs a restart holds up none that does not."""
    found = compare(OLD, made(run={"name": "other", "final_step": 9}, stall={"exit_seconds": 9.0}))

    assert (("run.final_step", "stall.exit_seconds"), ("run.name",)) == (found.changed, found.needs_restart)
    assert made(run={"final_step": 9}, stall={"exit_seconds": 9.0}) == found.settings


def test_the_same_again_is_no_change() -> None:
    """Nothing is named."""
    found = compare(OLD, made())

    assert ((), (), (), OLD) == (found.changed, found.at_next_start, found.needs_restart, found.settings)


def test_every_key_named_here_is_a_setting() -> None:
    """A setting that was renamed is missed."""
    sections = {name: type(getattr(OLD, name)) for name in Settings.model_fields if name != "notify"}
    known = {*Settings.model_fields, *(f"{name}.{key}" for name, part in sections.items() for key in part.model_fields)}

    assert set() == (AT_ONCE | AT_NEXT_START) - known


@pytest.mark.parametrize("ended_first", [False, True])
def test_what_is_read_as_the_run_ends_is_left_to_the_next_start(ended_first: bool) -> None:
    """To say that a longer run holds from now on, and to end, would be two stories."""
    said: list[str] = []
    mailbox, longer = Mailbox(), made(run={"final_step": 50})
    was_read = threading.Event()

    def read() -> Settings:
        was_read.set()
        return longer

    side = ReloadSide(made(run={"final_step": 43}), read, mailbox, lambda name, _: said.append(name), print)
    side.ask()
    assert was_read.wait(10)
    if ended_first:
        side.close()
        mailbox.run_all(lambda: True)
    else:
        until(lambda: mailbox.run_all(lambda: True) or said)
        side.close()
    mailbox.close()

    assert ([] if ended_first else ["supervisor.reloaded"]) == said
    assert (43 if ended_first else 50) == side.settings.run.final_step
