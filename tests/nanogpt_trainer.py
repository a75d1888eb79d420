"""A trainer that saves as nanoGPT does: one `ckpt.pt`, overwritten in place by a plain torch.save.

    python nanogpt_trainer.py [CONFIG.py] [--key=value]...

Keys and their meaning are nanoGPT's: out_dir, init_from (scratch or resume), eval_interval, log_interval, max_iters,
always_save_checkpoint, learning_rate. `width` is how large the model is, and `step_seconds` how long a step takes. It knows
nothing of lastgood, and notes its starts and its saves in `history.txt` in the folder it is started in.
"""

import ast
import os
import runpy
import sys
import time
from typing import Any

import torch

SETTINGS: dict[str, Any] = {
    "out_dir": "out",
    "init_from": "scratch",
    "eval_interval": 10,
    "log_interval": 1,
    "max_iters": 40,
    "always_save_checkpoint": True,
    "learning_rate": 0.001,
    "width": 64,
    "step_seconds": 0.02,
}


def settings() -> dict[str, Any]:
    """The defaults under what the words say, in their order: a word without a dash is a config file of assignments."""
    found = dict(SETTINGS)
    for word in sys.argv[1:]:
        if "=" not in word:
            assert not word.startswith("--")
            found.update({key: value for key, value in runpy.run_path(word).items() if key in found})
            continue
        key, text = word.split("=")
        key = key.removeprefix("--")
        assert word.startswith("--")
        if key not in found:
            raise ValueError(f"Unknown config key: {key}")
        try:
            value = ast.literal_eval(text)
        except (SyntaxError, ValueError):
            value = text
        assert type(value) is type(found[key])
        found[key] = value
    return found


def note(text: str) -> None:
    with open("history.txt", "a", encoding="utf-8") as file:
        file.write(text + "\n")


def main() -> None:
    """Train on noise."""
    chosen = settings()
    path = os.path.join(chosen["out_dir"], "ckpt.pt")
    os.makedirs(chosen["out_dir"], exist_ok=True)
    torch.manual_seed(1337)
    torch.set_num_threads(1)
    model = torch.nn.Linear(chosen["width"], chosen["width"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=chosen["learning_rate"])
    step, best = 0, 1e9
    if chosen["init_from"] == "resume":
        loaded = torch.load(path, map_location="cpu", weights_only=False)
        model.load_state_dict(loaded["model"])
        optimizer.load_state_dict(loaded["optimizer"])
        step, best = loaded["iter_num"], loaded["best_val_loss"]
    note(f"{chosen['init_from']} {step}")
    begun = step
    while True:
        if step % chosen["eval_interval"] == 0:
            with torch.no_grad():
                val = float(model(torch.randn(4, chosen["width"])).pow(2).mean())
            print(f"step {step}: train loss {val:.4f}, val loss {val:.4f}", flush=True)
            if val < best or chosen["always_save_checkpoint"]:
                best = val
                if step > 0:
                    whole = {
                        "model": model.state_dict(),
                        "optimizer": optimizer.state_dict(),
                        "model_args": {"width": chosen["width"]},
                        "iter_num": step,
                        "best_val_loss": best,
                        "config": chosen,
                    }
                    print(f"saving checkpoint to {chosen['out_dir']}", flush=True)
                    note(f"saving {step}")
                    torch.save(whole, path)
        loss = model(torch.randn(4, chosen["width"])).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        time.sleep(chosen["step_seconds"])
        if step % chosen["log_interval"] == 0:
            print(
                f"iter {step}: loss {loss.item():.4f}, time {chosen['step_seconds'] * 1000:.2f}ms, mfu 0.00%",
                flush=True,
            )
        step += 1
        if step > chosen["max_iters"]:
            break
    assert step > begun


if __name__ == "__main__":
    main()
