"""Settings: where values come from, and one line for whatever is wrong with them."""

import dataclasses
import os
import pickle
import subprocess
import sys

import pytest
import torch
import yaml

from trainer import settings as module
from trainer.__main__ import main
from trainer.settings import Settings, UsageError, read_arguments

CONFIG_FOLDER = os.path.join(os.path.dirname(module.__file__), "..", "config", "trainer")


def complaint(capsys, arguments):
    """The one line on stderr of a command that must end with status 2."""
    assert 2 == main(arguments)

    lines = capsys.readouterr().err.splitlines()
    assert 1 == len(lines), lines
    return lines[0]


# What is in the file, and what the line must name: the key (or line) and the cure.
BAD_FILES = {
    "unknown key": ("batch_sise: 4", ["batch_sise: unknown key", "did you mean batch_size?"]),
    "dashes": ("max-iters: 4", ["max-iters: unknown key", "did you mean max_iters?"]),
    "nothing like it": ("zzzzzz: 4", ["zzzzzz: unknown key", "--help lists the keys"]),
    "syntax": ("batch_size: 4\nblock_size: [1", ["line 2: ", "`key: value`"]),
    "tab": ("batch_size: 4\n\tblock_size: 8", ["line 2: ", "`key: value`"]),
    "python tag": ("seed: !!python/object/apply:os.getpid []", ["line 1: ", "`key: value`"]),
    "impossible date": ("seed: 2024-99-99", ["month must be in 1..12", "put such values in quotes"]),
    "a number too long": ("seed: " + "9" * 5000, ["holds something YAML does not allow"]),
    "too deep": ("seed: " + "[" * 3000, ["holds something YAML does not allow"]),
    "larger than any float": ("learning_rate: 1" + "0" * 400, ["learning_rate: must be a number"]),
    "too many": ("batch_size: 99999999999999999999", ["batch_size: must be below 2147483648"]),
    "too many threads": ("threads: 100000", ["threads: must be below 1025"]),
    "nanoGPT's own": ("dataset: openwebtext", ["dataset: unknown key; the data is named with data"]),
    "nanoGPT's journal": ("wandb_log: true", ["wandb_log: unknown key; metrics.jsonl in out_dir has every step"]),
    "no name": ("'': 1", ["'': unknown key"]),
    "list": ("- 1\n- 2", ["no keys", "`key: value`"]),
    "text": ("hello", ["no keys", "`key: value`"]),
    "given twice": ("seed: 1\nseed: 2", ["seed: given twice", "keep one"]),
    "text for whole number": ("batch_size: many", ["batch_size: ", "a whole number", "'many'"]),
    "float for whole number": ("batch_size: 4.0", ["batch_size: ", "a whole number", "4.0"]),
    "bool for whole number": ("batch_size: true", ["batch_size: ", "a whole number", "True"]),
    "text for number": ("dropout: high", ["dropout: ", "a number", "'high'"]),
    "nan": ("learning_rate: .nan", ["learning_rate: ", "a number", "nan"]),
    "text for bool": ("bias: maybe", ["bias: ", "true or false", "'maybe'"]),
    "number for text": ("resume: 100", ["resume: ", "text", "100"]),
    "null for text": ("out_dir:", ["out_dir: ", "text", "None"]),
    "empty text": ("out_dir: ''", ["out_dir: ", "leave the key out"]),
    "deterministic": ("deterministic: 3", ["deterministic: ", "true, false or null"]),
    "too small": ("batch_size: 0", ["batch_size: ", "at least 1"]),
    "no failures": ("save_failures_max: 0", ["save_failures_max: ", "at least 1"]),
    "no time": ("rank_timeout_seconds: 0", ["rank_timeout_seconds: ", "at least 1"]),
    "too large": ("dropout: 1.0", ["dropout: ", "below 1.0"]),
    "huge seed": (f"seed: {2**63}", ["seed: ", "below"]),
    "dtype": ("dtype: int8", ["dtype: ", "float32 or bfloat16 or float16"]),
    "device": ("device: gpu", ["device: ", "choose cpu, cuda or cuda:N"]),
    "init_from": ("init_from: ckpt.pt", ["init_from: 'ckpt.pt' is not known", "scratch or resume or gpt2"]),
    "init_from and resume": ("init_from: resume\nresume: never", ["init_from: resume cannot go with resume: never"]),
    "width": ("n_embd: 130\nn_head: 4", ["n_embd: ", "n_head = 4", "multiple"]),
    "keep one": ("max_to_keep: 1", ["max_to_keep: ", "nothing to fall back to", "at least 2"]),
    "keep less than none": ("max_to_keep: -1", ["max_to_keep: -1 leaves nothing to fall back to", "at least 2"]),
    "decay": ("lr_decay_iters: 50\nwarmup_iters: 50", ["lr_decay_iters: ", "warmup_iters = 50", "raise it"]),
    "min_lr": ("min_lr: 0.1\nlearning_rate: 0.01", ["min_lr: ", "learning_rate = 0.01", "lower it"]),
}


