"""`python -m trainer.sample CHECKPOINT_OR_DIR`: text from a snapshot, verified first; of a folder the newest healthy one.

Text goes to stdout, talk to stderr. It reads this trainer's snapshots and nanoGPT's. The same seed, on the same machine,
gives the same text.
"""

import argparse
import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

from lastgood import latest_healthy
from lastgood.checkpoint import load_verified
from lastgood.payload import load_plain_state_dict
from trainer.settings import EXIT_NO_SNAPSHOT, EXIT_USAGE, NoSnapshotError, UsageError

GPT2_VOCABULARIES = (50257, 50304)  # of GPT-2's encoding: exactly, and rounded up
SEPARATOR = "---------------"  # between samples, as in nanoGPT


class Options(argparse.ArgumentParser):
    """A command line whose mistakes are one line."""

    def error(self, message: str) -> NoReturn:
        """Carry the problem to where every other one is told."""
        raise UsageError("", f"{message}; --help lists the options")


@dataclass(frozen=True)
class Encoding:
    """How a text becomes tokens, and tokens become a text; tokens that mean nothing are left out."""

    encode: Callable[[str], list[int]]
    decode: Callable[[list[int]], str]
    newline: str  # a start for those who give none


def main(arguments: list[str]) -> int:
    """Run the command and give its exit status; whatever is wrong is one line on stderr."""
    try:
        options = read_options(arguments)
        for number, text in enumerate(samples(options)):
            if number:
                print(SEPARATOR)
            print(text, flush=True)
    except (UsageError, NoSnapshotError) as error:
        print(f"sample: {error}", file=sys.stderr)
        return EXIT_USAGE if isinstance(error, UsageError) else EXIT_NO_SNAPSHOT
    except ModuleNotFoundError as error:
        print(f"sample: {error}; install it with: pip install 'lastgood[trainer]'", file=sys.stderr)
        return EXIT_USAGE
    return 0


def read_options(arguments: list[str]) -> Any:
    """What to write, from which snapshot; the names are nanoGPT's."""
    parser = Options(
        prog="python -m trainer.sample", description="Write text with a trained model.", allow_abbrev=False
    )
    parser.add_argument("path", metavar="CHECKPOINT_OR_DIR", help="a snapshot, or a folder of them")
    parser.add_argument(
        "--start", metavar="TEXT", help="what the text goes on from, or FILE:PATH; default a line break"
    )
    parser.add_argument("--num_samples", type=at_least(1), default=1, metavar="N", help="texts to write; default 1")
    parser.add_argument("--max_new_tokens", type=at_least(1), default=500, metavar="N", help="tokens; default 500")
    parser.add_argument("--temperature", type=float, default=0.8, help="below 1 is tamer; default 0.8")
    parser.add_argument(
        "--top_k", type=at_least(1), default=200, metavar="N", help="likeliest to draw from; default 200"
    )
    parser.add_argument("--seed", type=at_least(0), default=1337, help="of what is drawn; default 1337")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N; default cpu")
    parser.add_argument(
        "--data", metavar="DIR", help="prepared data it was trained on, where the snapshot does not say"
    )
    options = parser.parse_args(arguments)
    if not options.temperature > 0:
        parser.error(f"argument --temperature: must be above 0, not {options.temperature}")
    return options


def at_least(least: int) -> Callable[[str], int]:
    """Reads a whole number and refuses smaller ones."""

    def read(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"must be a whole number from {least} on, not {text!r}")
        return int(text)

    return read


def samples(options: Any) -> Iterator[str]:
    """The texts, each as soon as it is written."""
    path, payload = open_snapshot(options.path)
    model = model_of(path, payload, options.device)
    encoding = encoding_of(path, payload, options.data, model.args.vocab_size)
    start = encoding.encode(encoding.newline if options.start is None else text_of(options.start))
    print(f"{path}, step {payload.get('iter_num', 'unknown')}", file=sys.stderr, flush=True)
    import torch

    generator = torch.Generator(options.device).manual_seed(options.seed % 2**63)
    tokens = torch.tensor([start], device=options.device)
    for _ in range(options.num_samples):
        drawn = model.generate(tokens, options.max_new_tokens, options.temperature, options.top_k, generator)
        yield encoding.decode(drawn[0].tolist())


