"""The text a model is trained on: prepared once, read as batches.

Prepared data is nanoGPT's: `train.bin` and `val.bin` (tokens as uint16), `meta.pkl`, and beside it the same
as `meta.json`, which is what this module reads. A folder is published by rename: it is complete or absent.

The order of batches is a pure function of (seed, step, micro-step). It never touches a global random
generator, so neither evaluation nor a restart changes what a step is trained on.
"""

import hashlib
import json
import os
import pickle
import platform
import secrets
import shutil
import stat
import sysconfig
from typing import Any

import numpy as np
import torch

from trainer.distributed import say
from trainer.settings import Settings, UsageError

PARTS = ("train.bin", "val.bin")
CONTENT = f"a prepared folder holds {' and '.join(PARTS)}"
METAS = {"meta.json": json.load, "meta.pkl": lambda file: PlainUnpickler(file).load()}  # the first that is there counts
STDLIB_CHARACTERS = 4_000_000  # enough for a small model, prepared in about a second
SKIPPED_FOLDERS = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}
SKIPPED_FOLDERS |= {"encodings", "pydoc_data"}  # tables rather than text
TRAIN_SHARE = 0.9  # the rest, the end of the text, is for evaluation
TOKENS_MAX = 2**16  # a token is a uint16
GPT2_VOCABULARY = 50257  # tokens of GPT-2's encoding, which data without a meta file is in
DIGEST_WHOLE_BYTES = 256 * 2**20  # larger data is digested by sample, or a restart would take too long
DIGEST_SAMPLES = 64
DIGEST_SAMPLE_BYTES = 2**20


def prepare(settings: Settings) -> str:
    """The folder of prepared data for these settings; made now if it is not there yet."""
    if os.path.isdir(settings.data):
        return settings.data
    if settings.data == "stdlib":
        folder = os.path.join(settings.data_dir, f"stdlib-{platform.python_version()}")
        if not os.path.isdir(folder):
            publish(folder, stdlib_text(), f"standard library of Python {platform.python_version()}")
        return folder
    text = read_text(settings.data)
    stem = os.path.splitext(os.path.basename(settings.data))[0]
    digest = hashlib.sha256(text.encode()).hexdigest()
    folder = os.path.join(settings.data_dir, f"{stem}-{digest[:8]}")
    if not os.path.isdir(folder):
        publish(folder, text, os.path.basename(settings.data))
    return folder


def read_text(path: str) -> str:
    """A text file as it is, line ends included."""
    try:
        with open(path, encoding="utf-8", newline="") as file:
            return file.read()
    except FileNotFoundError:
        cure = "give stdlib, a text file, or a folder with train.bin and val.bin, as nanoGPT's prepare.py makes them"
        raise UsageError("data", f"{path} does not exist; {cure}") from None
    except UnicodeDecodeError:
        raise UsageError("data", f"{path} is not UTF-8 text; convert it first") from None
    except OSError as error:
        raise UsageError("data", f"{path}: {error.strerror}; give a file that can be read") from None


def stdlib_text() -> str:
    """The ASCII lines of this Python's own modules, STDLIB_CHARACTERS of them."""
    root = sysconfig.get_path("stdlib")
    pieces: list[str] = []
    length = 0
    for path in stdlib_paths(root):
        if length >= STDLIB_CHARACTERS:
            break
        try:
            with open(os.path.join(root, path), encoding="utf-8") as file:
                piece = "".join(line for line in file if line.isascii())
        except (OSError, UnicodeDecodeError):
            continue  # a module in another encoding is not worth a guess
        pieces.append(piece)
        length += len(piece)
    if not length:
        raise UsageError("data", f"{root} holds no source text; give a text file with data: PATH")
    return "".join(pieces)[:STDLIB_CHARACTERS]


