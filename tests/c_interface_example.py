#!/usr/bin/env python3
"""Touchstone from Python: tests/c_interface_example.py build/golden/libtouchstone.so

Lists the operators, runs rms_norm on buffers of its own, runs a case, compares two tensors, and shows what
an error looks like. Needs nothing but Python; buffers are numpy arrays or torch tensors where there are any.
"""
import ctypes
import json
import struct
import sys
from ctypes import POINTER, byref, c_char_p, c_double, c_int, c_int32, c_int64, c_size_t, c_void_p


class Tensor(ctypes.Structure):
    """struct touchstone_tensor of golden/touchstone.h."""

    _fields_ = [("name", c_char_p), ("type", c_char_p), ("rank", c_int64), ("extents", POINTER(c_int64)),
                ("data", c_void_p), ("bytes", c_size_t)]


class Comparison(ctypes.Structure):
    """struct touchstone_comparison."""

    _fields_ = [("struct_bytes", c_size_t), ("elements", c_int64), ("identical", c_int64),
                ("outside", c_int64), ("first", c_int64), ("worst", c_int64), ("largest_ulp", c_int64),
                ("largest_absolute", c_double), ("largest_relative", c_double), ("largest_of_rms", c_double),
                ("cosine", c_double)]


# Result and arguments of each function; without these ctypes would cut pointers to 32 bits.
SIGNATURES = {
    "touchstone_api_version": (c_int32, []),
    "touchstone_version": (c_char_p, []),
    "touchstone_last_error": (c_char_p, []),
    "touchstone_operator_count": (c_int64, []),
    "touchstone_operator_name": (c_char_p, [c_int64]),
    "touchstone_operator_json": (c_char_p, [c_char_p]),
    "touchstone_make_inputs": (c_int, [c_char_p, POINTER(c_void_p)]),
    "touchstone_run_case": (c_int, [c_char_p, c_char_p, POINTER(c_void_p)]),
    "touchstone_run": (c_int, [c_char_p, c_char_p, c_char_p, POINTER(Tensor), c_int64, POINTER(Tensor),
                               c_int64]),
    "touchstone_tensors_count": (c_int64, [c_void_p]),
    "touchstone_tensors_get": (c_int, [c_void_p, c_int64, POINTER(Tensor)]),
    "touchstone_tensors_free": (None, [c_void_p]),
    "touchstone_compare": (c_int, [POINTER(Tensor), POINTER(Tensor), c_char_p, POINTER(Comparison)]),
}


def load(path):
    library = ctypes.CDLL(path)
    for name, (result, arguments) in SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    if library.touchstone_api_version() < 1:
        sys.exit("this library is older than the example")
    return library


library = load(sys.argv[1] if len(sys.argv) > 1 else "libtouchstone.so")


def check(status):
    """Raises for every status but ok (0) and differs (1)."""
    if status not in (0, 1):
        raise ValueError(library.touchstone_last_error().decode())
    return status


def describe(name, kind, shape, address, size):
    """A Tensor over somebody else's memory, which has to outlive it."""
    return Tensor(name.encode(), kind.encode(), len(shape), (c_int64 * len(shape))(*shape), address, size)


def bf16(value):
    """The upper half of an fp32 that has no more bits than that."""
    return struct.unpack("<I", struct.pack("<f", value))[0] >> 16


def from_bf16(bits):
    return struct.unpack("<f", struct.pack("<I", bits << 16))[0]


def own_buffer(values):
    """bf16 values in a buffer of ours: what keeps it alive, its address, its bytes."""
    bits = [bf16(value) for value in values]
    try:
        import numpy
        array = numpy.array(bits, dtype=numpy.uint16)
        return array, array.ctypes.data, array.nbytes
    except ImportError:
        pass
    try:
        import torch
        tensor = torch.tensor(values, dtype=torch.bfloat16)
        return tensor.view(torch.int16), tensor.data_ptr(), tensor.numel() * 2
    except ImportError:
        array = (ctypes.c_uint16 * len(bits))(*bits)
        return array, ctypes.addressof(array), ctypes.sizeof(array)


def list_operators():
    count = library.touchstone_operator_count()
    names = [library.touchstone_operator_name(i).decode() for i in range(count)]
    version = library.touchstone_version().decode()
    print(f"touchstone {version}: {count} operators: {', '.join(names[:4])}, ..")
    norm = json.loads(library.touchstone_operator_json(b"rms_norm"))
    slots = ", ".join(f"{slot['name']} {slot['type']} {slot['shape']}" for slot in norm["inputs"])
    print(f"rms_norm: {norm['equation']}; inputs {slots}")
    assert "rms_norm" in names and len(names) == count


def run_on_own_buffers():
    x, x_address, x_bytes = own_buffer([3, 4, 0, 0])
    gain, gain_address, gain_bytes = own_buffer([1, 2, 1, 1])
    y = (ctypes.c_uint16 * 4)()
    inputs = (Tensor * 2)(describe("x", "BF16", [1, 4], x_address, x_bytes),
                          describe("weight", "BF16", [4], gain_address, gain_bytes))
    outputs = (Tensor * 1)(describe("y", "BF16", [1, 4], ctypes.addressof(y), ctypes.sizeof(y)))
    check(library.touchstone_run(b"rms_norm", b"exact", b"rms_norm(eps=0)", inputs, 2, outputs, 1))
    values = [from_bf16(bits) for bits in y]
    print("rms_norm of 3 4 0 0 with gains 1 2 1 1:", *values)
    assert values == [1.203125, 3.203125, 0, 0], values  # 3 / 2.5 and 2 * 4 / 2.5, rounded to bf16


def tensors_of(handle):
    for i in range(library.touchstone_tensors_count(handle)):
        tensor = Tensor()
        check(library.touchstone_tensors_get(handle, i, byref(tensor)))
        yield tensor


def run_case_and_compare():
    case = b"linear_bf16(rows=2,outputs=40,inputs=1024,seed=3)"
    exact, hopper = c_void_p(), c_void_p()
    check(library.touchstone_run_case(case, b"exact", byref(exact)))
    check(library.touchstone_run_case(case, b"hopper", byref(hopper)))
    for left, right in zip(tensors_of(exact), tensors_of(hopper)):
        for tolerance in (b"bit", b"ulp=1,share=0.05" if left.type == b"BF16" else b"fp32_row"):
            found = Comparison(struct_bytes=ctypes.sizeof(Comparison))
            status = check(library.touchstone_compare(byref(left), byref(right), tolerance, byref(found)))
            print(f"{left.name.decode()}, exact against hopper, {tolerance.decode()}: "
                  f"{'within' if status == 0 else 'differs'}, {found.elements - found.identical} of "
                  f"{found.elements} elements differ, {found.outside} outside")
            if left.name == b"accumulator":
                assert (status == 0) == (tolerance != b"bit")
    library.touchstone_tensors_free(exact)
    library.touchstone_tensors_free(hopper)


def show_an_error():
    outputs = c_void_p()
    try:
        check(library.touchstone_run_case(b"rms_nrom(rows=2)", b"exact", byref(outputs)))
    except ValueError as error:
        print(f"an error: {error}")
        assert "rms_norm" in str(error)
    else:
        raise AssertionError("an unknown operator was accepted")


list_operators()
run_on_own_buffers()
run_case_and_compare()
show_an_error()
