"""Splits a static library of CUDA objects by what its fat binaries hold.

    split_fatbin.py LIBRARY MACHINE_CODE_LIBRARY PTX_LIBRARY

nvcc embeds one fat binary into each object: machine code for the GPU and PTX, the text that the
emulator executes. The CUDA module needs the first only, the emulator's module the second only. Each
output is a copy of the library whose fat binaries hold one of the two, the PTX compressed. A
section that shrinks keeps its place in its object: no offset changes, so the archive's symbol table
stays valid.

Compressed PTX has a kind of entry of its own, which only the emulator's module reads
(`cc/emulator/runtime/fatbin.cc`): a zlib stream, padded to 8 bytes, in the place of the text.

The layout of a fat binary is not documented. Whatever differs from what the CUDA 13.0 tools write
is an error.
"""

from __future__ import annotations

import dataclasses
import os
import struct
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

PTX, MACHINE_CODE = 1, 2
ZLIB_PTX = 0x5A01  # ours: nvcc writes no such kind
KIND_NAMES = {PTX: "PTX", MACHINE_CODE: "machine code", ZLIB_PTX: "compressed PTX"}

SECTION = ".nv_fatbin"

_ARCHIVE_MAGIC = b"!<arch>\n"
_MEMBER_BYTES = 60  # of a member's header
_ELF64_LITTLE = b"\x7fELF\x02\x01"
_SECTION_BYTES = 64  # of a section's header
_SHT_PROGBITS, _SHT_RELA, _SHT_REL = 1, 4, 9
_CONTAINER = struct.Struct("<IHHQ")  # magic, version, bytes of this header, bytes of all entries
_CONTAINER_MAGIC = 0xBA55ED50
_ENTRY = struct.Struct("<HHIQI")  # kind, version, header bytes, payload bytes, compressed bytes
_ENTRY_LEAST = 32


class LayoutError(ValueError):
    """Something is not laid out as this program expects."""


@dataclasses.dataclass(frozen=True)
class Entry:
    """One entry of a fat binary, header included."""

    kind: int
    data: bytes


@dataclasses.dataclass(frozen=True)
class Section:
    """A section of an ELF file: where its header and its contents are."""

    index: int
    name: str
    type: int
    header: int
    offset: int
    size: int
    info: int


def read_container(data: bytes, offset: int = 0) -> tuple[list[Entry], int]:
    """Entries of the fat binary that begins at `offset`, and where it ends."""
    if len(data) - offset < _CONTAINER.size:
        raise LayoutError("the fat binary's header is truncated")
    magic, version, header_bytes, payload_bytes = _CONTAINER.unpack_from(data, offset)
    if magic != _CONTAINER_MAGIC or version != 1 or header_bytes != _CONTAINER.size:
        raise LayoutError(
            f"unknown fat binary: magic {magic:#x}, version {version}, "
            f"header of {header_bytes} bytes"
        )
    position = offset + header_bytes
    end = position + payload_bytes
    if end > len(data):
        raise LayoutError("the fat binary is larger than its section")
    entries = []
    while position < end:
        if end - position < _ENTRY_LEAST:
            raise LayoutError("an entry's header is truncated")
        kind, _, entry_header, payload, compressed = _ENTRY.unpack_from(data, position)
        size = entry_header + payload
        if kind not in KIND_NAMES:
            raise LayoutError(f"unknown kind of entry: {kind}")
        if entry_header < _ENTRY_LEAST or size % 8 or size > end - position:
            raise LayoutError(f"an entry of {entry_header} and {payload} bytes does not fit")
        if kind == PTX and compressed:
            raise LayoutError("the PTX is compressed: compile with nvcc --no-compress")
        entries.append(Entry(kind, data[position : position + size]))
        position += size
    return entries, end