def test_a_file_of_another_encoding_is_one_line(tmp_path, capsys):
    """Not YAML's fault, and not the reader's."""
    path = tmp_path / "latin.yaml"
    path.write_bytes(b"out_dir: caf\xe9")

    assert complaint(capsys, [str(path)]).endswith("latin.yaml: is not UTF-8 text; convert it first")


@pytest.mark.parametrize("case", BAD_FILES)
def test_a_bad_file_is_one_line(case, tmp_path, capsys):
    """The line names the file, the key or the line number, and the cure; the status is 2."""
    text, fragments = BAD_FILES[case]
    path = tmp_path / "bad.yaml"
    path.write_text(text)

    line = complaint(capsys, [str(path)])

    assert line.startswith(f"trainer: {path}: ")
    assert [] == [fragment for fragment in fragments if fragment not in line], line


BAD_ARGUMENTS = {
    "no file": ([], ["usage: "]),
    "key first": (["--seed=1"], ["usage: "]),
    "missing file": (["/nowhere/x.yaml"], ["/nowhere/x.yaml: ", "name a YAML file"]),
    "folder": (["/"], ["/: ", "name a YAML file"]),
    "no value": (["CONFIG", "--seed"], ["'--seed'", "--key=value"]),
    "bare word": (["CONFIG", "seed=1"], ["'seed=1'", "--key=value"]),
    "no date": (["CONFIG", "--out_dir=2024-02-30"], ["out_dir: '2024-02-30' is not a YAML value; put it in quotes"]),
    "no offset": (["CONFIG", "--seed=2001-12-14t21:59:43.10-99:99"], ["seed: ", "put it in quotes"]),
    "no number": (["CONFIG", "--seed=!!int x"], ["seed: '!!int x' is not a YAML value"]),
    "no truth": (["CONFIG", "--compile=!!bool x"], ["compile: '!!bool x' is not a YAML value"]),
    "no time": (["CONFIG", "--seed=!!timestamp x"], ["seed: '!!timestamp x' is not a YAML value"]),
    "very long": (["CONFIG", "--seed=" + "9" * 5000], ["seed: '" + "9" * 40 + "...' is not a YAML value"]),
    "very deep": (["CONFIG", "--seed=" + "[" * 3000], ["seed: "]),
    "unknown key": (["CONFIG", "--sed=1"], ["command line: sed: ", "did you mean seed?"]),
    "wrong type": (["CONFIG", "--seed=x"], ["command line: seed: ", "a whole number"]),
    "not YAML": (["CONFIG", "--data=[x"], ["command line: data: ", "quotes"]),
    "pair": (["CONFIG", "--n_embd=15"], ["command line: n_embd: ", "multiple"]),
}


