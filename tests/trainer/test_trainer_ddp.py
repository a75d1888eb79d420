"""Several processes that train one model: as exact as one, whatever ends them, and never waiting for each other for ever."""

import datetime as dt
import os
import signal
import subprocess
import sys

import pytest
import torch

import lastgood
from tests.trainer.comparing import ROOT, go_through, losses_of, payload_of, state_differs
from tests.trainer.conftest import small_values
from trainer import distributed
from trainer.__main__ import main
from trainer.distributed import Ranks, place
from trainer.settings import UsageError

SECOND = {"LASTGOOD_INCARNATION": "2"}
KILLED = -signal.SIGKILL


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where the module's runs are."""
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def small(folder, prepared):
    """A file of settings for runs of up to three ranks, with dropout so that each one's random numbers matter."""
    values = small_values(folder, prepared) | {"dropout": 0.1, "gradient_accumulation_steps": 6, "eval_interval": 5}
    path = folder / "small.yaml"
    path.write_text("".join(f"{key}: {value}\n" for key, value in values.items()))
    return str(path)


@pytest.fixture(scope="module")
def lives(folder, small):
    """All the lives that the tests look at, by name: each with its statuses, its outputs and its run's folder."""
    alike = ["--n_layer=3", "--n_embd=48", "--bias=true"]  # enough parameters to travel in several portions
    planned = {
        "unbroken": ("straight", {"ranks": 2}),
        "a rank killed": (
            "killed",
            {"ranks": 2, "act": "KILL", "step": 14, "rank": 1, "more": ["--save_blocking=true"]},
        ),
        "resumed": ("killed", {"ranks": 2, "environ": SECOND}),
        "one asked to stop": ("stopped", {"ranks": 2, "act": "TERM", "step": 7, "rank": 1}),
        "gone on with": ("stopped", {"ranks": 2, "environ": SECOND}),
        "alone": ("alone", {"more": ["--max_iters=10"]}),
        "two from one": ("alone", {"ranks": 2}),
        "one from two": ("straight", {}),
        "frozen": ("frozen", {"ranks": 2, "act": "STOP", "step": 5, "rank": 1, "more": ["--rank_timeout_seconds=2"]}),
        "diverged": ("diverged", {"ranks": 2, "act": "NAN", "step": 7, "rank": 1}),
        "three": ("three", {"ranks": 3, "more": alike}),
        "three, half": ("three-broken", {"ranks": 3, "more": [*alike, "--max_iters=10"]}),
        "three, whole": ("three-broken", {"ranks": 3, "more": alike}),
        "four": ("four", {"ranks": 4}),
    }
    asked = [
        {"arguments": [small, f"--out_dir={folder / run}", *life.pop("more", [])], **life}
        for run, life in planned.values()
    ]
    told = zip(planned.items(), go_through(*asked), strict=True)
    return {name: life | {"out_dir": str(folder / run)} for (name, (run, _)), life in told}


@pytest.mark.parametrize(
    ("broken", "resumed", "statuses", "since"),
    [
        ("a rank killed", "resumed", [1, KILLED], 10),
        ("one asked to stop", "gone on with", [143, 143], 7),
    ],
)
def test_a_broken_run_of_two_ranks_is_exact(broken, resumed, statuses, since, lives):
    """Killed or asked to stop, and resumed by two ranks: losses, weights, moments, each one's random numbers are the same."""
    assert statuses == lives[broken]["statuses"]
    assert [0, 0] == lives[resumed]["statuses"]
    assert f"resumed at step {since};" in lives[resumed]["outputs"][0]
    straight, other = lives["unbroken"]["out_dir"], lives[resumed]["out_dir"]
    assert losses_of(straight) == losses_of(other)
    assert list(range(since + 1, 21)) == sorted(losses_of(other, 2))
    assert [] == state_differs(straight, other, 20)


