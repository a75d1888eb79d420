"""What a pickle may name and still be loaded by `torch.load(weights_only=True)`, as data, so that no torch is needed.

As of torch 2.13; a test holds it against the torch that is installed. Names that torch only learns from a caller, or by
importing parts of itself such as `torch.distributed.tensor`, are not in it.
"""

_TYPES = ("BFloat16", "Byte", "Char", "Double", "Float", "Half", "Int", "Long", "Short")
_STORAGES = (*_TYPES, "Bool", "ComplexDouble", "ComplexFloat")
_QUANTIZED_STORAGES = ("QInt32", "QInt8", "QUInt2x4", "QUInt4x2", "QUInt8")
_DTYPES = (
    *("bool", "bfloat16", "float16", "float32", "float64", "complex32", "complex64", "complex128"),
    *("float4_e2m1fn_x2", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64)),
    *("qint8", "qint32", "quint8", "quint4x2", "quint2x4", "bits8", "bits16", "bits1x8", "bits2x4", "bits4x2"),
)
_SCHEMES = (
    *("per_tensor_affine", "per_tensor_symmetric"),
    *("per_channel_affine", "per_channel_symmetric", "per_channel_affine_float_qparams"),
)
_REBUILDERS = (
    *("tensor", "tensor_v2", "tensor_v3", "qtensor", "sparse_tensor", "nested_tensor", "wrapper_subclass"),
    *("parameter", "parameter_with_state", "meta_tensor_no_storage"),
    *("device_tensor_from_cpu_tensor", "device_tensor_from_numpy"),
)

SAFE_GLOBALS = frozenset(
    [
        *("_codecs.encode", "builtins.bytearray", "builtins.complex", "builtins.set"),
        *("collections.Counter", "collections.OrderedDict", "torch.Size", "torch.Tensor", "torch.device"),
        *("torch.nn.parameter.Parameter", "torch.serialization._get_layout", "torch._tensor._rebuild_from_type_v2"),
        *("torch.storage.TypedStorage", "torch.storage.UntypedStorage"),
        *(f"torch._utils._rebuild_{name}" for name in _REBUILDERS),
        *(f"torch.{name}" for name in (*_DTYPES, *_SCHEMES)),
        *(f"torch.{name}Storage" for name in (*_STORAGES, *_QUANTIZED_STORAGES)),
        *(f"torch.cuda.{name}Storage" for name in _STORAGES),
        *(f"torch.{place}{name}Tensor" for place in ("", "cuda.") for name in (*_TYPES, "Bool")),
        *(f"torch.{place}sparse.{name}Tensor" for place in ("", "cuda.") for name in _TYPES),
    ]
)
"""By the names of Python 3."""