@pytest.mark.parametrize("case", BAD_ARGUMENTS)
def test_a_bad_argument_is_one_line(case, config, capsys):
    """A key from the command line is said to be from there."""
    arguments, fragments = BAD_ARGUMENTS[case]

    line = complaint(capsys, [config if argument == "CONFIG" else argument for argument in arguments])

    assert [] == [fragment for fragment in fragments if fragment not in line], line


def test_a_file_that_is_no_text_is_one_line(tmp_path, capsys):
    """Bytes that are not UTF-8 are refused without a traceback."""
    path = tmp_path / "bad.yaml"
    path.write_bytes(b"seed: \xff\xfe")

    assert "UTF-8" in complaint(capsys, [str(path)])


# Settings that look right and turn out not to be when the run is set up.
BAD_RUNS = {
    "missing data": (["--data=/nowhere/x.txt"], ["command line: data: ", "/nowhere/x.txt does not exist"]),
    "block too long": (["--block_size=100000"], ["command line: block_size: ", "lower it"]),
    "missing snapshot": (["--resume=/nowhere/ckpt.pt"], ["command line: resume: ", "not a file", "auto"]),
    "no such GPU": (["--device=cuda:99"], ["command line: device: ", "not there", "cpu"]),
    "out_dir": (["--out_dir=/dev/null/x"], ["command line: out_dir: ", "cannot be written", "another"]),
    "data_dir": (["--data=stdlib", "--data_dir=/dev/null/x"], ["command line: data_dir: ", "another"]),
}


@pytest.mark.parametrize("case", BAD_RUNS)
def test_a_run_that_cannot_be_set_up_is_one_line(case, config, capsys, monkeypatch):
    """What is missing outside the file is named as shortly as what is wrong inside."""
    monkeypatch.setattr("trainer.data.STDLIB_CHARACTERS", 1000)
    arguments, fragments = BAD_RUNS[case]

    line = complaint(capsys, [config, *arguments])

    assert [] == [fragment for fragment in fragments if fragment not in line], line


def test_a_dtype_the_gpu_lacks_is_one_line(config, capsys, monkeypatch):
    """bfloat16 on a GPU without it is refused before anything is trained slowly."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_device", lambda number: None)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: False)

    line = complaint(capsys, [config, "--device=cuda", "--dtype=bfloat16"])

    assert "command line: dtype: bfloat16 is not supported by cuda; use float16 or float32" in line


def test_ranks_that_have_no_gpu_of_their_own_are_one_line(config, capsys, monkeypatch):
    """One GPU for two processes, or one named for both: said before anything waits for the other."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)

    line = complaint(capsys, [config, "--device=cuda"])
    assert "command line: device: 2 processes on this machine need as many GPUs, torch sees 1" in line
    line = complaint(capsys, [config, "--device=cuda:0"])
    assert "command line: device: cuda:0 is one GPU for 2 processes; use device: cuda" in line