def test_three_ranks_are_as_exact_as_two(lives):
    """With three it matters in which portions gradients travel, which torch decides anew in each process."""
    for name in ("three", "three, half", "three, whole"):
        assert [0, 0, 0] == lives[name]["statuses"], lives[name]["outputs"]
    straight, other = lives["three"]["out_dir"], lives["three, whole"]["out_dir"]
    assert losses_of(straight) == losses_of(other)
    assert [] == state_differs(straight, other, 20)


def test_a_snapshot_holds_every_rank_s_random_numbers(lives):
    """They differ from each other, and those of rank 0 are where those of a single process are."""
    payload = payload_of(lives["unbroken"]["out_dir"], 20)

    first, second = payload["rng_of_ranks"]
    assert payload["rng"]["torch"].equal(first["torch"])
    assert not first["torch"].equal(second["torch"])


def test_a_stop_that_reaches_one_rank_makes_one_good_snapshot(lives):
    """All agree on the step after which they end, and only rank 0 saves."""
    out_dir = lives["one asked to stop"]["out_dir"]

    assert lastgood.verify(os.path.join(out_dir, "ckpt_00000007.pt")).proven
    assert list(range(1, 8)) == sorted(losses_of(out_dir, 1))


def test_only_rank_0_prints(lives):
    """The lines of a run are there once; the others are silent as long as nothing is wrong with themselves."""
    assert "" == lives["unbroken"]["outputs"][1]
    lines = lives["unbroken"]["outputs"][0].splitlines()
    assert 20 == len([line for line in lines if line.startswith("iter ")])
    assert 5 == len([line for line in lines if line.startswith("step ")])


def test_the_ranks_share_out_what_one_process_would_train_on(small, folder):
    """Without dropout the losses and the evaluations of one, two and three ranks agree but for rounding."""
    lives = [
        {"arguments": [small, f"--out_dir={folder / f'shared-{n}'}", "--dropout=0", "--max_iters=5"], "ranks": n}
        for n in (1, 2, 3)
    ]

    results = go_through(*lives)

    one, two, three = ([min(x) for x in losses_of(str(folder / f"shared-{n}")).values()] for n in (1, 2, 3))
    assert one == pytest.approx(two, rel=1e-5)
    assert one == pytest.approx(three, rel=1e-5)
    evaluated = [[line for line in r["outputs"][0].splitlines() if line.startswith("step 0")] for r in results]
    assert evaluated[0] == evaluated[1] == evaluated[2]
    assert 1 == len(evaluated[0])


@pytest.mark.parametrize(
    ("name", "theirs", "ours", "cure"),
    [
        ("one from two", 2, 1, "torchrun --nproc-per-node=2 -m trainer"),
        ("two from one", 1, 2, "python -m trainer"),
    ],
)
def test_another_number_of_ranks_is_refused(name, theirs, ours, cure, lives):
    """Status 2 and one line with both numbers, the reason and the cure; said once."""
    said = f"trainer: the snapshot is of a run of {theirs} processes, this is one of {ours}"

    assert [2] * ours == lives[name]["statuses"]
    lines = "".join(lives[name]["outputs"]).splitlines()
    assert 1 == len(lines)
    assert lines[0].startswith(said)
    assert cure in lines[0]


def test_micro_batches_that_cannot_be_shared_out_are_refused(lives):
    """Six among four: status 2, said once."""
    assert [2] * 4 == lives["four"]["statuses"]
    said = "gradient_accumulation_steps: 6 does not divide among 4 processes; make it a multiple"
    assert [said] == [line.split("yaml: ")[1] for line in "".join(lives["four"]["outputs"]).splitlines()]


def test_a_rank_whose_loss_is_not_finite_ends_all(lives):
    """Divergence of one is divergence of the run: all end with 65, and nothing is saved."""
    assert [65, 65] == lives["diverged"]["statuses"]
    assert "diverged at step 7" in lives["diverged"]["outputs"][0]
    assert [] == [name for name in os.listdir(lives["diverged"]["out_dir"]) if name.startswith("ckpt_")]


