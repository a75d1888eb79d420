"""Every random number generator's state, in a form that `torch.load(weights_only=True)` accepts.

Only tensors, numbers, text, lists and dictionaries: numpy's array becomes an int64 tensor, Python's tuple a list.
"""

import random
from typing import Any


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
    """Put back what `capture_rng_state` took; returns the names of the generators restored.

    A CUDA state is put back only when as many devices are there as when it was taken: anything else would be another
    sequence under the same name. Raises ImportError without torch, and RuntimeError of torch for a state that is no state.
    """
    import torch

    torch.set_rng_state(state["torch"].cpu())
    restored = ["torch"]
    cuda = state.get("cuda") or []
    if cuda and torch.cuda.is_available() and len(cuda) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all([one.cpu() for one in cuda])
        restored.append("cuda")
    if state.get("numpy") is not None:
        restored += _restore_numpy(state["numpy"])
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    return [*restored, "python"]


def _restore_numpy(state: dict[str, Any]) -> list[str]:
    try:
        import numpy as np
    except ImportError:
        return []
    keys = np.array(state["keys"].tolist(), dtype=np.uint32)
    np.random.set_state((state["algorithm"], keys, state["position"], state["has_gauss"], state["cached_gaussian"]))
    return ["numpy"]
