"""Data: prepared once and whole, the same every time; batches that depend on nothing but their position."""

import errno
import io
import json
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from trainer import data
from trainer.settings import UsageError


@pytest.fixture
def folder(tmp_path):
    """Where prepared data is to appear."""
    return str(tmp_path / "data" / "prepared")


def content(folder):
    """Every file of a folder as {name: bytes}."""
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def bare(folder, tokens, meta=None):
    """A folder as nanoGPT leaves it: tokens, and perhaps a pickled meta."""
    os.makedirs(folder)
    for name in ("train.bin", "val.bin"):
        np.array(tokens, dtype=np.uint16).tofile(os.path.join(folder, name))
    if meta is not None:
        with open(os.path.join(folder, "meta.pkl"), "wb") as file:
            file.write(meta)


def test_published_data_is_nanogpts(folder):
    """90 % for training, the rest for evaluation, tokens in order of the characters, meta in both forms."""
    data.publish(folder, "abcabcabca" * 2, "ten letters twice")

    splits, vocab_size, _ = data.open_data(folder, 1)
    files = content(folder)
    plain = pickle.loads(files["meta.pkl"])
    assert {"train.bin", "val.bin", "meta.pkl", "meta.json"} == set(files)
    assert [0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 0, 1, 2, 0, 1, 2, 0, 1] == splits["train"].tolist()
    assert [2, 0] == splits["val"].tolist()
    assert 3 == vocab_size
    assert {"vocab_size": 3, "itos": {0: "a", 1: "b", 2: "c"}, "stoi": {"a": 0, "b": 1, "c": 2}} == plain
    assert "ten letters twice" == json.loads(files["meta.json"])["source"]


def test_the_same_text_gives_the_same_bytes(tmp_path):
    """Prepared twice, in different places: equal files, meta included."""
    for name in ("one", "two"):
        data.publish(str(tmp_path / name), "some text, the same twice", "text")

    assert content(tmp_path / "one") == content(tmp_path / "two")


def test_the_library_text_is_plain_and_repeatable(monkeypatch):
    """Two reads agree; only ASCII is in it, and no tests or tables."""
    monkeypatch.setattr(data, "STDLIB_CHARACTERS", 200_000)

    text = data.stdlib_text()

    assert text == data.stdlib_text()
    assert 200_000 == len(text)
    assert text.isascii()
    paths = data.stdlib_paths(data.sysconfig.get_path("stdlib"))
    assert [] == [path for path in paths if data.SKIPPED_FOLDERS & set(path.split("/"))]
    assert {"argparse.py", "json/decoder.py"} <= set(paths)


@pytest.mark.parametrize("cut", ["train.bin", "val.bin", "meta.pkl", "meta.json"])
def test_a_preparation_cut_short_leaves_nothing(cut, folder, monkeypatch):
    """Neither a half folder under the final name nor a partial beside it, whichever write fails."""
    real = data.write_durably

    def write_durably(path, content):
        if path.endswith(cut):
            raise OSError(28, "No space left on device")
        real(path, content)

    monkeypatch.setattr(data, "write_durably", write_durably)

    with pytest.raises(UsageError, match=r"data_dir: .*No space left on device"):
        data.publish(folder, "text", "text")
    assert [] == os.listdir(os.path.dirname(folder))


def test_of_two_preparations_at_once_the_first_wins(folder, monkeypatch):
    """The second finds the name taken at its rename, uses what is there, and leaves no partial."""
    real = os.rename

    def rename(source, target):
        monkeypatch.setattr(os, "rename", real)
        data.publish(folder, "first", "first")
        real(source, target)

    monkeypatch.setattr(os, "rename", rename)

    data.publish(folder, "second", "second")

    assert ["prepared"] == os.listdir(os.path.dirname(folder))
    assert "first" == json.loads(content(folder)["meta.json"])["source"]
    assert {"train", "val"} == set(data.open_data(folder, 0)[0])