@pytest.mark.parametrize("name", ["frozen", "a rank killed"])
def test_nobody_waits_for_ever_for_a_rank(name, lives):
    """One that is stopped or dead ends the others, with status 1 and one line."""
    assert [1, KILLED] == lives[name]["statuses"]
    assert lives[name]["outputs"][0].splitlines()[-1].startswith("trainer: rank 0 lost another one (")


@pytest.mark.parametrize("environ", [{}, {"RANK": "3"}, {"WORLD_SIZE": "2"}, {"RANK": "0", "WORLD_SIZE": "1"}])
def test_without_torchrun_a_process_is_alone(environ):
    """One of the two variables, as some schedulers set, makes no group; nor does a group of one."""
    assert Ranks() == place(environ)


def test_a_place_is_what_torchrun_says():
    """Global and local numbers; a text that is no number is refused."""
    environ = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}

    assert Ranks(5, 8, 1, 4) == place(environ)
    with pytest.raises(UsageError, match="RANK and WORLD_SIZE must be numbers"):
        place(environ | {"RANK": "first"})


@pytest.mark.parametrize(("rank", "count"), [("5", "2"), ("0", "0"), ("2", "2")])
def test_an_impossible_place_is_one_line(rank, count, small, monkeypatch, capsys):
    """Said by the process itself, which may be no rank 0."""
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", count)

    assert 2 == main([small])
    assert f"trainer: RANK {rank} is not one of WORLD_SIZE {count}; unset both" in capsys.readouterr().err


@pytest.mark.heavy  # torch is imported six times
def test_under_torchrun_a_stop_saves_and_the_next_start_goes_on(small, folder):
    """SIGTERM to torchrun, which passes it on: one good snapshot, from which a second torchrun ends the run exactly."""
    straight, stopped = str(folder / "torchrun-straight"), str(folder / "torchrun-stopped")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [*torchrun, "-m", "trainer", small, f"--out_dir={stopped}", "--save_interval=1000000"]
    options = {"cwd": ROOT, "env": os.environ | {"OMP_NUM_THREADS": "1"}, "stderr": subprocess.DEVNULL, "text": True}

    with subprocess.Popen([*command, "--max_iters=1000000"], stdout=subprocess.PIPE, **options) as process:
        for line in process.stdout:
            if line.startswith("iter 5:"):
                process.send_signal(signal.SIGTERM)
                break
        process.stdout.read()
    (rung,) = lastgood.ladder(stopped)
    last = rung.step + 3
    ended = subprocess.run([*command, f"--max_iters={last}"], stdout=subprocess.PIPE, check=False, **options)
    go_through({"arguments": [small, f"--out_dir={straight}", f"--max_iters={last}"], "ranks": 2})

    assert rung.verdict.proven
    assert 0 == ended.returncode
    assert f"resumed at step {rung.step};" in ended.stdout
    assert losses_of(straight) == losses_of(stopped)
    assert [] == state_differs(straight, stopped, last)


@pytest.mark.parametrize(("device", "backend"), [("cpu", "gloo"), ("cuda", "cpu:gloo,cuda:nccl")])
def test_gradients_travel_by_nccl_on_gpus_and_by_gloo_on_cpus(device, backend, settings, monkeypatch):
    """What the ranks agree on by numbers stays on the CPU; all have the settings' limit, and leave at the end."""
    asked = []
    monkeypatch.setattr(torch.distributed, "init_process_group", lambda *words, **more: asked.append((words, more)))
    monkeypatch.setattr(torch.distributed, "all_gather", lambda numbers, number: asked.append(number.device.type))
    monkeypatch.setattr(torch.distributed, "destroy_process_group", lambda: asked.append("left"))
    chosen = settings(device=device, gradient_accumulation_steps=2, rank_timeout_seconds=7)

    with distributed.joined(Ranks(1, 2), chosen):
        pass

    limit = dt.timedelta(seconds=7)
    assert [((backend,), {"timeout": limit}), "cpu", "left"] == asked
