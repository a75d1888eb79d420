"""Names: which are candidates, which step they tell."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastgood.naming import any_name, partial_name, partial_of, rule_for, snapshot_name, step_in_name, unfinished


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("ckpt_00010000.pt", 10000),
        ("ckpt_9000.pt", 9000),
        ("step_200.pt", 200),
        ("model-epoch=3-step=4000.ckpt", 4000),
        ("checkpoint-500.pth", 500),
        ("epoch_12.pt", 12),
        ("gpt2_000100.safetensors", 100),
        ("ckpt.pt", None),
        ("best_2.3456.pt", None),
        ("resnet50.pt", None),
        ("last-v1.ckpt", None),
        ("model-00001-of-00003.safetensors", None),
        ("ckpt_5", 5),
        ("state-7.json", 7),
        ("iter_0000100", 100),
        ("checkpoint.500", 500),
        ("ckpt_.pt", None),
    ],
)
def test_the_step_is_the_number_that_the_name_means(name: str, step: int | None) -> None:
    """A name's step is the number after `step`, else after another known word, else the last number."""
    assert step == any_name(name)
    assert step == step_in_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "step_300.pt.tmp", "tmp-checkpoint-300", ".step_300.pt.swp", "300.orbax-checkpoint-tmp-0", "step_300.part",
        "ckpt_1.pt~", "samples_step_30.txt", "step_30.jpg", "step_30.txt", "plot_step_3.json",
        "metrics.jsonl", "train.log", "step_10.log", "ckpt_1.pt.sha256", "notes.txt", "config_2.yaml",
        "tmp-ckpt_5.pt", "tmp_model_5.safetensors",
    ],
)  # fmt: skip
def test_temporary_and_other_files_are_no_candidates(name: str) -> None:
    """Names that say temporary, whoever made them, and files of other kinds are never candidates."""
    assert any_name(name) is False


def test_our_own_partials_are_recognised_and_never_candidates() -> None:
    """A partial tells which name it stands for, and is no candidate under any rule."""
    partial = partial_name("ckpt_00000001.pt")

    assert partial_of(partial) == "ckpt_00000001.pt"
    assert partial_of("ckpt_00000001.pt") is None
    assert unfinished(partial)
    assert any_name(partial) is False
    assert rule_for(r".*")(partial) is False


def test_a_seal_is_no_candidate_under_any_rule() -> None:
    """Not even where a pattern would take everything."""
    assert rule_for(r".*")("ckpt_00000001.pt.sha256") is False
    assert any_name("ckpt_00000001.pt.sha256") is False


def test_default_names_round_trip() -> None:
    """The name made for a step tells that step, also past eight digits."""
    for step in (0, 7, 99_999_999, 123_456_789_012):
        assert step == rule_for(r"ckpt_(\d+)\.pt")(snapshot_name(step))


@pytest.mark.parametrize(
    ("pattern", "name", "step"),
    [
        ("model_{step}.bin", "model_12.bin", 12),
        ("model_{step}.bin", "xmodel_12.bin", False),
        ("*-{step}.pt", "run-a-3.pt", 3),
        (r"ckpt_(\d+)\.pt", "ckpt_5.pt", 5),
        (r"ckpt_(\d+)\.pt", "ckpt_5.pt.bak", False),
        (r"(?P<kind>[a-z]+)_(?P<step>\d+)", "full_8", 8),
        (r"ckpt\.pt", "ckpt.pt", None),
    ],
)
def test_patterns_are_anchored(pattern: str, name: str, step: int | bool | None) -> None:
    """A template or an expression must match the whole name, and says where the step is."""
    assert step == rule_for(pattern)(name)


@pytest.mark.parametrize("pattern", ["ckpt_*.pt", "ckpt_(\\d+", "*.pt"])
def test_shell_patterns_and_broken_expressions_are_refused(pattern: str) -> None:
    """What is neither a template nor an expression is refused with the way to write it."""
    with pytest.raises(ValueError, match=r"\{step\}"):
        rule_for(pattern)


@given(st.integers(0, 10**12), st.sampled_from(["", ".pt", ".tmp", ".sha256", ".part", "~", ".pt.tmp", ".pt.bak"]))
def test_a_number_and_an_end_decide_alike_for_every_word(step: int, end: str) -> None:
    """Our own names are no special case: what holds for `ckpt_5.pt` holds for `checkpoint_5.pt` and `step-5.pt`."""
    found = {any_name(f"{word}{step}{end}") for word in ("ckpt_", "checkpoint_", "step-", "CKPT_", "iter=")}

    assert {step if end in ("", ".pt") else False} == found


@given(st.integers(0, 10**12), st.integers(0, 12))
def test_leading_zeros_do_not_change_a_step(step: int, zeros: int) -> None:
    """`ckpt_00000005.pt` and `ckpt_5.pt` are the same step."""
    assert step == any_name(f"ckpt_{'0' * zeros}{step}.pt")