def test_a_text_file_is_prepared_once_under_its_digest(tmp_path, settings):
    """Another text of the same name gets a folder of its own; the same text reuses what is there."""
    text = tmp_path / "poem.txt"
    chosen = settings(data=str(text), data_dir=str(tmp_path / "data"))
    text.write_text("roses are red " * 9)
    first = data.prepare(chosen)
    made = os.stat(os.path.join(first, "train.bin")).st_mtime_ns

    again = data.prepare(chosen)
    text.write_text("violets are blue " * 9)
    other = data.prepare(chosen)

    assert first == again
    assert made == os.stat(os.path.join(again, "train.bin")).st_mtime_ns
    assert first != other
    assert os.path.basename(first).startswith("poem-")


def test_a_text_keeps_its_line_ends(tmp_path, settings):
    """A carriage return is a character like any other."""
    text = tmp_path / "dos.txt"
    text.write_bytes(b"a\r\nb\n" * 9)

    folder = data.prepare(settings(data=str(text), data_dir=str(tmp_path / "data")))

    assert ["\n", "\r", "a", "b"] == sorted(json.loads(content(folder)["meta.json"])["stoi"])


@pytest.mark.parametrize(("text", "problem"), [(b"\xff\xfe\xfd", "not UTF-8"), (b"", "0 different characters")])
def test_a_file_without_text_is_refused(text, problem, tmp_path, settings):
    """Bytes that are no text, and no bytes at all."""
    path = tmp_path / "bad.txt"
    path.write_bytes(text)

    with pytest.raises(UsageError, match=problem):
        data.prepare(settings(data=str(path), data_dir=str(tmp_path / "data")))


def test_a_folder_of_nanogpt_with_a_pickle_is_read(folder):
    """Its meta.pkl holds plain data, and that is all that is read."""
    bare(folder, [0, 1, 2, 3], pickle.dumps({"vocab_size": 65, "itos": {0: "a"}, "stoi": {"a": 0}}))

    assert 65 == data.open_data(folder, 2)[1]


def test_a_pickle_that_would_run_something_is_refused(folder, tmp_path):
    """Nothing in a meta.pkl is ever called."""

    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "sprung"),)

    bare(folder, [0, 1], pickle.dumps({"vocab_size": Trap()}))

    with pytest.raises(UsageError, match=r"meta\.pkl cannot be read"):
        data.open_data(folder, 1)
    assert not (tmp_path / "sprung").exists()


def test_a_folder_without_meta_has_gpt2s_vocabulary(folder, capsys):
    """Byte-pair data of nanoGPT comes without one; what is assumed is said."""
    bare(folder, [50256, 1, 2])

    assert 50257 == data.open_data(folder, 1)[1]
    assert "taken for those of GPT-2's encoding" in capsys.readouterr().out


def test_the_characters_behind_the_tokens_are_known(folder):
    """Of a folder prepared here, and of one by nanoGPT, which has only meta.pkl."""
    data.publish(folder, "cabbage" * 10, "letters")
    assert "abceg" == data.characters_of(folder)

    os.remove(os.path.join(folder, "meta.json"))
    assert "abceg" == data.characters_of(folder)


@pytest.mark.parametrize(
    "meta",
    [
        None,
        {"vocab_size": 3},
        {"vocab_size": 3, "stoi": {"a": 0, "b": 1}},
        {"vocab_size": 2, "stoi": {"a": 0, "b": 2}},
        {"vocab_size": 2, "stoi": {"a": 0, "the": 1}},
        {"vocab_size": 2, "stoi": ["a", "b"]},
        {"vocab_size": 2, "stoi": {"a": 0, "b": [1]}},
    ],
)
def test_tokens_that_are_no_characters_are_not_taken_for_some(meta, folder):
    """Where one is missing or longer, or nothing was noted, nobody guesses."""
    bare(folder, [0, 1], *([pickle.dumps(meta)] if meta else []))

    assert data.characters_of(folder) is None