def test_a_rank_that_is_no_number_is_one_line(config, capsys, monkeypatch):
    """Whatever set the variables, it was not torchrun."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "many")

    assert "trainer: RANK and WORLD_SIZE must be numbers" in complaint(capsys, [config])


def test_a_refusal_is_the_same_in_another_process():
    """Ranks tell each other what they refuse."""
    error = UsageError("data", "is gone; bring it back")

    other = pickle.loads(pickle.dumps(error))

    assert ("data", str(error)) == (other.key, str(other))


def test_a_wrong_key_answers_without_torch(config):
    """Settings are checked before the second that importing torch takes."""
    code = (
        "import sys; from trainer.__main__ import main;"
        f"status = main([{config!r}, '--sed=1']); sys.exit(f'{{status}} {{\"torch\" in sys.modules}}')"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert "2 False" == done.stderr.splitlines()[-1]


def test_the_command_line_wins_over_the_file_and_the_file_over_defaults(config):
    """Three places for a value, the nearest one counts."""
    settings = read_arguments([config, "--seed=7", "--compile=true", "--data=abc"])

    assert (7, True, "abc") == (settings.seed, settings.compile, settings.data)
    assert 16 == settings.n_embd  # the file's
    assert 0.9 == settings.beta1  # the default


@pytest.mark.parametrize("text", ["6e-4", "0.0006", "6.0e-4"])
def test_a_number_may_be_written_as_people_do(text, config):
    """YAML takes 6e-4 for text; here it is a number."""
    assert 6e-4 == read_arguments([config, f"--learning_rate={text}", "--min_lr=0"]).learning_rate


def test_a_tilde_is_the_home_folder(config):
    """No folder named ~ is ever made."""
    assert os.path.expanduser("~/x") == read_arguments([config, "--out_dir=~/x"]).out_dir


def test_an_empty_file_means_defaults(tmp_path):
    """Every key has a default."""
    path = tmp_path / "empty.yaml"
    path.write_text("# nothing\n")

    assert Settings() == read_arguments([str(path)])


def test_settings_are_frozen_and_checked_however_they_are_made():
    """Built in Python they are held to the same rules as read from a file."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        Settings().seed = 1
    with pytest.raises(UsageError, match="max_to_keep: 1 leaves nothing to fall back to"):
        Settings(max_to_keep=1)


def test_help_lists_every_key_with_its_default(capsys):
    """--help answers wherever it stands, with status 0."""
    assert 0 == main(["x.yaml", "--help"])

    text = capsys.readouterr().out
    assert [] == [name for name in module.FIELDS if f"  {name}=" not in text]
    assert "  max_iters=2000 " in text


def test_help_lists_the_choices_of_a_key_that_has_some(capsys):
    """Nobody has to give a wrong value to learn the right ones."""
    main(["--help"])

    lines = {line.partition("=")[0].strip(): line for line in capsys.readouterr().out.splitlines()}
    assert lines["dtype"].endswith(": float32, bfloat16 or float16")
    assert lines["init_from"].endswith(": scratch, resume, gpt2, gpt2-medium, gpt2-large or gpt2-xl")


@pytest.mark.parametrize("name", sorted(os.listdir(CONFIG_FOLDER)))
def test_shipped_files_are_valid_and_explained(name):
    """Each key is known, and has a comment on its line."""
    path = os.path.join(CONFIG_FOLDER, name)
    with open(path, encoding="utf-8") as file:
        lines = [line for line in file if line.strip() and not line.startswith("#")]

    read_arguments([path])
    assert len(yaml.safe_load("".join(lines))) == len(lines)
    assert [] == [line for line in lines if " # " not in line]


def test_nanogpts_run_is_there_and_says_what_data_it_needs(monkeypatch, tmp_path, capsys):
    """gpt2_124m.yaml has nanoGPT's numbers: half a million tokens a step for 600,000 steps; missing data is one line."""
    path = os.path.abspath(os.path.join(CONFIG_FOLDER, "gpt2_124m.yaml"))
    chosen = read_arguments([path])
    monkeypatch.chdir(tmp_path)

    line = complaint(capsys, [path, "--device=cpu", "--dtype=float32"])

    assert 491_520 == chosen.gradient_accumulation_steps * chosen.batch_size * chosen.block_size
    assert (12, 12, 768, 1024, False, 0.0) == (
        *(chosen.n_layer, chosen.n_head, chosen.n_embd, chosen.block_size, chosen.bias, chosen.dropout),
    )
    assert (6e-4, 6e-5, 2000, 600_000, 600_000, 0.1, 0.9, 0.95, 1.0) == (
        *(chosen.learning_rate, chosen.min_lr, chosen.warmup_iters, chosen.lr_decay_iters, chosen.max_iters),
        *(chosen.weight_decay, chosen.beta1, chosen.beta2, chosen.grad_clip),
    )
    assert "data: data/openwebtext does not exist; give stdlib, a text file, or a folder with train.bin" in line