def open_snapshot(path: str) -> tuple[str, dict[str, Any]]:
    """The snapshot's own path and its payload, its bytes proven first."""
    try:
        chosen = latest_healthy(path) if os.path.isdir(path) else path
        if chosen is None:
            problem = f"no snapshot in {path} is healthy or intact"
            raise NoSnapshotError(f"{problem}; `lastgood list {path}` says what is there")
        payload = load_verified(chosen)
    except OSError as error:
        raise UsageError("", f"{path}: {error.strerror}; name a snapshot, or a folder of them") from None
    except RuntimeError as error:
        raise NoSnapshotError(" ".join(str(error).split())) from None
    if not (isinstance(payload, dict) and {"model", "model_args"} <= payload.keys()):
        raise UsageError("", f"{chosen} is not a snapshot of this trainer or of nanoGPT; name one")
    return os.fspath(chosen), payload


def text_of(start: str) -> str:
    """The start as it was given, or what is in the file it names."""
    if not start.startswith("FILE:"):
        return start
    path = start.removeprefix("FILE:")
    try:
        with open(path, encoding="utf-8", newline="") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError("--start", f"{path} cannot be read as text ({type(error).__name__}); name another") from None


def model_of(path: str, payload: dict[str, Any], device: str) -> Any:
    """The snapshot's model on a device, ready to generate."""
    from trainer.model import GPT, ModelArgs, without_masks

    try:
        model = GPT(ModelArgs(**payload["model_args"]))
        load_plain_state_dict(model, without_masks(payload["model"]))
    except (RuntimeError, TypeError, ValueError, AttributeError) as error:
        reason = " ".join(str(error).split())
        raise UsageError("", f"{path} holds another kind of model: {reason}; name another snapshot") from None
    if not all(parameter.isfinite().all() for parameter in model.parameters()):
        raise NoSnapshotError(f"{path} is poisoned: not all of its weights are finite; name an older snapshot")
    try:
        return model.eval().to(device)
    except (RuntimeError, AssertionError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UsageError("--device", f"{device} cannot be used: {reason}; use cpu") from None


def encoding_of(path: str, payload: dict[str, Any], folder: str | None, known: int) -> Encoding:
    """What the model's tokens, `known` of them, mean: said by the snapshot, or else by the data it was trained on."""
    characters = payload.get("vocabulary") if folder is None else None
    dataset = str(payload.get("config", {}).get("dataset", ""))
    if not characters:
        from trainer.data import characters_of

        places = [folder] if folder else [dataset, os.path.join("data", dataset)] if dataset else []
        found = [place for place in places if os.path.isdir(place)]
        if folder and not found:
            raise UsageError("--data", f"{folder} is not a folder; name the one with meta.pkl")
        characters = characters_of(found[0]) if found else None
    if characters and len(characters) <= known:
        return by_character(characters)
    if known not in GPT2_VOCABULARIES:
        gone = (
            f"{path} does not hold its {known} characters, and {dataset or 'its data'} does not either, or is not here"
        )
        raise UsageError("--data", f"{gone}; name the folder with its meta.pkl")
    return gpt2_encoding()


def by_character(characters: str) -> Encoding:
    """A token is the place of its character."""
    places = {character: token for token, character in enumerate(characters)}

    def encode(text: str) -> list[int]:
        strange = next((character for character in text if character not in places), None)
        if strange is not None or not text:
            problem = f"the model never saw {strange!r}" if text else "the text is empty"
            raise UsageError("--start", f"{problem}; begin with some of {characters!r}")
        return [places[character] for character in text]

    def decode(tokens: list[int]) -> str:
        return "".join(characters[token] for token in tokens if token < len(characters))

    return Encoding(encode, decode, "\n" if "\n" in places else characters[0])


def gpt2_encoding() -> Encoding:
    """GPT-2's byte pairs, by tiktoken."""
    try:
        import tiktoken
    except ModuleNotFoundError:
        problem = "this model's text is in GPT-2's encoding, which tiktoken reads, and that is not installed"
        raise UsageError("", f"{problem}; install it with: pip install tiktoken") from None
    try:
        pairs = tiktoken.get_encoding("gpt2")
    except Exception as error:  # noqa: BLE001 - it downloads its tables, and whatever that needs may fail
        problem = f"tiktoken cannot get GPT-2's encoding ({type(error).__name__})"
        raise UsageError("", f"{problem}; go online once, or name a folder that has it in TIKTOKEN_CACHE_DIR") from None

    def encode(text: str) -> list[int]:
        if not text:
            raise UsageError("--start", "the text is empty; begin with '<|endoftext|>' for any text")
        return list(pairs.encode(text, allowed_special={"<|endoftext|>"}))

    def decode(tokens: list[int]) -> str:
        return str(pairs.decode([token for token in tokens if token < pairs.n_vocab]))

    return Encoding(encode, decode, "\n")


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `... | head` ends it without a word
    signal.signal(signal.SIGINT, lambda number, _: sys.exit(128 + number))
    sys.exit(main(sys.argv[1:]))