BAD_METAS = {
    "no vocabulary": (b"}.", "has no vocab_size"),
    "not a pickle": (b"hello", "cannot be read"),
    "empty": (b"", "cannot be read"),
    "a list": (b"].", "cannot be read"),
    "a text": (pickle.dumps({"vocab_size": "many"}), "vocab_size is 'many'"),
    "too small": (pickle.dumps({"vocab_size": 2}), "holds token 3 of a vocabulary of 2"),
}


@pytest.mark.parametrize("case", BAD_METAS)
def test_a_bad_meta_is_named(case, folder):
    """Whatever is wrong with it, the person learns which file and what."""
    meta, problem = BAD_METAS[case]
    bare(folder, [0, 1, 2, 3], meta)

    with pytest.raises(UsageError, match=problem):
        data.open_data(folder, 1)


def test_a_missing_part_is_named(folder):
    """A folder without val.bin is not prepared data."""
    bare(folder, [0, 1])
    os.remove(os.path.join(folder, "val.bin"))

    with pytest.raises(UsageError, match=r"val\.bin does not exist"):
        data.open_data(folder, 1)


def test_changed_tokens_are_noticed(folder):
    """Prepared data whose bytes are no longer those of its meta.json would make another run."""
    data.publish(folder, "abab" * 10, "letters")
    with open(os.path.join(folder, "train.bin"), "r+b") as file:
        file.write(b"\x01\x00")

    with pytest.raises(UsageError, match="not as it was prepared; delete it"):
        data.open_data(folder, 1)


def test_large_data_is_digested_by_sample(folder, monkeypatch):
    """The sampled digest still covers both ends, and the size."""
    bare(folder, range(1000))
    monkeypatch.setattr(data, "DIGEST_WHOLE_BYTES", 100)
    monkeypatch.setattr(data, "DIGEST_SAMPLE_BYTES", 10)
    digests = {data.digest_of(folder)}

    for position in (0, 1999):
        with open(os.path.join(folder, "train.bin"), "r+b") as file:
            file.seek(position)
            file.write(b"\x77")
        digests.add(data.digest_of(folder))

    assert 3 == len(digests)


def test_the_digest_of_large_data_stays_as_it_is(folder, monkeypatch):
    """Snapshots hold it: were it computed another way, none of them would be gone on from exactly."""
    bare(folder, range(1000))
    monkeypatch.setattr(data, "DIGEST_WHOLE_BYTES", 100)
    monkeypatch.setattr(data, "DIGEST_SAMPLE_BYTES", 10)

    assert "b4e474ce7d3edca9c0460f3b532194eb2af9eb05ed28cebb16280319832c6b56" == data.digest_of(folder)


@pytest.mark.parametrize("places", [range(1000), [0], [999]], ids=["everywhere", "first", "last"])
def test_large_data_of_another_vocabulary_is_refused(places, folder, monkeypatch):
    """Too large to be read whole, it is looked at where its digest is taken, both ends among that."""
    tokens = np.zeros(1000, dtype=np.uint16)
    tokens[places] = 65
    bare(folder, tokens, pickle.dumps({"vocab_size": 65}))
    monkeypatch.setattr(data, "DIGEST_WHOLE_BYTES", 100)
    monkeypatch.setattr(data, "DIGEST_SAMPLE_BYTES", 10)

    with pytest.raises(
        UsageError, match=r"^data: .*/train\.bin holds token 65 of a vocabulary of 65; prepare the data"
    ):
        data.open_data(folder, 1)


def test_large_data_is_not_read_whole(folder, monkeypatch):
    """A restart has no time for it: what lies between the samples is not looked at."""
    tokens = np.zeros(1000, dtype=np.uint16)
    tokens[10] = 65
    bare(folder, tokens, pickle.dumps({"vocab_size": 65}))
    monkeypatch.setattr(data, "DIGEST_WHOLE_BYTES", 100)
    monkeypatch.setattr(data, "DIGEST_SAMPLE_BYTES", 10)

    assert 65 == data.open_data(folder, 1)[1]


class Unreadable(io.FileIO):
    """A file on a disk with bad sectors: it can be opened."""

    def read(self, *size):
        """The system's word for it."""
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    readinto = read


