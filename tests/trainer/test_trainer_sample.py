"""Text from a snapshot: which one is read, what its tokens mean, and one line for whatever is wrong."""

import os
import pickle
import shutil
import subprocess
import sys
import types

import pytest
import torch

from trainer import train
from trainer.model import GPT, ModelArgs
from trainer.sample import main

SIX = ("model", "optimizer", "model_args", "iter_num", "best_val_loss", "config")


@pytest.fixture(scope="module")
def trained(tmp_path_factory, prepared):
    """A folder with snapshots of steps 10 and 20 of a small run; nobody may change it."""
    from trainer.settings import Settings

    folder = tmp_path_factory.mktemp("trained") / "run"
    small = {"batch_size": 2, "block_size": 16, "n_layer": 2, "n_head": 2, "n_embd": 16, "threads": 1}
    rhythm = {"max_iters": 20, "save_interval": 10, "eval_interval": 0, "warmup_iters": 3, "lr_decay_iters": 20}
    train.train(Settings(out_dir=str(folder), data=prepared, **small, **rhythm))
    return str(folder)


@pytest.fixture
def run_dir(trained, tmp_path):
    """A copy of it."""
    return shutil.copytree(trained, tmp_path / "copy")


def write_payload(path, vocab_size, **changes):
    """A snapshot as nanoGPT writes it, of a fresh model."""
    args = {"block_size": 8, "vocab_size": vocab_size, "n_layer": 1, "n_head": 1, "n_embd": 4, "bias": False}
    torch.manual_seed(1)
    payload = {"model": GPT(ModelArgs(**args)).state_dict(), "model_args": args, "iter_num": 5, "config": {}}
    torch.save(payload | changes, path)
    return str(path)


@pytest.fixture
def tiktoken(monkeypatch):
    """An encoding of GPT-2's size in which token n is the letter n % 26; the real one has to be downloaded."""

    class Pairs:
        n_vocab = 50257

        def encode(self, text, allowed_special):
            assert {"<|endoftext|>"} == allowed_special
            return [ord(letter) - ord("a") for letter in text if letter != "\n"] or [0]

        def decode(self, tokens):
            assert max(tokens) < self.n_vocab
            return "".join(chr(ord("a") + token % 26) for token in tokens)

    module = types.SimpleNamespace(get_encoding=lambda name: {"gpt2": Pairs()}[name])
    monkeypatch.setitem(sys.modules, "tiktoken", module)
    return module


def complaint(capsys, status, arguments):
    """The one line on stderr of a command that must end with this status and write nothing."""
    assert status == main(arguments)

    out, err = capsys.readouterr()
    assert "" == out
    lines = err.splitlines()
    assert 1 == len(lines), lines
    return lines[0]


def text_of(capsys, *arguments):
    """What a command that must succeed writes."""
    assert 0 == main(list(arguments))

    return capsys.readouterr().out


def test_a_folder_gives_its_newest_snapshot(trained, capsys):
    """The text is that of the newest one, and it says on stderr which that is."""
    assert 0 == main([trained, "--max_new_tokens=30"])

    out, err = capsys.readouterr()
    assert f"{trained}/ckpt_00000020.pt, step 20\n" == err
    assert text_of(capsys, f"{trained}/ckpt_00000020.pt", "--max_new_tokens=30") == out
    assert text_of(capsys, f"{trained}/ckpt_00000010.pt", "--max_new_tokens=30") != out


