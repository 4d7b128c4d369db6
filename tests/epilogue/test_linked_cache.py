"""Linked kernels on disk and in memory."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import threading
from pathlib import Path
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from emulator_cases import requires_emulator
from linked_cases import (  # noqa: F401
    F32,
    close,
    kernels,
    linked_for_sm90,
    product,
    requires_linker,
)
from numerics import normal

import jax_bwgemm as bw
from jax_bwgemm.epilogue import linking
from jax_bwgemm.epilogue.hook import Hook
from jax_bwgemm.epilogue.linker import Linker, LinkError
from jax_bwgemm.epilogue.tracing import trace_epilogue

pytestmark = [*requires_emulator, requires_linker]

KERNELS = kernels("emulator")


def signed(code: str) -> bytes:
    """A file of the cache whose digest is right."""
    return f"{hashlib.sha256(code.encode()).hexdigest()}\n{code}".encode()


def no_home() -> Path:
    raise RuntimeError("Could not determine home directory.")


class TestCache:
    """Linked kernels on disk."""

    @pytest.fixture
    def hook(self) -> Hook:
        program = trace_epilogue(lambda z: z + 1, (16, 16), ()).program
        return Hook(program, ("bfloat16",), "sm90", swapped=KERNELS[0].swap_ab)

    @pytest.fixture
    def folder(self, tmp_path, monkeypatch) -> Path:
        monkeypatch.setenv("BWGEMM_LINK_CACHE", str(tmp_path))
        linking.forget_linked_kernels()
        return tmp_path

    def files(self, folder: Path) -> list[Path]:
        return [p for p in folder.iterdir() if p.suffix == ".txt"]

    def link(self, hook: Hook) -> linking.LinkedKernel:
        linking.forget_linked_kernels()
        return linking.linked_kernel(KERNELS[0].name, hook, ptx=True)

    def test_is_read_again(self, hook, folder, monkeypatch, caplog) -> None:
        first = self.link(hook)
        assert len(self.files(folder)) == 1
        assert "is not used" not in caplog.text  # there was none
        monkeypatch.setattr(linking, "linker", None)  # the tools are not even looked for
        assert self.link(hook) == first

    def test_a_file_is_of_all_that_goes_into_the_kernel(self, hook, folder, monkeypatch) -> None:
        """Of another build or version, kernels of the same names are others."""
        made = (base64.b64encode(bytes([i])).decode() for i in range(100))
        monkeypatch.setattr(linking, "linker", lambda: None)
        monkeypatch.setattr(linking, "_link", lambda *_, **__: next(made))
        name, other = (k.name for k in KERNELS[:2])
        float16 = dataclasses.replace(hook, result_types=("float16",))

        def codes() -> list[str]:
            cases = (name, hook, True), (name, hook, False), (other, hook, True)
            found = []
            for kernel, of, ptx in (*cases, (name, float16, True)):
                linking.forget_linked_kernels()
                found.append(linking.linked_kernel(kernel, of, ptx=ptx))
            assert len({x.digest for x in found}) == len(found)
            return [x.code for x in found]

        found = codes()
        assert len(set(found)) == len(self.files(folder)) == 4
        assert codes() == found
        seen = set(found)
        for part, changed in (("_hash_of", lambda _: "another build's"), ("_FORMAT", "later")):
            monkeypatch.setattr(linking, part, changed)
            found = codes()
            assert not seen & set(found)
            seen |= set(found)

    @pytest.mark.parametrize(
        "damage", ["flipped", "truncated", "empty", "binary", "no code", "text", "folder"]
    )
    def test_damaged_files_are_refused(self, hook, folder, caplog, damage) -> None:
        first = self.link(hook)
        (path,) = self.files(folder)
        text = path.read_text()
        if damage == "folder":
            path.unlink()
            path.mkdir()
        else:
            path.write_bytes(
                {
                    "flipped": text.replace(text[-9], "A" if text[-9] != "A" else "B").encode(),
                    "truncated": text[:-100].encode(),
                    "empty": b"",
                    "binary": b"\xff\xfe" * 50,
                    "no code": signed(""),
                    "text": signed("!!!"),
                }[damage]
            )
        assert self.link(hook) == first
        assert "is not used" in caplog.text
        if damage != "folder":
            assert path.read_text() == text

    def test_kernels_are_linked_side_by_side(self, folder, monkeypatch) -> None:
        """Tracing begins to link; what is lowered then waits for it."""
        monkeypatch.setattr(jax, "local_device_count", lambda: 1)
        both = threading.Barrier(2, timeout=60)
        link = Linker.link

        def at_once(*args: Any, **kwargs: Any) -> bytes:
            both.wait()  # for the other link
            return link(*args, **kwargs)

        monkeypatch.setattr(Linker, "link", at_once)
        a = jnp.ones((16, 64), jnp.bfloat16)
        b = jnp.ones((64, 24), jnp.bfloat16)

        @jax.jit
        def two(a: Any, b: Any) -> Any:
            one = bw.matmul(a, b, epilogue=jnp.square, implementation="emulator")
            return one, bw.matmul(a, b, epilogue=jnp.negative, implementation="emulator")

        close(two(a, b), (jnp.full((16, 24), 64.0**2), jnp.full((16, 24), -64.0)))
        assert len(self.files(folder)) == 2

    def test_off_and_unwritable(self, hook, folder, monkeypatch, caplog) -> None:
        monkeypatch.setenv("BWGEMM_LINK_CACHE", "off")
        first = self.link(hook)
        assert not self.files(folder)
        (folder / "file").write_text("")
        monkeypatch.setenv("BWGEMM_LINK_CACHE", str(folder / "file"))
        assert self.link(hook) == first
        assert "is not written" in caplog.text

    def test_default_folder(self, folder, monkeypatch) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
        monkeypatch.setenv("BWGEMM_LINK_CACHE", "")
        assert linking.cache_folder() == folder / "jax_bwgemm" / "linked-v1"
        monkeypatch.delenv("BWGEMM_LINK_CACHE")
        assert linking.cache_folder() == folder / "jax_bwgemm" / "linked-v1"

    def test_a_folder_that_is_not_there_is_made(self, hook, folder, monkeypatch) -> None:
        new = folder / "a" / "b"
        monkeypatch.setenv("BWGEMM_LINK_CACHE", str(new))
        monkeypatch.setattr(linking, "linker", lambda: None)
        monkeypatch.setattr(linking, "_link", lambda *_, **__: base64.b64encode(b"code").decode())
        self.link(hook)
        assert len(self.files(new)) == 1

    def test_what_is_being_linked_is_neither_begun_again_nor_forgotten(
        self, hook, folder, monkeypatch
    ) -> None:
        go, begun = threading.Event(), []

        def link(*args: Any, **_: Any) -> str:
            begun.append(args[2])
            assert go.wait(60)
            return base64.b64encode(b"code").decode()

        monkeypatch.setattr(linking, "MOST_KEPT", 1)
        monkeypatch.setattr(linking, "linker", lambda: None)
        monkeypatch.setattr(linking, "_link", link)
        names = [k.name for k in KERNELS[:2]] * 2
        found = [linking.start_linking(name, hook, ptx=True) for name in names]
        go.set()
        assert len({f.result() for f in found}) == 1
        assert found[:2] == found[2:]
        assert sorted(begun) == sorted(names[:2])
        linking.forget_linked_kernels()

    def test_machine_code_and_ptx_are_two_kernels(self, hook, folder, monkeypatch) -> None:
        """In memory, too: a process may use a GPU and the emulator."""

        def link(*_: Any, ptx: bool) -> str:
            return base64.b64encode(b"ptx" if ptx else b"cubin").decode()

        monkeypatch.setattr(linking, "linker", lambda: None)
        monkeypatch.setattr(linking, "_link", link)
        for ptx in (True, False):
            code = linking.linked_kernel(KERNELS[0].name, hook, ptx=ptx).code
            assert base64.b64decode(code) == (b"ptx" if ptx else b"cubin")
        linking.forget_linked_kernels()

    def test_fewer_than_are_kept_are_all_kept(self, hook, folder, monkeypatch) -> None:
        monkeypatch.setattr(linking, "MOST_KEPT", 4)
        monkeypatch.setattr(linking, "linker", lambda: None)
        monkeypatch.setattr(linking, "_link", lambda *_, **__: base64.b64encode(b"code").decode())
        for kernel in KERNELS[:3]:
            linking.linked_kernel(kernel.name, hook, ptx=True)
        assert len(linking._futures) == 3
        linking.forget_linked_kernels()

    def test_a_user_without_a_home_keeps_nothing(self, hook, folder, monkeypatch) -> None:
        monkeypatch.delenv("BWGEMM_LINK_CACHE")
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
        monkeypatch.setattr(Path, "home", no_home)
        assert linking.cache_folder() is None
        assert self.link(hook).code
        assert not self.files(folder)

    def test_exported_programs_need_no_linker(self, folder, monkeypatch) -> None:
        a = jnp.asarray(normal(np.random.default_rng(5), (16, 64), "bfloat16"))
        b = jnp.asarray(normal(np.random.default_rng(6), (64, 24), "bfloat16"))
        f = jax.jit(lambda a, b: bw.matmul(a, b, epilogue=jnp.abs, implementation="emulator"))
        exported = jax.export.export(f, disabled_checks=bw.DISABLE_EXPORT_CHECKS)(a, b)
        assert "epilogue_digest" in exported.mlir_module()
        data = exported.serialize()
        monkeypatch.setattr(linking, "linker", None)
        linking.forget_linked_kernels()
        jax.clear_caches()
        got = jax.export.deserialize(data).call(a, b)
        close(got, jnp.abs(jnp.dot(a.astype(F32), b.astype(F32))))


def test_a_failure_is_tried_again(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("BWGEMM_LINK_CACHE", str(tmp_path))
    linking.forget_linked_kernels()
    program = trace_epilogue(jnp.sin, (16, 16), ()).program
    hook = Hook(program, ("bfloat16",), "sm90", swapped=KERNELS[0].swap_ab)
    with monkeypatch.context() as broken:
        broken.setattr(linking, "linker", lambda: (_ for _ in ()).throw(LinkError("no space")))
        with pytest.raises(LinkError, match="no space"):
            linking.linked_kernel(KERNELS[0].name, hook, ptx=True)
    assert linking.linked_kernel(KERNELS[0].name, hook, ptx=True).code


def test_a_process_forgets_the_oldest(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("BWGEMM_LINK_CACHE", str(tmp_path))
    monkeypatch.setattr(linking, "MOST_KEPT", 2)
    linking.forget_linked_kernels()
    linked = []
    for f in (jnp.sin, jnp.cos, jnp.tan, jnp.sin):
        program = trace_epilogue(f, (16, 16), ()).program
        hook = Hook(program, ("bfloat16",), "sm90", swapped=KERNELS[0].swap_ab)
        linked.append(linking.linked_kernel(KERNELS[0].name, hook, ptx=True))
        assert len(linking._futures) <= 2
    assert linked[0] == linked[3]
    assert linked[0] is not linked[3]