@pytest.mark.parametrize("code", [errno.EACCES, errno.EIO], ids=errno.errorcode.get)
@pytest.mark.parametrize("name", ["train.bin", "val.bin", "meta.json", "meta.pkl"])
def test_a_file_that_cannot_be_read_is_one_line(name, code, folder, monkeypatch):
    """It has the path, the system's words and the cure, whether opening or reading is what fails."""
    data.publish(folder, "abcabcabca" * 2, "letters")
    if name == "meta.pkl":
        os.remove(os.path.join(folder, "meta.json"))
    real = open

    def refuse(path, *mode, **options):
        if os.path.basename(path) != name:
            return real(path, *mode, **options)
        if code == errno.EIO:
            return Unreadable(path)
        raise OSError(code, os.strerror(code), path)

    monkeypatch.setattr("builtins.open", refuse)

    with pytest.raises(UsageError) as refused:
        data.open_data(folder, 1)
    words = f"{folder}/{name}: {os.strerror(code)}; make it readable, or give another folder"
    assert f"data: {words}" == str(refused.value)


def test_a_file_that_cannot_even_be_looked_up_is_one_line(folder, monkeypatch):
    """A folder that may not be entered is not said to lack its files."""
    bare(folder, [0, 1])

    real = os.stat

    def refuse(path, **options):
        if os.path.dirname(path) == folder:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return real(path, **options)

    monkeypatch.setattr(os, "stat", refuse)

    with pytest.raises(UsageError, match=r"train\.bin: Permission denied; make it readable"):
        data.open_data(folder, 1)


@pytest.mark.parametrize("name", ["train.bin", "val.bin"])
@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_what_is_no_file_is_named(make, name, folder):
    """A folder or a pipe in the place of the tokens is refused, and not waited for."""
    bare(folder, [0, 1])
    os.remove(os.path.join(folder, name))
    make(os.path.join(folder, name))

    with pytest.raises(UsageError, match=rf"{name} is not a file; a prepared folder holds train\.bin and val\.bin"):
        data.open_data(folder, 1)


def test_the_block_must_fit_the_data(folder):
    """A sequence and the token behind it have to exist."""
    bare(folder, [0, 1, 2, 3])

    data.open_data(folder, 3)
    with pytest.raises(UsageError, match="block_size: 4 is not less than the 4 tokens"):
        data.open_data(folder, 4)


def test_a_batch_is_a_function_of_its_seed_alone():
    """Global random numbers neither change it nor are changed by it."""
    tokens = np.arange(1000, dtype=np.uint16)
    torch.manual_seed(1)
    first = data.batch(tokens, 4, 8, 77)
    torch.manual_seed(2)
    state = torch.get_rng_state()

    second = data.batch(tokens, 4, 8, 77)

    assert torch.equal(first[0], second[0])
    assert torch.equal(first[1], second[1])
    assert torch.equal(state, torch.get_rng_state())


def test_targets_are_the_next_tokens():
    """Every target is the token after its input; both have (batch, block) of int64."""
    inputs, targets = data.batch(np.arange(1000, dtype=np.uint16), 4, 8, 5)

    assert ((4, 8), torch.int64) == (tuple(inputs.shape), inputs.dtype)
    assert torch.equal(inputs + 1, targets)


def test_every_start_can_be_drawn():
    """The first and the last possible sequence are among the batches: nothing at the ends is left out."""
    tokens = np.arange(10, dtype=np.uint16)

    starts = {row[0].item() for seed in range(40) for row in data.batch(tokens, 4, 7, seed)[0]}

    assert {0, 1, 2} == starts


def test_seeds_of_batches_differ_by_position():
    """Seed, split, step and micro-step each change it, and it fits what torch takes."""
    positions = [
        (1, "train", 1, 0),
        (2, "train", 1, 0),
        (1, "eval train", 1, 0),
        (1, "train", 2, 0),
        (1, "train", 1, 1),
    ]
    positions += [(1, "train", 11, 0), (1, "train", 1, 10)]

    seeds = {data.batch_seed(*position) for position in positions}

    assert len(positions) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)
