#!/usr/bin/env python3
"""Compiles generated kernels as a CUDA worker does when it loads a model: nvrtc.py LIBRARY FILE...

For each file and chip a line in the words of ptxas. The status is 1 if a kernel is refused, is warned of or spills.
"""
import ctypes
import pathlib
import re
import sys

CHIPS = ("sm_80", "sm_90")
# As `host/backend-cuda/src/driver/cuda/compile.rs` has them, and what ptxas has to say.
OPTIONS = ("--std=c++17", "--fmad=false", "--ftz=true", "--prec-div=true", "--prec-sqrt=true", "--ptxas-options=-v")
HEADERS = ("abi.h", "abi_group.h", "abi_transfer.h", "group_numbers.cuh", "group_stretches.cuh", "kernel.cuh", "ptx.cuh", "tables.cuh", "generated/stdint.h")
# Bytes that a kernel may spill. For blocks of 64 threads ptxas would rather keep to the 32 registers with which a chip holds
# as many blocks as it can than use two more, in a cell whose operations were picked at random.
SPILLED_MAX = {"random_0.cu": 8}
HERE = pathlib.Path(__file__).resolve().parent


def strings(values):
    return (ctypes.c_char_p * len(values))(*values)


def compiled(library, text, chip):
    """Whether a text compiles, and what was said of it."""
    names = strings([pathlib.PurePath(name).name.encode() for name in HEADERS])
    texts = strings([(HERE / name).read_bytes() for name in HEADERS])
    program = ctypes.c_void_p()
    if library.nvrtcCreateProgram(ctypes.byref(program), text, b"compiled_group.cu", len(HEADERS), texts, names):
        return False, "no program"
    options = strings([option.encode() for option in (*OPTIONS, f"--gpu-architecture={chip}")])
    result = library.nvrtcCompileProgram(program, len(options), options)
    size = ctypes.c_size_t()
    library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    library.nvrtcGetProgramLog(program, log)
    bytes_of_code = ctypes.c_size_t()
    if result == 0:
        result = library.nvrtcGetCUBINSize(program, ctypes.byref(bytes_of_code))
    library.nvrtcDestroyProgram(ctypes.byref(program))
    return result == 0 and bytes_of_code.value > 0, log.value.decode(errors="replace")


def main():
    library = ctypes.CDLL(sys.argv[1])
    failed = 0
    for path in map(pathlib.Path, sys.argv[2:]):
        for chip in CHIPS:
            done, log = compiled(library, path.read_bytes(), chip)
            spills = [int(bytes_) for bytes_ in re.findall(r"(\d+) bytes spill", log)]
            registers = re.findall(r"Used \d+ registers", log)
            stack = re.findall(r"\d+ bytes stack frame", log)
            is_sound = done and registers and max(spills, default=0) <= SPILLED_MAX.get(path.name, 0) and not re.search("warning|advisory", log, re.IGNORECASE)
            print(f"{'ok   ' if is_sound else 'FAIL '} {path.name:28} {chip} {', '.join([*registers, *stack, *(f'{bytes_} bytes spilled' for bytes_ in spills if bytes_)])}")
            if not is_sound:
                failed = 1
                print(log)
    return failed


sys.exit(main())
