"""Snapshot files in every format, made for the tests: whole ones, and ones that nobody would write."""

import io
import json
import struct
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch.serialization import set_crc32_options

FORMATS = ["zip", "zip without checksums", "legacy"]
"""The ways in which torch.save writes."""

Tensors = dict[str, tuple[str, list[int], bytes]]
"""Tensors for a safetensors file by name: dtype, shape, and their bytes."""


def saved(path: Path, content: Any, way: str = "zip", **more: Any) -> Path:
    """The torch file of that format that holds `content`."""
    set_crc32_options(way != "zip without checksums")
    try:
        torch.save(content, path, _use_new_zipfile_serialization=way != "legacy", **more)
    finally:
        set_crc32_options(True)
    return path


def safetensors(tensors: Tensors, metadata: dict[str, Any] | None = None) -> bytes:
    """The content of a safetensors file, its tensors one behind the other."""
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": metadata}
    at = 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    return with_header(json.dumps(header), b"".join(data for _, _, data in tensors.values()))


def with_header(header: str | bytes, data: bytes = b"", length: int | None = None) -> bytes:
    """The content of a safetensors file with any header, and any length of it."""
    raw = header.encode() if isinstance(header, str) else header
    return struct.pack("<Q", len(raw) if length is None else length) + raw + data


def zip_around(pickle: bytes, storages: dict[str, bytes] | None = None) -> bytes:
    """An archive as torch lays it out, with any pickle for its structure."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/data.pkl", pickle)
        for key, data in (storages or {}).items():
            archive.writestr(f"archive/data/{key}", data)
        archive.writestr("archive/version", b"3\n")
    return buffer.getvalue()


def legacy_around(pickle: bytes, storages: dict[str, tuple[int, bytes]] | None = None) -> bytes:
    """A file of the older format, with any pickle for its payload; of each storage the number of elements, and its bytes."""
    buffer = io.BytesIO()
    torch.save(None, buffer, _use_new_zipfile_serialization=False)
    facts = buffer.getvalue().removesuffix(b"\x80\x02N.\x80\x02]q\x00.")
    keys = b"".join(b"X" + struct.pack("<L", len(key)) + key.encode() for key in storages or {})
    counted = b"".join(struct.pack("<q", count) + data for count, data in (storages or {}).values())
    return facts + pickle + b"\x80\x02](" + keys + b"e." + counted


def record_places(content: bytes) -> list[range]:
    """Where in an archive the bytes of its records are."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        entries = archive.infolist()
    places = []
    for entry in entries:
        name_bytes, extra_bytes = struct.unpack_from("<2H", content, entry.header_offset + 26)
        start = entry.header_offset + 30 + name_bytes + extra_bytes
        places.append(range(start, start + entry.compress_size))
    return places


def same(one: Any, other: Any) -> bool:
    """Whether two payloads hold the same, every bit of every tensor included."""
    if isinstance(one, torch.Tensor):
        return (
            isinstance(other, torch.Tensor)
            and (one.dtype, one.shape, one.layout) == (other.dtype, other.shape, other.layout)
            and torch.equal(*(tensor.flatten().view(torch.uint8) for tensor in (one, other)))
        )
    if isinstance(one, dict):
        return type(one) is type(other) and one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    return type(one) is type(other) and bool(one == other)