def compress_entry(entry: Entry) -> Entry:
    """The entry of kind `ZLIB_PTX` that stands for one of kind `PTX`."""
    _, version, header_bytes, _, _ = _ENTRY.unpack_from(entry.data)
    stream = zlib.compress(entry.data[header_bytes:])
    padded = stream.ljust(-(-len(stream) // 8) * 8, b"\0")
    head = _ENTRY.pack(ZLIB_PTX, version, header_bytes, len(padded), len(stream))
    return Entry(ZLIB_PTX, head + entry.data[_ENTRY.size : header_bytes] + padded)


def keep_entries(container: bytes, kind: int) -> bytes:
    """The fat binary with the entries of that kind only; PTX is compressed."""
    entries, end = read_container(container)
    if end != len(container):
        raise LayoutError(f"{SECTION} holds more than one fat binary")
    chosen = [entry for entry in entries if entry.kind == kind]
    if not chosen:
        raise LayoutError(f"the fat binary holds no {KIND_NAMES[kind]}")
    if kind == PTX:
        chosen = [compress_entry(entry) for entry in chosen]
    kept = b"".join(entry.data for entry in chosen)
    if len(kept) + _CONTAINER.size > len(container):
        raise LayoutError("the compressed PTX does not fit into the place of the fat binary")
    return _CONTAINER.pack(_CONTAINER_MAGIC, 1, _CONTAINER.size, len(kept)) + kept


def sections(elf: bytes) -> list[Section]:
    """Sections of a 64-bit little-endian ELF file."""
    if len(elf) < 64 or elf[:6] != _ELF64_LITTLE:
        raise LayoutError("not a 64-bit little-endian ELF file")
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    entry_bytes, count, names_index = struct.unpack_from("<HHH", elf, 0x3A)
    if entry_bytes != _SECTION_BYTES or not count > 0 or names_index >= count:
        raise LayoutError("unknown ELF section table")
    if table + count * _SECTION_BYTES > len(elf):
        raise LayoutError("the ELF section table is truncated")
    headers = [
        struct.unpack_from("<IIQQQQII", elf, table + i * _SECTION_BYTES) for i in range(count)
    ]
    names_offset, names_size = headers[names_index][4:6]
    names = elf[names_offset : names_offset + names_size]
    found = []
    for i, (name, kind, _, _, offset, size, _, info) in enumerate(headers):
        text = names[name : names.find(b"\0", name)].decode()
        found.append(Section(i, text, kind, table + i * _SECTION_BYTES, offset, size, info))
    return found


def rewrite_object(elf: bytes, kind: int) -> bytes:
    """The object, as long as before, with that kind of entries in its fat binary.

    An object without device code is returned as it is.
    """
    table = sections(elf)
    chosen = [s for s in table if s.name == SECTION]
    if not chosen:
        return elf
    if len(chosen) > 1 or chosen[0].type != _SHT_PROGBITS:
        raise LayoutError(f"{SECTION} is not one section of data")
    section = chosen[0]
    if section.offset + section.size > len(elf):
        raise LayoutError(f"{SECTION} is truncated")
    if any(s.type in (_SHT_RELA, _SHT_REL) and s.info == section.index for s in table):
        raise LayoutError(f"{SECTION} has relocations")
    kept = keep_entries(elf[section.offset : section.offset + section.size], kind)
    out = bytearray(elf)
    out[section.offset : section.offset + section.size] = kept.ljust(section.size, b"\0")
    struct.pack_into("<Q", out, section.header + 32, len(kept))  # sh_size
    return bytes(out)


def members(archive: bytes) -> Iterator[tuple[str, int, int]]:
    """(name, first byte, size) of the files in a static library; its tables are left out."""
    if not archive.startswith(_ARCHIVE_MAGIC):
        raise LayoutError("not a static library (thin archives are not supported)")
    long_names = b""
    position = len(_ARCHIVE_MAGIC)
    while position < len(archive):
        header = archive[position : position + _MEMBER_BYTES]
        digits = header[48:58].strip()
        if len(header) < _MEMBER_BYTES or header[58:] != b"`\n" or not digits.isdigit():
            raise LayoutError(f"no archive member at byte {position}")
        name, start, size = header[:16].decode().rstrip(), position + _MEMBER_BYTES, int(digits)
        if start + size > len(archive):
            raise LayoutError(f"archive member {name!r} is truncated")
        if name == "//":
            long_names = archive[start : start + size]
        elif name not in ("/", "/SYM64/"):
            if name.startswith("/") and name[1:].isdigit():
                name = long_names[int(name[1:]) :].split(b"/\n", 1)[0].decode()
            yield name.rstrip("/"), start, size
        position = start + size + size % 2


def split(archive: bytes, kind: int) -> bytes:
    """The static library, as long as before, with one kind of entries in its fat binaries."""
    out = bytearray(archive)
    rewritten = 0
    for name, start, size in members(archive):
        elf = archive[start : start + size]
        try:
            changed = rewrite_object(elf, kind)
        except LayoutError as error:
            raise LayoutError(f"{name}: {error}") from None
        out[start : start + size] = changed
        rewritten += changed is not elf
    if not rewritten:
        raise LayoutError("no object holds device code")
    return bytes(out)


def main(arguments: list[str]) -> int:
    """Writes both libraries; 1 and a message when the input has an unknown layout."""
    if len(arguments) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    source, *targets = map(Path, arguments)
    archive = source.read_bytes()
    try:
        outputs = [split(archive, kind) for kind in (MACHINE_CODE, PTX)]
    except LayoutError as error:
        print(f"split_fatbin.py: {source}: {error}", file=sys.stderr)
        return 1
    for target, data in zip(targets, outputs, strict=True):
        part = target.with_name(target.name + ".part")  # an interrupted write is no library
        part.write_bytes(data)
        os.replace(part, target)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