def stdlib_paths(root: str) -> list[str]:
    """Relative paths of the *.py files below a folder, sorted; tests and installed packages are left out."""
    paths = []
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = [name for name in subfolders if name not in SKIPPED_FOLDERS]
        paths += [os.path.relpath(os.path.join(folder, name), root) for name in names if name.endswith(".py")]
    return sorted(paths)


def publish(folder: str, text: str, source: str) -> None:
    """Encode a text by character and publish the folder by rename; of two at once the first one wins."""
    vocabulary = sorted(set(text))
    if not 0 < len(vocabulary) <= TOKENS_MAX:
        problem = f"{source} has {len(vocabulary)} different characters; between 1 and {TOKENS_MAX} will do"
        raise UsageError("data", problem)
    stoi = {character: token for token, character in enumerate(vocabulary)}
    meta = {"vocab_size": len(vocabulary), "itos": dict(enumerate(vocabulary)), "stoi": stoi}
    tokens = np.fromiter(map(stoi.__getitem__, text), dtype=np.uint16, count=len(text))
    cut = int(len(tokens) * TRAIN_SHARE)
    parts = {
        "train.bin": tokens[:cut].tobytes(),
        "val.bin": tokens[cut:].tobytes(),
        "meta.pkl": pickle.dumps(meta),
    }
    name = f".{os.path.basename(folder)}.partial-{os.getpid()}-{secrets.token_hex(4)}"
    partial = os.path.join(os.path.dirname(folder), name)
    try:
        os.makedirs(partial)
        for part, content in parts.items():
            write_durably(os.path.join(partial, part), content)
        meta |= {"source": source, "python": platform.python_version(), "digest": digest_of(partial)}
        write_durably(os.path.join(partial, "meta.json"), json.dumps(meta).encode())
        sync_folder(partial)
        os.rename(partial, folder)
        sync_folder(os.path.dirname(folder))
    except OSError as error:
        if not os.path.isdir(folder):
            problem = f"{folder} cannot be written ({error.strerror})"
            raise UsageError("data_dir", f"{problem}; choose another") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def write_durably(path: str, content: bytes) -> None:
    """A new file whose bytes have reached the disk."""
    with open(path, "xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(path: str) -> None:
    """Names in a folder reach the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def digest_of(folder: str) -> str:
    """What the tokens are, in one short text: their SHA-256; of very large files that of samples."""
    digest = hashlib.sha256()
    for name in PARTS:
        path = os.path.join(folder, name)
        try:
            with open(path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                digest.update(f"{name} {size}\n".encode())
                for start, length in places(size):
                    file.seek(start)
                    digest.update(file.read(length))
        except OSError as error:
            raise unreadable(path, error) from None
    return digest.hexdigest()


def places(size: int) -> list[tuple[int, int]]:
    """Where a file of `size` bytes is looked at, as (start, length): all of it; if very large, samples spread evenly."""
    if size <= DIGEST_WHOLE_BYTES:
        return [(0, size)]
    room = size - DIGEST_SAMPLE_BYTES
    return [(room * sample // (DIGEST_SAMPLES - 1), DIGEST_SAMPLE_BYTES) for sample in range(DIGEST_SAMPLES)]


def open_data(folder: str, block_size: int) -> tuple[dict[str, np.ndarray], int, str]:
    """Tokens by split (read from disk as needed), the size of the vocabulary, the digest of the tokens."""
    splits = {name.removesuffix(".bin"): open_tokens(os.path.join(folder, name), block_size) for name in PARTS}
    meta = read_meta(folder)
    if not meta:
        say(f"{folder} has no meta file: its tokens are taken for those of GPT-2's encoding")
    vocabulary = meta.get("vocab_size", GPT2_VOCABULARY)
    digest = digest_of(folder)  # read before the maps are: through those, a disk's error is a signal
    for split, tokens in splits.items():
        greatest = greatest_of(tokens)
        if greatest >= vocabulary:
            problem = f"{folder}/{split}.bin holds token {greatest} of a vocabulary of {vocabulary}"
            raise UsageError("data", f"{problem}; prepare the data again")
    if meta.get("digest", digest) != digest:
        raise UsageError("data", f"{folder} is not as it was prepared; delete it and it is made again")
    return splits, vocabulary, digest


def open_tokens(path: str, block_size: int) -> np.ndarray:
    """The tokens in a file, mapped into memory."""
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            raise UsageError("data", f"{path} is not a file; {CONTENT}")
        count = status.st_size // 2
        if count == 0:
            raise UsageError("data", f"{path} holds no tokens; {CONTENT}")
        if count <= block_size:
            raise UsageError("block_size", f"{block_size} is not less than the {count} tokens of {path}; lower it")
        return np.memmap(path, dtype=np.uint16, mode="r", shape=(count,))
    except OSError as error:
        raise unreadable(path, error) from None


def unreadable(path: str, error: OSError) -> UsageError:
    """What to say when the system refuses a file of prepared data."""
    if isinstance(error, FileNotFoundError):
        return UsageError("data", f"{path} does not exist; {CONTENT}")
    reason = error.strerror or type(error).__name__
    return UsageError("data", f"{path}: {reason}; make it readable, or give another folder")


def greatest_of(tokens: np.ndarray) -> int:
    """The greatest token at the places that are looked at."""
    return max(int(tokens[start // 2 : (start + length) // 2].max()) for start, length in places(tokens.nbytes))


def read_meta(folder: str) -> dict[str, Any]:
    """What was noted about a folder's tokens when it was prepared; empty if nothing was. `vocab_size` is checked."""
    for name, parse in METAS.items():
        path = os.path.join(folder, name)
        try:
            with open(path, "rb") as file:
                meta = parse(file)
            vocabulary = meta["vocab_size"]
        except FileNotFoundError:
            continue
        except OSError as error:
            raise unreadable(path, error) from None
        except KeyError:
            raise UsageError("data", f"{path} has no vocab_size; prepare the data again") from None
        except Exception as error:  # noqa: BLE001 - a damaged pickle can raise anything at all
            problem = f"{path} cannot be read ({type(error).__name__})"
            raise UsageError("data", f"{problem}; prepare the data again") from None
        if type(vocabulary) is not int or not 0 < vocabulary <= TOKENS_MAX:
            raise UsageError("data", f"{path}: vocab_size is {vocabulary!r}; it must be 1 to {TOKENS_MAX}")
        return dict(meta)
    return {}


def characters_of(folder: str) -> str | None:
    """The characters that the tokens stand for, in their order; None where a token is not a character."""
    meta = read_meta(folder)
    tokens = meta.get("stoi")
    if not isinstance(tokens, dict):
        return None
    pairs = [(token, one) for one, token in tokens.items() if isinstance(one, str) and isinstance(token, int)]
    characters = {token: character for token, character in pairs if len(character) == 1}
    if characters.keys() != set(range(meta["vocab_size"])):
        return None
    return "".join(characters[token] for token in range(meta["vocab_size"]))


class PlainUnpickler(pickle.Unpickler):
    """Reads numbers, texts and dicts, and refuses everything a pickle could execute."""

    def find_class(self, module: str, name: str) -> Any:
        """Never give a pickle anything to call."""
        raise pickle.UnpicklingError(f"{module}.{name} is not plain data")


def batch_seed(seed: int, split: str, *position: int) -> int:
    """A seed of 63 bits for one batch; neighbouring positions have nothing in common."""
    text = f"{seed} {split} {' '.join(map(str, position))}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def batch(tokens: np.ndarray, size: int, block_size: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """`size` random stretches of the tokens, and the same one further on: int64, (size, block_size)."""
    generator = torch.Generator().manual_seed(seed)
    starts = torch.randint(len(tokens) - block_size, (size,), generator=generator).tolist()
    stretches = torch.from_numpy(np.stack([tokens[i : i + block_size + 1] for i in starts]).astype(np.int64))
    return stretches[:, :-1].contiguous(), stretches[:, 1:].contiguous()
