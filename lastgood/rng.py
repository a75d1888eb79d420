"""Every random number generator's state, in a form that `torch.load(weights_only=True)` accepts.

Only tensors, numbers, text, lists and dictionaries: numpy's array becomes an int64 tensor, Python's tuple a list.
"""

import logging
import random
from typing import Any

log = logging.getLogger("lastgood")


def capture_rng_state() -> dict[str, Any]:
    """States of torch (CPU and every CUDA device), of numpy if it is installed, and of Python's `random`.

    Keys: `torch` (uint8 tensor), `cuda` (list of uint8 tensors), `numpy` (dict or None), `python` (list).
    Needs torch; raises ImportError without it.
    """
    import torch

    return {
        "torch": torch.get_rng_state(),
        "cuda": list(torch.cuda.get_rng_state_all()) if torch.cuda.is_available() else [],
        "numpy": _numpy_state(),
        "python": _python_state(),
    }


def _python_state() -> list[Any]:
    version, internal, gauss = random.getstate()
    return [version, list(internal), gauss]


def _numpy_state() -> dict[str, Any] | None:
    import torch

    try:
        import numpy as np
    except ImportError:
        return None
    algorithm, keys, position, has_gauss, cached = np.random.get_state()
    return {
        "algorithm": str(algorithm),
        "keys": torch.tensor([int(key) for key in keys], dtype=torch.int64),
        "position": int(position),
        "has_gauss": int(has_gauss),
        "cached_gaussian": float(cached),
    }


def restore_rng_state(state: dict[str, Any]) -> list[str]:
    """Put back what is there of what `capture_rng_state` took; returns the names of the generators restored.

    A CUDA state is put back only when as many devices are there as when it was taken: anything else would be another
    sequence under the same name. What is there and could not be put back is named in a warning of the log; what is not
    there, as in a salvaged snapshot, is not. Raises ImportError without torch, and what the generators raise for a state
    that is none of theirs.
    """
    there = [name for name in _RESTORE if state.get(name) is not None and len(state[name])]
    restored = [name for name in there if _RESTORE[name](state[name])]
    if lost := [name for name in there if name not in restored]:
        log.warning("not restored of the random generators: %s", ", ".join(lost))
    return restored


def _restore_torch(state: Any) -> bool:
    import torch

    torch.set_rng_state(state.cpu())
    return True


def _restore_cuda(state: list[Any]) -> bool:
    import torch

    if not torch.cuda.is_available() or len(state) != torch.cuda.device_count() or any(one is None for one in state):
        return False
    torch.cuda.set_rng_state_all([one.cpu() for one in state])
    return True


def _restore_numpy(state: dict[str, Any]) -> bool:
    try:
        import numpy as np
    except ImportError:
        return False
    if "keys" not in state:
        return False
    keys = np.array(state["keys"].tolist(), dtype=np.uint32)
    np.random.set_state((state["algorithm"], keys, state["position"], state["has_gauss"], state["cached_gaussian"]))
    return True


def _restore_python(state: list[Any]) -> bool:
    version, internal, gauss = state
    random.setstate((version, tuple(internal), gauss))
    return True


_RESTORE = {"torch": _restore_torch, "cuda": _restore_cuda, "numpy": _restore_numpy, "python": _restore_python}