def test_a_damaged_newest_one_is_passed_over(run_dir, capsys):
    """Text never comes from bytes that are not as they were saved."""
    newest = os.path.join(run_dir, "ckpt_00000020.pt")
    with open(newest, "r+b") as file:
        file.seek(os.path.getsize(newest) // 2)
        file.write(b"\x55\xaa")

    assert 0 == main([str(run_dir), "--max_new_tokens=5"])

    assert "ckpt_00000010.pt, step 10" in capsys.readouterr().err
    assert "ckpt_00000020.pt is corrupt: " in complaint(capsys, 3, [newest])


def test_the_text_goes_on_from_the_start(trained, capsys, tmp_path):
    """The start, given or in a file, is part of the text, and as many characters as asked for follow."""
    (tmp_path / "start.txt").write_text("while self")

    given = text_of(capsys, trained, "--start=while self", "--max_new_tokens", "25")
    read = text_of(capsys, trained, f"--start=FILE:{tmp_path}/start.txt", "--max_new_tokens", "25")

    assert given.startswith("while self")
    assert len("while self") + 25 + 1 == len(given)
    assert given == read
    assert text_of(capsys, trained).startswith("\n")


def test_a_seed_decides_the_text(trained, capsys):
    """The same one repeats it whatever else was drawn in between, another one changes it, and samples differ."""
    arguments = (trained, "--num_samples=2", "--max_new_tokens=40")
    first = text_of(capsys, *arguments, "--seed=1")
    torch.rand(5)

    assert first == text_of(capsys, *arguments, "--seed=1")
    assert first != text_of(capsys, *arguments, "--seed=2")
    one, other = first.split("---------------\n")
    assert one != other


def test_the_likeliest_character_alone_needs_no_luck(trained, capsys):
    """top_k 1 gives one text whatever the seed; so does a very low temperature."""
    texts = {
        text_of(capsys, trained, "--max_new_tokens=20", f"--seed={seed}", *how.split())
        for seed in (1, 2)
        for how in ("--top_k=1", "--temperature=0.0001")
    }

    assert 1 == len(texts)


def test_the_data_may_be_gone(run_dir, capsys):
    """A snapshot of ours holds its characters."""
    path = os.path.join(run_dir, "ckpt_00000020.pt")
    payload = torch.load(path, weights_only=True)
    expected = text_of(capsys, path, "--max_new_tokens=20")
    assert os.path.isdir(payload["config"]["dataset"])
    payload["config"]["dataset"] = "/gone"
    moved = os.path.join(run_dir, "moved.pt")
    torch.save(payload, moved)

    assert expected == text_of(capsys, moved, "--max_new_tokens=20")


def test_a_snapshot_of_nanogpt_speaks_by_its_data(run_dir, prepared, capsys, monkeypatch, tmp_path):
    """Its six keys are enough where data/NAME/meta.pkl is, or where --data says it is; else it asks for it."""
    path = os.path.join(run_dir, "ckpt_00000020.pt")
    expected = text_of(capsys, path, "--max_new_tokens=20")
    payload = torch.load(path, weights_only=True)
    payload["config"]["dataset"] = "small_char"
    monkeypatch.chdir(tmp_path)
    torch.save({key: payload[key] for key in SIX}, "ckpt.pt")

    line = complaint(capsys, 2, ["ckpt.pt"])
    assert "--data: ckpt.pt does not hold its 21 characters, and small_char does not either" in line
    assert expected == text_of(capsys, "ckpt.pt", f"--data={prepared}", "--max_new_tokens=20")
    os.makedirs("data/small_char")
    shutil.copy(os.path.join(prepared, "meta.pkl"), "data/small_char")
    assert expected == text_of(capsys, "ckpt.pt", "--max_new_tokens=20")
    assert expected == text_of(capsys, ".", "--max_new_tokens=20")


def test_wrapped_and_masked_states_are_read(tmp_path, trained, capsys):
    """A state with the prefixes of wrappers, or with nanoGPT's old masks, is the same model."""
    path = os.path.join(trained, "ckpt_00000020.pt")
    expected = text_of(capsys, path, "--max_new_tokens=20")
    payload = torch.load(path, weights_only=True)
    state = {f"module._orig_mod.{name}": value for name, value in payload["model"].items()}
    state["module._orig_mod.transformer.h.0.attn.bias"] = torch.ones(1, 1, 16, 16)
    torch.save(payload | {"model": state}, tmp_path / "other.pt")

    assert expected == text_of(capsys, str(tmp_path / "other.pt"), "--max_new_tokens=20")


def test_gpt2s_encoding_is_tiktokens(tmp_path, capsys, tiktoken):
    """A model of GPT-2's vocabulary, padded or not, speaks through it; padding tokens mean nothing and are left out."""
    for vocab_size in (50257, 50304):
        path = write_payload(tmp_path / f"{vocab_size}.pt", vocab_size)

        text = text_of(capsys, path, "--start=xyz", "--max_new_tokens=9")

        assert text.startswith("xyz")
        assert 3 + 9 + 1 == len(text)


def test_tokens_that_mean_nothing_are_left_out(tmp_path, capsys, tiktoken):
    """A model that likes nothing but padding writes nothing behind the start."""
    path = write_payload(tmp_path / "x.pt", 50304)
    payload = torch.load(path, weights_only=True)
    for state in payload["model"].values():
        state.zero_()  # blocks that add nothing
    payload["model"]["transformer.ln_f.weight"].fill_(1.0)
    payload["model"]["transformer.wpe.weight"].copy_(torch.arange(4) * 100.0)  # every position points one way,
    payload["model"]["lm_head.weight"].copy_(torch.arange(4) * 10.0)  # to the padding; away from all else
    payload["model"]["lm_head.weight"][:50257] *= -1
    torch.save(payload, path)

    assert "ab\n" == text_of(capsys, path, "--start=ab", "--top_k=40", "--max_new_tokens=5")


def test_without_tiktoken_it_says_what_to_install(tmp_path, capsys, monkeypatch):
    """No tokens are printed as if they were text."""
    monkeypatch.setitem(sys.modules, "tiktoken", None)

    line = complaint(capsys, 2, [write_payload(tmp_path / "x.pt", 50304)])

    assert "in GPT-2's encoding" in line
    assert "pip install tiktoken" in line


def test_without_the_network_it_says_so(tmp_path, capsys, monkeypatch, tiktoken):
    """tiktoken fetches its tables at the first use; where it cannot, the cure is named."""

    def offline(name):
        raise ConnectionError

    monkeypatch.setattr(tiktoken, "get_encoding", offline)

    line = complaint(capsys, 2, [write_payload(tmp_path / "x.pt", 50257)])

    assert "cannot get GPT-2's encoding (ConnectionError)" in line
    assert "TIKTOKEN_CACHE_DIR" in line


BAD_OPTIONS = {
    "no path": ([], ["CHECKPOINT_OR_DIR", "--help"]),
    "unknown": (["DIR", "--tempature=1"], ["--tempature=1", "--help"]),
    "abbreviated": (["DIR", "--temp=1"], ["--temp=1"]),
    "no count": (["DIR", "--max_new_tokens=many"], ["--max_new_tokens: must be a whole number from 1 on, not 'many'"]),
    "no tokens": (["DIR", "--max_new_tokens=0"], ["--max_new_tokens: must be a whole number from 1 on, not '0'"]),
    "no choice": (["DIR", "--top_k=0"], ["--top_k: must be a whole number from 1 on"]),
    "cold": (["DIR", "--temperature=0"], ["--temperature: must be above 0"]),
    "not a number": (["DIR", "--temperature=nan"], ["--temperature: must be above 0"]),
    "negative seed": (["DIR", "--seed=-1"], ["--seed: must be a whole number from 0 on"]),
    "strange start": (["DIR", "--start=dé"], ["--start: the model never saw 'é'", "begin with some of"]),
    "empty start": (["DIR", "--start="], ["--start: the text is empty"]),
    "missing start": (["DIR", "--start=FILE:/nowhere"], ["--start: /nowhere cannot be read"]),
    "missing path": (["/nowhere/x.pt"], ["/nowhere/x.pt: No such file", "name a snapshot"]),
    "missing data": (["DIR", "--data=/nowhere"], ["--data: /nowhere is not a folder"]),
    "no such device": (["DIR", "--device=cuda:77"], ["--device: cuda:77 cannot be used", "use cpu"]),
    "no device": (["DIR", "--device=gpu"], ["--device: gpu cannot be used", "use cpu"]),
}


@pytest.mark.parametrize("case", BAD_OPTIONS)
def test_a_bad_option_is_one_line(case, trained, capsys):
    """The line names the option and the cure; the status is 2."""
    arguments, fragments = BAD_OPTIONS[case]

    line = complaint(capsys, 2, [trained if one == "DIR" else one for one in arguments])

    assert line.startswith("sample: ")
    assert [] == [fragment for fragment in fragments if fragment not in line], line


def test_a_folder_without_a_good_snapshot_ends_with_3(tmp_path, capsys):
    """As `lastgood latest` does."""
    line = complaint(capsys, 3, [str(tmp_path)])

    assert f"no snapshot in {tmp_path} is healthy or intact; `lastgood list {tmp_path}`" in line


def test_a_file_that_is_something_else_is_named(tmp_path, capsys):
    """Neither a bare state nor another architecture is taken for a snapshot."""
    torch.save({"weight": torch.ones(2)}, tmp_path / "bare.pt")
    torch.save({"model": {"weight": torch.ones(2)}, "model_args": {"depth": 3}}, tmp_path / "other.pt")
    small = write_payload(tmp_path / "small.pt", 50304, model={"lm_head.weight": torch.ones(2, 2)})

    assert "bare.pt is not a snapshot of this trainer or of nanoGPT" in complaint(
        capsys, 2, [str(tmp_path / "bare.pt")]
    )
    assert "other.pt holds another kind of model: " in complaint(capsys, 2, [str(tmp_path / "other.pt")])
    assert "small.pt holds another kind of model: " in complaint(capsys, 2, [small])


def test_a_poisoned_snapshot_writes_nothing(run_dir, capsys):
    """Weights that are not numbers have nothing to say."""
    path = os.path.join(run_dir, "ckpt_00000020.pt")
    payload = torch.load(path, weights_only=True)
    payload["model"]["transformer.h.0.mlp.c_fc.weight"][0, 0] = float("nan")
    poisoned = os.path.join(run_dir, "poisoned.pt")
    torch.save(payload, poisoned)

    assert f"{poisoned} is poisoned: " in complaint(capsys, 3, [poisoned])


def test_nothing_in_a_snapshot_is_executed(tmp_path, capsys):
    """A pickle that would run something is refused by torch's reader of plain data."""

    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "sprung"),)

    path = write_payload(tmp_path / "x.pt", 50304, config=Trap())

    assert "torch will not load it" in complaint(capsys, 3, [path])
    assert not (tmp_path / "sprung").exists()


def test_a_meta_that_would_run_something_is_refused(tmp_path, capsys):
    """Nor is anything in the data's meta.pkl."""

    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "sprung"),)

    (tmp_path / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": Trap()}))

    line = complaint(capsys, 2, [write_payload(tmp_path / "x.pt", 65), f"--data={tmp_path}"])

    assert "meta.pkl cannot be read" in line
    assert not (tmp_path / "sprung").exists()


def test_a_reader_that_leaves_early_ends_it_quietly(trained):
    """`... | head` is no error, and the command is there as a module."""
    command = f"{sys.executable} -W error -m trainer.sample {trained} --max_new_tokens=20 --num_samples=50 | head -n 1"

    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, timeout=60)

    assert ("\n", 0) == (done.stdout, done.returncode)
    assert f"{trained}/ckpt_00000020.pt, step 20\n" == done.stderr
